"""trace: what each cell of a network computes, recorded in a folder for `mslaunch trace compare`.

MindSpore and PyTorch are recorded alike, each in an environment that need not have the other."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from contextlib import ExitStack, contextmanager

TYPE_CHECKING = False  # typing itself costs every rank 10 ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from typing import Any

    Eager = Callable[[list[str]], AbstractContextManager[None]]
    """Has nothing compiled run meanwhile, and adds to notes what the reader of the trace should know about it."""


GOLDEN = 0.6180339887498949  # multiples of this share of a length are spread evenly over it, however many there are


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
            step = find_step(flat.size, self._most_values)
            sample = flat
            if step > 1:
                sample = flat[numpy.arange(min(flat.size, self._most_values), dtype=numpy.int64) * step % flat.size]
            number = len(self._rows)
            numpy.save(os.path.join(self._folder, f"{number}.npy"), sample)
            row = {"values": number, "shape": list(values.shape), "dtype": dtype, "step": step}
            self._rows[key] = {**row, "kept": int(sample.size), **_statistics(flat)}
        return self._rows[key]


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
    statistics = (finite.mean(), finite.std(), finite.min(), finite.max(), numpy.linalg.norm(finite))
    # Where the squares of large float64 values overflow, there is no such number.
    numbers = [float(number) if numpy.isfinite(number) else None for number in statistics]
    return {**dict(zip(names, numbers)), "not_finite": int(wide.size - finite.size)}


INDEX = "trace.json"
VERSION = 2
MOST_VALUES = 1 << 18  # of a tensor with more, so many are kept, evenly spread
COMPILED = "_orig_mod"  # the name that torch.compile gives to a module inside its own
NO_VALUES = (AttributeError, NotImplementedError, TypeError)  # what is raised for a tensor that has no plain values
LONGEST = 300  # characters of an error that are kept


class Tracer:
    """Records what a network's modules are given and return, between `with` and its end."""

    def __init__(
        self, modules: list[tuple[str, Any]], folder: str, framework: str, most_values: int, eager: Eager
    ) -> None:
        if most_values < 1:
            raise ValueError(f"most_values must be 1 or more, got {most_values}.")
        self.folder = os.path.abspath(os.fspath(folder))  # the script may change its folder
        self.framework = framework
        self.notes: list[str] = []
        self._modules = modules
        self._files = ValueFiles(self.folder, most_values)
        self._inputs: list[dict[str, Any]] = []
        self._outputs: list[dict[str, Any]] = []
        self._begun: dict[str, int] = {}
        self._calls: dict[str, int] = {}
        self._eager = eager
        self._stack = ExitStack()

    def __enter__(self) -> Tracer:
        _clear(self.folder)
        with ExitStack() as stack:
            for name, module in self._modules:
                # Before the call: a module may write its output over its input.
                stack.callback(_register_before(module, self._input_hook_of(name)).remove)
                stack.callback(module.register_forward_hook(self._hook_of(name)).remove)
            stack.enter_context(self._eager(self.notes))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        self._stack.close()
        index = {
            "version": VERSION,
            "framework": self.framework,
            "ended_by": None if error is None else _describe(error),
            "notes": self.notes,
            "not_called": [name for name, _ in self._modules if name not in self._calls],
            "inputs": self._inputs,
            "outputs": self._outputs,
        }
        beside = os.path.join(self.folder, f"{INDEX}.{os.getpid()}")
        with open(beside, "w", encoding="utf-8") as file:
            json.dump(index, file, indent=1, allow_nan=False)
        os.replace(beside, os.path.join(self.folder, INDEX))

    def _input_hook_of(self, name: str) -> Any:
        def hook(module: Any, args: Any, kwargs: Any) -> None:
            self._record(self._inputs, self._begun, name, module, {**dict(enumerate(args)), **kwargs})

        return hook

    def _hook_of(self, name: str) -> Any:
        def hook(module: Any, _inputs: Any, output: Any) -> None:
            self._record(self._outputs, self._calls, name, module, output)

        return hook

    def _record(self, rows: list[dict[str, Any]], calls: dict[str, int], name: str, module: Any, tensors: Any) -> None:
        call = calls.get(name, 0)
        calls[name] = call + 1
        for place, tensor in _tensors(tensors, ""):
            try:
                values = self._files.save(tensor)
            except Exception as error:  # sparse, quantized: a trace never ends the script that it looks at
                if hasattr(tensor, "asnumpy") and not isinstance(error, NO_VALUES):
                    raise  # an operator's own: MindSpore raises it once, where values are asked for
                if rows is self._outputs:
                    why = str(error).partition("\n")[0]
                    self.notes.append(f"{name or 'the network'}: an output has no plain values: {why}")
                continue
            row = {"name": name, "class": type(module).__name__, "call": call, "place": place, "order": len(rows)}
            rows.append({**row, **values})


