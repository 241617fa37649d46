"""Reads a pickle as a description: tensors, storages and containers. Nothing is imported or called."""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mslaunch.checkpoint.tensor import MOST_DIMENSIONS, Malformed

MOST_OPCODES = 4 << 20
MOST_MARKS = 1000
_SHOWN = 80
_LARGEST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Name:
    """A name that the pickle refers to, as `torch._utils._rebuild_tensor_v2`; it stands for itself."""

    path: str


@dataclass(frozen=True, slots=True)
class StorageRef:
    """The bytes of one or more tensors, as the pickle names them."""

    key: str
    dtype: str | None
    """None where the tensors tell their own types."""
    count: int
    """Elements of this type, or bytes."""
    begin: int = 0
    """Elements before it in the storage that holds it."""


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor: a view of a storage, in elements."""

    storage: StorageRef
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Opaque:
    """A value that is known and of no use here, such as a device."""


_DTYPES = {
    "float64": "Float64",
    "float32": "Float32",
    "float16": "Float16",
    "bfloat16": "BFloat16",
    "float8_e4m3fn": "Float8_e4m3fn",
    "float8_e5m2": "Float8_e5m2",
    "int64": "Int64",
    "int32": "Int32",
    "int16": "Int16",
    "int8": "Int8",
    "uint64": "UInt64",
    "uint32": "UInt32",
    "uint16": "UInt16",
    "uint8": "UInt8",
    "bool": "Bool",
}
_OTHER_DTYPES = ("complex32", "complex64", "complex128", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
_STORAGES = {
    "DoubleStorage": "Float64",
    "FloatStorage": "Float32",
    "HalfStorage": "Float16",
    "BFloat16Storage": "BFloat16",
    "LongStorage": "Int64",
    "IntStorage": "Int32",
    "ShortStorage": "Int16",
    "CharStorage": "Int8",
    "ByteStorage": "UInt8",
    "BoolStorage": "Bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}
_STORAGE_TYPES: dict[str, str | None] = {
    **{f"{module}.{name}": dtype for module in ("torch", "torch.cuda") for name, dtype in _STORAGES.items()},
    "torch.storage.UntypedStorage": None,
    "torch.UntypedStorage": None,
}
_TYPE_NAMES = {f"torch.{name}": dtype for name, dtype in _DTYPES.items()} | {f"torch.{n}": n for n in _OTHER_DTYPES}


def read_pickle(file: io.BytesIO) -> Any:
    """Read one pickle up to its end; whatever is no tensor, storage or container is refused by its name."""
    return _Reader().read(file)


class _Reader:
    """The stack machine of a pickle, over descriptions."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def read(self, file: io.BytesIO) -> Any:
        try:
            for count, (opcode, argument, _) in enumerate(pickletools.genops(file)):
                if count > MOST_OPCODES:
                    raise Malformed(f"its pickle has over {MOST_OPCODES:,} instructions")
                if opcode.name == "STOP":
                    return self.stack.pop()
                self.step(opcode.name, argument)
        except Malformed:
            raise
        except (ValueError, IndexError, KeyError, TypeError, OverflowError, AttributeError) as error:
            words = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else str(error)
            raise Malformed(f"its pickle cannot be read: {words[:_SHOWN]}") from None
        raise Malformed("its pickle has no end")

    def step(self, name: str, argument: Any) -> None:
        if name in _VALUES:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif name in _STEPS:
            _STEPS[name](self, argument)
        elif name not in ("PROTO", "FRAME"):
            raise Malformed(f"its pickle uses {name}, which a state_dict does not need")

    def mark(self, _: Any) -> None:
        if len(self.marks) >= MOST_MARKS:
            raise Malformed(f"its pickle is nested deeper than {MOST_MARKS} levels")
        self.marks.append(self.stack)
        self.stack = []

    def to_mark(self) -> list[Any]:
        items = self.stack
        self.stack = self.marks.pop()
        return items

    def last(self, count: int) -> tuple[Any, ...]:
        if len(self.stack) < count:
            raise IndexError("a value is missing")
        items = tuple(self.stack[-count:])
        del self.stack[-count:]
        return items

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict):
            raise Malformed(f"its pickle sets items of {_kind(target)}")
        if len(items) % 2:
            raise IndexError("a key without value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[_key(key)] = value

    def append_items(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise Malformed(f"its pickle appends to {_kind(self.stack[-1])}")
        self.stack[-1].extend(items)

    def add_items(self, items: list[Any]) -> None:
        del items  # sets are of no use here
        if not isinstance(self.stack[-1], Opaque):
            raise Malformed(f"its pickle adds to {_kind(self.stack[-1])}")

    def put(self, index: int | None) -> None:
        self.memo[len(self.memo) if index is None else index] = self.stack[-1]

    def global_name(self, words: str) -> None:
        self.stack.append(_known(words.replace(" ", ".")))

    def stack_global(self, _: Any) -> None:
        module, name = self.last(2)
        if not (isinstance(module, str) and isinstance(name, str)):
            raise Malformed("its pickle names something with what is no text")
        self.stack.append(_known(f"{module}.{name}"))

    def reduce(self, _: Any) -> None:
        callee, arguments = self.last(2)
        if not isinstance(callee, Name) or not isinstance(arguments, tuple):
            raise Malformed(f"its pickle calls {_kind(callee)}")
        if callee.path not in _CALLS:
            raise Malformed(f"its pickle calls {callee.path[:_SHOWN]}, which is no part of a state_dict")
        self.stack.append(_CALLS[callee.path](*arguments))

    def build(self, _: Any) -> None:
        """Leave out the attributes of a state_dict (its versions) or of a tensor."""
        target, _state = self.last(2)
        if not isinstance(target, (dict, TensorRef)):
            raise Malformed(f"its pickle sets attributes of {_kind(target)}")
        self.stack.append(target)

    def persistent(self, _: Any) -> None:
        self.stack.append(_storage(self.stack.pop()))

    def new_object(self, owner: Any) -> None:
        raise Malformed(f"its pickle makes an object of {_kind(owner)}, which is no part of a state_dict")


def _known(path: str) -> Name:
    if path in _STORAGE_TYPES or path in _TYPE_NAMES or path in _CALLS:
        return Name(path)
    raise Malformed(f"its pickle names {path[:_SHOWN]!r}, which is no tensor, storage or container")


def _kind(value: Any) -> str:
    return value.path[:_SHOWN] if isinstance(value, Name) else f"a {type(value).__name__}"


def _storage(words: Any) -> StorageRef:
    """Read what a pickle says of a storage: `("storage", type, key, device, count)`, and a view in old files."""
    if not isinstance(words, tuple) or len(words) not in (5, 6) or words[0] != "storage":
        raise Malformed("its pickle refers to something outside that is no storage")
    kind, key, _, count = words[1:5]
    if not isinstance(kind, Name) or kind.path not in _STORAGE_TYPES or not isinstance(key, str):
        raise Malformed("its pickle describes a storage without type or key")
    begin = 0
    if len(words) == 6 and words[5] is not None:
        _, begin, count = words[5]
    return StorageRef(key, _STORAGE_TYPES[kind.path], _size(count), _size(begin))


def _size(number: Any) -> int:
    if type(number) is not int or not 0 <= number <= _LARGEST:
        raise Malformed("its pickle has a size that is no whole number from 0 on")
    return number


def _sizes(numbers: Any) -> tuple[int, ...]:
    if not isinstance(numbers, (tuple, list)) or len(numbers) > MOST_DIMENSIONS:
        raise Malformed(f"its pickle has a shape that is no tuple of at most {MOST_DIMENSIONS} numbers")
    return tuple(_size(number) for number in numbers)


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *more: Any) -> TensorRef:
    if not isinstance(storage, StorageRef):
        raise Malformed(f"its pickle makes a tensor of {_kind(storage)}")
    del more  # requires_grad, hooks, metadata
    if storage.dtype is None:
        raise Malformed("its pickle has a tensor without a type")
    return _view(storage, storage.dtype, offset, shape, strides)


def _tensor_of_type(
    storage: Any, offset: Any, shape: Any, strides: Any, grad: Any, hooks: Any, dtype: Any, *more: Any
) -> TensorRef:
    del grad, hooks, more
    if not isinstance(storage, StorageRef) or not isinstance(dtype, Name) or dtype.path not in _TYPE_NAMES:
        raise Malformed("its pickle has a tensor without storage or type")
    return _view(storage, _TYPE_NAMES[dtype.path], offset, shape, strides)


def _view(storage: StorageRef, dtype: str, offset: Any, shape: Any, strides: Any) -> TensorRef:
    sizes, steps = _sizes(shape), _sizes(strides)
    if len(sizes) != len(steps):
        raise Malformed("its pickle has a tensor with more dimensions than strides")
    return TensorRef(storage, dtype, _size(offset), sizes, steps)


def _parameter(tensor: Any, *more: Any) -> TensorRef:
    del more
    if not isinstance(tensor, TensorRef):
        raise Malformed(f"its pickle makes a parameter of {_kind(tensor)}")
    return tensor


def _ordered(pairs: Any = ()) -> dict[Any, Any]:
    if not isinstance(pairs, (list, tuple)):
        raise Malformed(f"its pickle makes an OrderedDict of {_kind(pairs)}")
    return {_key(key): value for key, value in pairs}


def _key(key: Any) -> Any:
    if isinstance(key, (str, int, float, bytes)) or key is None:
        return key
    raise Malformed(f"its pickle has a key that is {_kind(key)}")  # hash() of a deep tuple would crash


def _sized(sizes: Any = ()) -> tuple[int, ...]:
    return _sizes(sizes)


def _opaque(*arguments: Any) -> Opaque:
    del arguments
    return Opaque()


_CALLS: dict[str, Callable[..., Any]] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor_of_type,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch.nn.parameter.Parameter": _parameter,
    "torch.Size": _sized,
    "torch.device": _opaque,
    "collections.OrderedDict": _ordered,
}
"""What a pickle may call, and the description that this makes; none of them is really called."""

