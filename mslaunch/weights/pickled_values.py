"""What a pickle of torch.save may name and call, and the descriptions that stand for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mslaunch.checkpoint.formats.tensor import MOST_DIMENSIONS, OTHER_ITEMS, MalformedFile
from mslaunch.checkpoint.moving.views import ITEMS

_BUILTINS = (
    *("set", "frozenset", "bytearray", "bytes", "complex", "slice", "range", "xrange"),
    *("int", "long", "float", "bool", "str", "unicode", "list", "tuple", "dict", "object"),
)
_NUMPY_TYPES = (
    *("bool", "bool_", "str_", "bytes_", "float16", "float32", "float64", "longdouble", "complex64", "complex128"),
    *("int8", "int16", "int32", "int64", "longlong", "uint8", "uint16", "uint32", "uint64", "ulonglong"),
)
_LAYOUTS = ("strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc", "jagged")
_QUANTIZATIONS = (
    *("per_tensor_affine", "per_channel_affine", "per_tensor_symmetric", "per_channel_symmetric"),
    "per_channel_affine_float_qparams",
)
VALUES = frozenset(
    (
        *(f"{module}.{name}" for module in ("builtins", "__builtin__") for name in _BUILTINS),
        *(f"datetime.{name}" for name in ("date", "datetime", "time", "timedelta", "timezone")),
        *(f"pathlib.{name}" for name in ("Path", "PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")),
        *(f"pathlib._local.{name}" for name in ("Path", "PosixPath", "WindowsPath")),
        *("_codecs.encode", "collections.Counter", "decimal.Decimal", "fractions.Fraction", "uuid.UUID", "typing.Any"),
        *(f"numpy.{name}" for name in _NUMPY_TYPES),
        "_io.BytesIO",  # what Transformer Engine keeps as _extra_state
        *("numpy.dtype", "numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar"),
        *(f"torch.{name}" for name in (*_LAYOUTS, *_QUANTIZATIONS, "device", "dtype", "layout")),
        *("torch.serialization._get_layout", "torch.torch_version.TorchVersion", "torch.version.TorchVersion"),
    )
)
"""Small values, left out of a state_dict as numbers and texts are."""
_NUMPY_OBJECTS = (
    *(f"numpy.{core}.multiarray.{name}" for core in ("core", "_core") for name in ("_reconstruct", "_frombuffer")),
    *(f"numpy.{core}.numeric._frombuffer" for core in ("core", "_core")),
    *(f"numpy.random._pickle.__{name}_ctor" for name in ("randomstate", "generator", "bit_generator")),
    *("numpy.ndarray", "numpy.random.mtrand.RandomState", "numpy.random._generator.Generator"),
    *("numpy.random._mt19937.MT19937", "numpy.random._pcg64.PCG64", "numpy.random.bit_generator.SeedSequence"),
    "numpy.random.bit_generator.__pyx_unpickle_SeedSequence",
)
_TO_CPU = "Save it from the CPU: model.cpu().state_dict()"
OBJECTS = {
    "argparse.Namespace": None,
    "types.SimpleNamespace": None,
    "collections.deque": None,
    "easydict.EasyDict": None,
    "addict.addict.Dict": None,
    "yacs.config.CfgNode": None,
    "torch.Tensor": None,
    "torch.nn.parameter.Buffer": None,
    "torch._utils._rebuild_sparse_tensor": "A sparse tensor: save its .to_dense()",
    "torch._utils._rebuild_sparse_csr_tensor": "A sparse tensor: save its .to_dense()",
    "torch._utils._rebuild_nested_tensor": "A nested tensor: save its parts, one by one",
    "torch._utils._rebuild_qtensor": "A quantized tensor: save its .dequantize()",
    "torch._utils._rebuild_meta_tensor_no_storage": "A tensor of the meta device, which has no values",
    "torch._utils._rebuild_wrapper_subclass": "A part of a distributed tensor: save its .full_tensor()",
    "torch._utils._rebuild_device_tensor_from_numpy": _TO_CPU,
    "torch._utils._rebuild_xla_tensor": _TO_CPU,
    **dict.fromkeys(_NUMPY_OBJECTS, "Save it as a tensor: torch.from_numpy(array)"),
}
"""What may hold weights, so that a state_dict must not hold it; and what to do about it, where that is known."""
PACKAGES = (
    *("accelerate", "deepspeed", "detectron2", "diffusers", "fairseq", "hydra", "lightning", "lightning_fabric"),
    *("megatron", "mindspeed", "ml_collections", "mmcv", "mmdet", "mmengine", "omegaconf", "peft"),
    *("pytorch_lightning", "timm", "torch_npu"),
    *("torchmetrics", "torchvision", "transformers"),
    *("torch.nn.modules", "torch.optim", "torch.amp", "torch.cuda.amp", "torch.distributed.fsdp"),
    *("torch.distributed.tensor", "torch.distributed._tensor", "torch.distributed.device_mesh"),
)
"""Packages whose classes are objects too. Anything else in them, such as a function that loads files, is refused."""


def is_object(path: str) -> bool:
    """Tell whether a name is that of an object which is known to be harmless beside the weights."""
    if path in OBJECTS:
        return True
    parts = path.split(".")
    if not any(path.startswith(f"{package}.") for package in PACKAGES):
        return False
    plain = all(part.isidentifier() and not part.startswith("__") for part in parts)
    return plain and parts[-1].lstrip("_")[:1].isupper()


SHOWN = 80
SAVE_THE_WEIGHTS = "If you trust the file, load it in PyTorch and save only model.state_dict()"
_MOST_KEYS = 16
_LARGEST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class PickledName:
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
    pending: str | None = None
    """What torch does with the values when they are read: neg or conj; the storage holds them without that."""


@dataclass(frozen=True, slots=True, eq=False)
class Opaque:
    """A value or object that is known and of no use here, such as a device; what it holds is dropped."""

    path: str

    @property
    def may_hold_weights(self) -> bool:
        return self.path not in VALUES

    def words(self) -> str:
        """Say what it is and what to do, where a tensor is to be."""
        return f"{self.path[:SHOWN]}, which is no tensor. {OBJECTS.get(self.path) or SAVE_THE_WEIGHTS}"


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
    "QInt8Storage": "qint8",
    "QUInt8Storage": "quint8",
    "QInt32Storage": "qint32",
}
_STORAGE_MODULES = ("torch", "torch.cuda", "torch.npu", "torch_npu.npu")
_STORAGE_TYPES: dict[str, str | None] = {
    **{f"{module}.{name}": dtype for module in _STORAGE_MODULES for name, dtype in _STORAGES.items()},
    "torch.storage.UntypedStorage": None,
    "torch.UntypedStorage": None,
}
_TYPE_NAMES = {f"torch.{dtype.lower()}": dtype for dtype in (*ITEMS, *OTHER_ITEMS)}


def allowed_name(path: str) -> PickledName:
    """Return what stands for a name in the pickle, if it is one of the tables'."""
    if path in _STORAGE_TYPES or path in _TYPE_NAMES or path in CALLS or path in VALUES or is_object(path):
        return PickledName(path)
    raise MalformedFile(
        f"its pickle names {path[:SHOWN]!r}, which is no tensor, storage or container. {SAVE_THE_WEIGHTS}"
    )