@contextmanager
def _mindspore_eager(notes: list[str]) -> Iterator[None]:
    """Have a network call its hooks, which a compiled one does not: no graph mode, no functions with @jit."""
    import mindspore

    is_graph = mindspore.get_context("mode") == mindspore.GRAPH_MODE
    jit = os.environ.get("MS_JIT")
    os.environ["MS_JIT"] = "0"  # MindSpore looks at it in every call of such a function
    if is_graph:
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
        notes.append("recorded in PyNative mode: graph mode shows no cell's output, and may round otherwise")
    yield
    if jit is None:
        del os.environ["MS_JIT"]
    else:
        os.environ["MS_JIT"] = jit
    if is_graph:
        mindspore.set_context(mode=mindspore.GRAPH_MODE)


@contextmanager
def _torch_eager(notes: list[str]) -> Iterator[None]:
    """Do so for PyTorch: what it has compiled calls no hook that is newer than it."""
    compiler: Any = None
    if "torch._dynamo" in sys.modules:  # nothing is compiled without it
        compiler = sys.modules["torch"].compiler
    if hasattr(compiler, "set_stance"):
        with compiler.set_stance("force_eager"):
            yield
    else:
        if compiler is not None:  # before PyTorch 2.6
            notes.append("what torch.compile has compiled may show no module's output: trace it uncompiled")
        yield


def trace(network: Any, folder: str, most_values: int = MOST_VALUES) -> Tracer:
    """Record what every cell of a MindSpore network computes: `with trace(network, "ms_trace"): network(x)`."""
    return Tracer(list(network.cells_and_names()), folder, "mindspore", most_values, _mindspore_eager)


def torch_trace(network: Any, folder: str, most_values: int = MOST_VALUES) -> Tracer:
    """Record what every module of a PyTorch network computes: `with torch_trace(network, "traced"): network(x)`."""
    return Tracer(_uncompiled(network.named_modules()), folder, "torch", most_values, _torch_eager)


def _uncompiled(modules: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """The modules by the names that they have without torch.compile; of a compiled one, the one inside."""
    uncompiled = {}
    for name, module in modules:
        uncompiled[".".join(part for part in name.split(".") if part != COMPILED)] = module
    return list(uncompiled.items())


def _register_before(module: Any, hook: Any) -> Any:
    try:
        return module.register_forward_pre_hook(hook, with_kwargs=True)
    except TypeError:  # older frameworks show positional arguments only
        return module.register_forward_pre_hook(lambda module, args: hook(module, args, {}))


def _describe(error: BaseException) -> str:
    why = str(error).strip().partition("\n")[0][:LONGEST]
    return f"{type(error).__name__}: {why}" if why else type(error).__name__


def _clear(folder: str) -> None:
    """Make the folder, or empty it of an earlier trace; a folder of something else is refused."""
    os.makedirs(folder, exist_ok=True)
    names = os.listdir(folder)
    if names and INDEX not in names:
        raise ValueError(f"{folder}: holds other files than a trace. Name a folder that is empty or not there yet.")
    for name in names:
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