_VALUES = frozenset(
    (
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
        *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    )
)
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
    "EMPTY_SET": Opaque,
}


def _set_item(reader: _Reader, _: Any) -> None:
    reader.set_items(list(reader.last(2)))


def _make_dict(reader: _Reader, _: Any) -> None:
    items = reader.to_mark()
    reader.stack.append({})
    reader.set_items(items)


def _drop(reader: _Reader, _: Any) -> None:
    reader.last(1)


def _drop_to_mark(reader: _Reader, _: Any) -> None:
    reader.to_mark()


def _push(make: Callable[[_Reader, Any], Any]) -> Callable[[_Reader, Any], None]:
    def push(reader: _Reader, argument: Any) -> None:
        value = make(reader, argument)  # first: this may change which stack is the present one
        reader.stack.append(value)

    return push


_STEPS: dict[str, Callable[[_Reader, Any], None]] = {
    "MARK": _Reader.mark,
    "POP": _drop,
    "POP_MARK": _drop_to_mark,
    "DUP": _push(lambda reader, _: reader.stack[-1]),
    "TUPLE": _push(lambda reader, _: tuple(reader.to_mark())),
    "TUPLE1": _push(lambda reader, _: reader.last(1)),
    "TUPLE2": _push(lambda reader, _: reader.last(2)),
    "TUPLE3": _push(lambda reader, _: reader.last(3)),
    "LIST": _push(lambda reader, _: reader.to_mark()),
    "DICT": _make_dict,
    "FROZENSET": _push(lambda reader, _: _opaque(reader.to_mark())),
    "APPEND": lambda reader, _: reader.append_items(list(reader.last(1))),
    "APPENDS": lambda reader, _: reader.append_items(reader.to_mark()),
    "SETITEM": _set_item,
    "SETITEMS": lambda reader, _: reader.set_items(reader.to_mark()),
    "ADDITEMS": lambda reader, _: reader.add_items(reader.to_mark()),
    "PUT": _Reader.put,
    "BINPUT": _Reader.put,
    "LONG_BINPUT": _Reader.put,
    "MEMOIZE": _Reader.put,
    "GET": _push(lambda reader, index: reader.memo[index]),
    "BINGET": _push(lambda reader, index: reader.memo[index]),
    "LONG_BINGET": _push(lambda reader, index: reader.memo[index]),
    "GLOBAL": _Reader.global_name,
    "STACK_GLOBAL": _Reader.stack_global,
    "INST": lambda reader, words: reader.new_object(_known(words.replace(" ", "."))),
    "REDUCE": _Reader.reduce,
    "BUILD": _Reader.build,
    "BINPERSID": _Reader.persistent,
    "NEWOBJ": lambda reader, _: reader.new_object(reader.last(2)[0]),
    "NEWOBJ_EX": lambda reader, _: reader.new_object(reader.last(3)[0]),
    "OBJ": lambda reader, _: reader.new_object(reader.to_mark()[0]),
}
