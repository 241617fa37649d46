"""A trace folder: its index, checked, and the values of each tensor."""

from __future__ import annotations

import math
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import Unreadable, read_text
from mslaunch.documents.typed import make
from mslaunch.errors import RequestError

INDEX = "trace.json"
VERSION = 2
MOST_BYTES = 100 << 20
MOST_DIMENSIONS = 64
"""NumPy knows no more."""
_KINDS = "fiubc"


@dataclass(frozen=True, slots=True)
class Recorded:
    """One tensor that a module has returned or was given."""

    name: str
    """Of the module in the network; empty for the network itself."""
    kind: str
    call: int
    """0 for the module's first call."""
    place: str
    """In what the module returned or was given; empty for the only tensor."""
    order: int
    """Of outputs: that in which modules returned, inner ones before outer ones."""
    values: int
    shape: tuple[int, ...]
    dtype: str
    step: int
    """1: all values are kept, in order; otherwise the distance between kept ones, round and round."""
    kept: int
    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    norm: float | None
    """These five are of all finite values, kept or not; None where there is no such number."""
    not_finite: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_whole(self) -> bool:
        return self.kept == self.size


@dataclass(frozen=True, slots=True)
class Trace:
    """What one network has computed."""

    folder: str
    framework: str
    ended_by: str | None
    notes: tuple[str, ...]
    not_called: tuple[str, ...]
    inputs: tuple[Recorded, ...]
    outputs: tuple[Recorded, ...]

    def values(self, tensor: Recorded) -> Any:
        """Return the kept values of a tensor, as one row."""
        path = Path(self.folder, f"{tensor.values}.npy")
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                raise Unreadable("it is not a file")
            values = np.load(path, mmap_mode="r", allow_pickle=False)  # mapped: a wrong header asks for no memory
        except Exception as error:  # NumPy reads the header as Python, and lets whatever that raises through
            why = (error.strerror if isinstance(error, OSError) else None) or str(error).partition("\n")[0]
            raise RequestError(f"{path}: cannot be read: {why}. Record the trace again.") from None
        if values.dtype.kind not in _KINDS or values.shape != (tensor.kept,):
            raise RequestError(f"{path}: does not hold what {INDEX} says of {tensor.name!r}. Record the trace again.")
        return values


def read_trace(folder: Path) -> Trace:
    """Read a trace's index; refuse what is not one."""
    path = folder / INDEX
    try:
        raw = parse_json(read_text(path, MOST_BYTES, only_files=True) or "{}")
        return _trace(folder, raw)
    except Unreadable as error:
        raise RequestError(f"{error.where(str(path))}: not the index of a trace: {error}. Record it again.") from None
    except OSError as error:
        why = error.strerror or error
        raise RequestError(
            f"{path}: cannot be read: {why}. Name a folder that trace() or torch_trace() has written."
        ) from None


def _trace(folder: Path, raw: Any) -> Trace:
    if not isinstance(raw, dict) or not raw:
        raise Unreadable("it is empty; the script has not come to the end of its `with`")
    if raw.get("version") != VERSION:
        raise Unreadable(f"it has version {str(raw.get('version'))[:20]}, this mslaunch reads {VERSION}")
    trace = make(Trace, {**raw, **{key: _rows(raw.get(key)) for key in ("inputs", "outputs")}, "folder": str(folder)})
    for tensor in (*trace.inputs, *trace.outputs):
        numbers = (tensor.order, tensor.values, tensor.kept, tensor.not_finite, *tensor.shape)
        if tensor.step < 1 or min(numbers) < 0:
            raise Unreadable(f"a number of {tensor.name!r} is negative")
        if len(tensor.shape) > MOST_DIMENSIONS:
            raise Unreadable(f"{tensor.name!r} has {len(tensor.shape)} dimensions")
        if tensor.kept > tensor.size or (tensor.step == 1) != tensor.is_whole:
            raise Unreadable(f"{tensor.name!r} cannot have {tensor.kept} values with step {tensor.step}")
    return trace


def _rows(raw: Any) -> Any:
    """The rows of the index, whose key `class` cannot be the name of a field."""
    if not isinstance(raw, list):
        return raw
    return [{**row, "kind": row.get("class")} if isinstance(row, dict) else row for row in raw]
