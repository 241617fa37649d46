"""The tensors of a trace: as NumPy arrays, described by numbers over all values, kept in files."""

from __future__ import annotations

import hashlib
import math
import os

TYPE_CHECKING = False  # typing itself costs every rank 10 ms
if TYPE_CHECKING:
    from typing import Any

GOLDEN = 0.6180339887498949
"""Multiples of this share of a length are spread evenly over it, however many there are."""


class ValueFiles:
    """Writes tensors into a folder; the same values, such as an output that is the next input, are written once."""

    def __init__(self, folder: str, most_values: int) -> None:
        self._folder = folder
        self._most_values = most_values
        self._rows: dict[tuple[bytes, tuple[int, ...], str], dict[str, Any]] = {}

    def save(self, tensor: Any) -> dict[str, Any]:
        """Keep a tensor's values, and return what describes them: the file's number, shape, type and statistics."""
        import numpy

        values = _to_numpy(tensor)
        flat = numpy.ascontiguousarray(values).reshape(-1)
        dtype = str(tensor.dtype).rpartition(".")[2].lower()
        key = (hashlib.blake2b(flat.view(numpy.uint8).data).digest(), values.shape, dtype)
        if key not in self._rows:
            self._rows[key] = self._write(flat, list(values.shape), dtype)
        return self._rows[key]

    def _write(self, flat: Any, shape: list[int], dtype: str) -> dict[str, Any]:
        import numpy

        step = find_step(flat.size, self._most_values)
        kept = flat
        if step > 1:
            kept = flat[numpy.arange(min(flat.size, self._most_values), dtype=numpy.int64) * step % flat.size]
        number = len(self._rows)
        numpy.save(os.path.join(self._folder, f"{number}.npy"), kept)
        described = {"values": number, "shape": shape, "dtype": dtype, "step": step, "kept": int(kept.size)}
        return {**described, **_statistics(flat)}


def find_step(size: int, most_values: int) -> int:
    """Return the distance, round and round, between the values to keep; 1 where all are kept.

    It has no factor in common with any dimension, so that no channel and no position is always left out.
    """
    if size <= most_values:
        return 1
    step = max(2, round(size * GOLDEN))
    while math.gcd(step, size) != 1:
        step += 1
    return step


def _to_numpy(tensor: Any) -> Any:
    """The values as NumPy knows them; it has no bfloat16 and no float8."""
    if hasattr(tensor, "asnumpy"):  # MindSpore
        is_known = str(tensor.dtype).lower() != "bfloat16"
        return tensor.asnumpy() if is_known else tensor.float().asnumpy()
    tensor = tensor.detach()
    if tensor.is_floating_point() and tensor.element_size() < 4:
        tensor = tensor.float()
    return tensor.cpu().numpy()


def _statistics(values: Any) -> dict[str, Any]:
    """Mean, standard deviation, extremes and norm of the finite values, and how many are not."""
    import numpy

    names = ("mean", "std", "min", "max", "norm")
    if numpy.iscomplexobj(values):
        values = numpy.abs(values)
    wide = values.astype(numpy.float64)
    finite = wide[numpy.isfinite(wide)]
    if not finite.size:
        return {**dict.fromkeys(names), "not_finite": int(wide.size)}
    found = (finite.mean(), finite.std(), finite.min(), finite.max(), numpy.linalg.norm(finite))
    # Where the squares of large float64 values overflow, there is no such number.
    numbers = [float(number) if numpy.isfinite(number) else None for number in found]
    return {**dict(zip(names, numbers)), "not_finite": int(wide.size - finite.size)}
