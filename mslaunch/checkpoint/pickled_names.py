"""Names beside the weights in a pickle of torch.save that are known to be harmless; none of them is imported."""

from __future__ import annotations

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
"""Packages whose classes are objects too. What is no class, such as a function that loads, is refused."""


def is_object(path: str) -> bool:
    """Tell whether a name is that of an object which is known to be harmless beside the weights."""
    return path in OBJECTS or _is_class(path)


def _is_class(path: str) -> bool:
    parts = path.split(".")
    if not any(path.startswith(f"{package}.") for package in PACKAGES):
        return False
    plain = all(part.isidentifier() and not part.startswith("__") for part in parts)
    return plain and parts[-1].lstrip("_")[:1].isupper()