def make_object(owner: Any) -> Opaque:
    """Return what stands for an object of a class."""
    if isinstance(owner, PickledName) and owner.path not in CALLS and (owner.path in VALUES or is_object(owner.path)):
        return Opaque(owner.path)
    raise MalformedFile(f"its pickle makes an object of {kind_of(owner)}, which is no part of a state_dict")


def call(callee: Any, arguments: Any) -> Any:
    """Return what stands for the result of a call; nothing is called but the descriptions of CALLS."""
    if not isinstance(callee, PickledName) or not isinstance(arguments, tuple):
        raise MalformedFile(f"its pickle calls {kind_of(callee)}")
    if callee.path in CALLS:
        return CALLS[callee.path](*arguments)
    if callee.path in VALUES or is_object(callee.path):
        return make_opaque(callee.path, arguments)
    raise MalformedFile(f"its pickle calls {callee.path[:SHOWN]}, which is no part of a state_dict")


def make_opaque(path: str, arguments: Sequence[Any]) -> Opaque:
    """Return what stands for a value that is made of others; a set of tensors would be lost without a word."""
    made = Opaque(path)
    items = (
        item for argument in arguments for item in (argument if isinstance(argument, (list, tuple)) else (argument,))
    )
    if not made.may_hold_weights and any(isinstance(item, TensorRef) for item in items):
        raise MalformedFile(f"its pickle puts a tensor into {path}. {SAVE_THE_WEIGHTS}")
    return made


def kind_of(value: Any) -> str:
    return value.path[:SHOWN] if isinstance(value, PickledName) else f"a {type(value).__name__}"


