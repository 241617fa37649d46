"""What a pickle of torch.save may name and call, and the descriptions that stand for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mslaunch.checkpoint.tensor import MOST_DIMENSIONS, Malformed

SHOWN = 80
"""Of a name in a message."""
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


def known(path: str) -> Name:
    if path in _STORAGE_TYPES or path in _TYPE_NAMES or path in CALLS:
        return Name(path)
    raise Malformed(f"its pickle names {path[:SHOWN]!r}, which is no tensor, storage or container")


def kind_of(value: Any) -> str:
    return value.path[:SHOWN] if isinstance(value, Name) else f"a {type(value).__name__}"


def storage_of(words: Any) -> StorageRef:
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
        raise Malformed(f"its pickle makes a tensor of {kind_of(storage)}")
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
        raise Malformed(f"its pickle makes a parameter of {kind_of(tensor)}")
    return tensor


def _ordered(pairs: Any = ()) -> dict[Any, Any]:
    if not isinstance(pairs, (list, tuple)):
        raise Malformed(f"its pickle makes an OrderedDict of {kind_of(pairs)}")
    return {plain_key(key): value for key, value in pairs}


def plain_key(key: Any) -> Any:
    if isinstance(key, (str, int, float, bytes)) or key is None:
        return key
    raise Malformed(f"its pickle has a key that is {kind_of(key)}")  # hash() of a deep tuple would crash


def _sized(sizes: Any = ()) -> tuple[int, ...]:
    return _sizes(sizes)


def make_opaque(*arguments: Any) -> Opaque:
    del arguments
    return Opaque()


CALLS: dict[str, Callable[..., Any]] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor_of_type,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch.nn.parameter.Parameter": _parameter,
    "torch.Size": _sized,
    "torch.device": make_opaque,
    "collections.OrderedDict": _ordered,
}
"""What a pickle may call, and the description that this makes; none of them is really called."""
