"""trace: what each cell of a network computes, recorded in a folder for `mslaunch trace compare`.

MindSpore and PyTorch are recorded alike, each in an environment that need not have the other.
"""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False  # typing itself costs every rank 10 ms
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

INDEX = "trace.json"
VERSION = 1
MOST_VALUES = 1 << 18
"""Of an output with more, evenly spaced ones are kept."""


class Tracer:
    """Records the outputs of a network's modules between `with` and its end."""

    def __init__(self, modules: list[tuple[str, Any]], folder: str, framework: str, most_values: int) -> None:
        if most_values < 1:
            raise ValueError(f"most_values must be 1 or more, got {most_values}.")
        self.folder = os.path.abspath(os.fspath(folder))  # the script may change its folder
        self.framework = framework
        self.notes: list[str] = []
        self._modules = modules
        self._most_values = most_values
        self._outputs: list[dict[str, Any]] = []
        self._calls: dict[str, int] = {}
        self._hooks: list[Any] = []

    def __enter__(self) -> Tracer:
        _clear(self.folder)
        try:
            for name, module in self._modules:
                self._hooks.append(module.register_forward_hook(self._hook_of(name)))
        except BaseException:
            self._remove_hooks()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove_hooks()
        index = {
            "version": VERSION,
            "framework": self.framework,
            "notes": self.notes,
            "not_called": [name for name, _ in self._modules if name not in self._calls],
            "outputs": self._outputs,
        }
        beside = os.path.join(self.folder, f"{INDEX}.{os.getpid()}")
        with open(beside, "w", encoding="utf-8") as file:
            json.dump(index, file, indent=1, allow_nan=False)
        os.replace(beside, os.path.join(self.folder, INDEX))

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _hook_of(self, name: str) -> Any:
        def hook(module: Any, _inputs: Any, output: Any) -> None:
            call = self._calls.get(name, 0)
            self._calls[name] = call + 1
            for part, tensor in _tensors(output, ""):
                self._record({"name": name, "class": type(module).__name__, "call": call, "output": part}, tensor)

        return hook

    def _record(self, row: dict[str, Any], tensor: Any) -> None:
        import numpy

        order = len(self._outputs)
        try:
            values = _to_numpy(tensor)
        except Exception as error:  # sparse, quantized: a trace never ends the script that it looks at
            why = str(error).partition("\n")[0]
            self.notes.append(f"{row['name'] or 'the network'}: an output has no plain values: {why}")
            return
        flat = numpy.ravel(values)
        step = max(1, -(-flat.size // self._most_values))
        numpy.save(os.path.join(self.folder, f"{order}.npy"), flat[::step])
        dtype = str(tensor.dtype).rpartition(".")[2].lower()
        row.update(order=order, shape=list(values.shape), dtype=dtype, step=step, **_statistics(flat))
        self._outputs.append(row)


class _MindSporeTracer(Tracer):
    """A compiled network calls no hook, so nothing is compiled meanwhile: no graph mode, no functions with @jit."""

    def __enter__(self) -> Tracer:
        import mindspore

        super().__enter__()
        self._is_graph = mindspore.get_context("mode") == mindspore.GRAPH_MODE
        self._jit = os.environ.get("MS_JIT")
        os.environ["MS_JIT"] = "0"  # MindSpore looks at it in every call of such a function
        if self._is_graph:
            mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
            self.notes.append("recorded in PyNative mode: graph mode shows no cell's output, and may round otherwise")
        return self

    def __exit__(self, *error: object) -> None:
        import mindspore

        if self._jit is None:
            del os.environ["MS_JIT"]
        else:
            os.environ["MS_JIT"] = self._jit
        if self._is_graph:
            mindspore.set_context(mode=mindspore.GRAPH_MODE)
        super().__exit__(*error)


def trace(network: Any, folder: str, most_values: int = MOST_VALUES) -> Tracer:
    """Record what every cell of a MindSpore network returns: `with trace(network, "ms_trace"): network(x)`."""
    return _MindSporeTracer(list(network.cells_and_names()), folder, "mindspore", most_values)


def torch_trace(network: Any, folder: str, most_values: int = MOST_VALUES) -> Tracer:
    """Record what every module of a PyTorch network returns: `with torch_trace(network, "torch_trace"): network(x)`."""
    return Tracer(list(network.named_modules()), folder, "torch", most_values)


def _clear(folder: str) -> None:
    """Make the folder, or empty it of an earlier trace; a folder of something else is refused."""
    os.makedirs(folder, exist_ok=True)
    found = os.listdir(folder)
    if found and INDEX not in found:
        raise ValueError(f"{folder}: holds other files than a trace. Name a folder that is empty or not there yet.")
    for name in found:
        if name.startswith(INDEX) or name.endswith(".npy"):
            os.remove(os.path.join(folder, name))
    with open(os.path.join(folder, INDEX), "w", encoding="utf-8"):
        pass  # marks the folder as a trace, in case the script is killed


def _tensors(output: Any, place: str) -> Iterator[tuple[str, Any]]:
    """The tensors of an output, each with its place in it: empty for the output itself, 0.key for one inside."""
    if hasattr(output, "shape") and hasattr(output, "dtype"):
        yield place, output
    elif isinstance(output, (list, tuple, dict)):
        inner = output.items() if isinstance(output, dict) else enumerate(output)
        for key, value in inner:
            yield from _tensors(value, f"{place}.{key}" if place else str(key))


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