def refer(reference: Any) -> StorageRef | PickledName:
    """Read what a pickle refers to outside: `("storage", type, key, device, count)`; old files add a view.

    In old files it may also be the class of a module, with its source.
    """
    kind = reference[0] if isinstance(reference, tuple) and reference else None
    if kind == "module" and len(reference) == 4 and isinstance(reference[1], PickledName):
        return reference[1]
    if kind != "storage" or len(reference) not in (5, 6):
        raise MalformedFile("its pickle refers to something outside that is no storage")
    kind, key, _, count = reference[1:5]
    if not isinstance(kind, PickledName) or kind.path not in _STORAGE_TYPES or not isinstance(key, str):
        raise MalformedFile("its pickle describes a storage without type or key")
    begin = 0
    if len(reference) == 6 and reference[5] is not None:
        _, begin, count = reference[5]
    return StorageRef(key, _STORAGE_TYPES[kind.path], _size(count), _size(begin))


def _size(number: Any) -> int:
    if type(number) is not int or not 0 <= number <= _LARGEST:
        raise MalformedFile("its pickle has a size that is no whole number from 0 on")
    return number


def _sizes(numbers: Any = ()) -> tuple[int, ...]:
    if not isinstance(numbers, (tuple, list)) or len(numbers) > MOST_DIMENSIONS:
        raise MalformedFile(f"its pickle has a shape that is no tuple of at most {MOST_DIMENSIONS} numbers")
    return tuple(_size(number) for number in numbers)


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *more: Any) -> TensorRef:
    if not isinstance(storage, StorageRef):
        raise MalformedFile(f"its pickle makes a tensor of {kind_of(storage)}")
    if storage.dtype is None:
        raise MalformedFile("its pickle has a tensor without a type")
    return _view(storage, storage.dtype, offset, shape, strides, more)


def _tensor_of_type(
    storage: Any, offset: Any, shape: Any, strides: Any, grad: Any, hooks: Any, dtype: Any, *more: Any
) -> TensorRef:
    del grad, hooks
    if not isinstance(storage, StorageRef) or not isinstance(dtype, PickledName) or dtype.path not in _TYPE_NAMES:
        raise MalformedFile("its pickle has a tensor without storage or type")
    return _view(storage, _TYPE_NAMES[dtype.path], offset, shape, strides, more)


def _view(storage: StorageRef, dtype: str, offset: Any, shape: Any, strides: Any, more: tuple[Any, ...]) -> TensorRef:
    sizes, steps = _sizes(shape), _sizes(strides)
    if len(sizes) != len(steps):
        raise MalformedFile("its pickle has a tensor with more dimensions than strides")
    # What torch calls metadata is a dict, behind requires_grad and hooks.
    metadata = [value for value in more if isinstance(value, dict)]
    pending = (name for value in metadata for name in ("neg", "conj") if value.get(name))
    return TensorRef(storage, dtype, _size(offset), sizes, steps, next(pending, None))


def _parameter(tensor: Any, *more: Any) -> TensorRef | Opaque:
    del more
    if not isinstance(tensor, (TensorRef, Opaque)):
        raise MalformedFile(f"its pickle makes a parameter of {kind_of(tensor)}")
    return tensor


def _of_class(make: Any, owner: Any, arguments: Any, *more: Any) -> Any:
    """Return the tensor inside one that has attributes or a class of its own."""
    del owner, more
    if not isinstance(make, PickledName) or make.path in _OF_CLASS:  # each of these would be a level of recursion
        raise MalformedFile(f"its pickle makes a tensor by {kind_of(make)}")
    return call(make, arguments)


def _ordered(pairs: Any = ()) -> dict[Any, Any]:
    if not isinstance(pairs, (list, tuple)):
        raise MalformedFile(f"its pickle makes an OrderedDict of {kind_of(pairs)}")
    return {plain_key(key): value for key, value in pairs}


def plain_key(key: Any) -> Any:
    """Return a key whose hash is cheap: that of a deep tuple would crash."""
    if _is_plain(key) or (isinstance(key, tuple) and len(key) <= _MOST_KEYS and all(map(_is_plain, key))):
        return key
    raise MalformedFile(f"its pickle has a key that is {kind_of(key)}")


def _is_plain(key: Any) -> bool:
    return key is None or isinstance(key, (str, int, float, bytes, PickledName, Opaque))


def _default(*factory: Any) -> dict[Any, Any]:
    """Return what stands for a defaultdict; its items follow."""
    if len(factory) > 1:
        raise MalformedFile("its pickle makes a defaultdict of more than a factory")
    return {}


_OF_CLASS = ("torch._tensor._rebuild_from_type", "torch._tensor._rebuild_from_type_v2")
CALLS: dict[str, Callable[..., Any]] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor_of_type,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch.nn.parameter.Parameter": _parameter,
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": _parameter,
    "torch_npu.utils.storage._rebuild_npu_tensor": _tensor,
    **dict.fromkeys(_OF_CLASS, _of_class),
    "torch.Size": _sizes,
    "collections.OrderedDict": _ordered,
    "collections.defaultdict": _default,
}
"""What a pickle may call, and the description that this makes; none of them is really called."""
