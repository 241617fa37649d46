"""Files of torch.save, zip and older: where each tensor of the state_dict lies. Needs no torch, and runs nothing."""

from __future__ import annotations

import io
import os
import re
import struct
import zipfile
from collections.abc import Callable, Iterable, Mapping, Set
from math import prod
from typing import Any

from mslaunch.checkpoint.formats.tensor import OTHER_ITEMS, MalformedFile, Part, Tensor
from mslaunch.checkpoint.moving.views import ITEMS, TensorView
from mslaunch.weights.pickled_values import Opaque, TensorRef
from mslaunch.weights.pickles import read_pickle

_MOST_TENSORS = 1 << 20
_MOST_LEVELS = 8
_SHOWN = 8
_WRAPPERS = (
    *("state_dict", "model_state_dict", "model", "module", "net", "network"),
    *("model_state", "net_state_dict", "network_state_dict", "network_weights", "params", "weights"),
)
"""Where programs keep the state_dict in what they save."""
_OPTIMIZER = {"state", "param_groups"}
_OPTIMIZER_NAME = re.compile(r"optim(izer)?s?(_(states?|dicts?|[a-z]|\d+))*")
_RANDOM = re.compile(r"(\w+_)?rng(_\w+)?")
"""How the state of random numbers is called, which is a tensor."""


def _find_state_dict(value: Any, key: str | None) -> dict[str, TensorRef]:
    """Return the tensors of the network; `key` names its state_dict where there are several."""
    tensors = _tensors(_by_key(value, key) if key else _state_dict(value, _holders(value, _is_tensor)))
    if not tensors:
        # An object in a file that holds no tensor: a whole model may be one.
        members = value.items() if isinstance(value, dict) else ()
        objects = (f"; {str(name)[:40]} is {member.words()}" for name, member in members if _is_object(member))
        raise MalformedFile(f"it holds no tensor{next(objects, '')}")
    if not any(all(tensor.shape) for tensor in tensors.values()):
        raise MalformedFile(
            "all of its tensors are empty: DeepSpeed ZeRO-3 keeps the weights elsewhere. "
            "Run zero_to_fp32.py, which DeepSpeed puts beside them, and import what it writes"
        )
    return tensors


def _by_key(value: Any, key: str) -> dict[Any, Any]:
    for step in key.split("."):
        members = value if isinstance(value, dict) else {}
        value = members.get(step)
        if value is None:
            names = ", ".join(str(name)[:40] for name in list(members)[:_SHOWN])
            more = " …" if len(members) > _SHOWN else ""
            raise MalformedFile(f"it holds no state_dict under {key}; its keys are {names or 'none'}{more}")
    if not isinstance(value, dict):
        raise MalformedFile(
            f"it holds no state_dict under {key}{_whole(value)}. Save model.state_dict() with torch.save"
        )
    return value


def _state_dict(value: Any, holders: Set[int], level: int = 0) -> dict[Any, Any]:
    """Follow the words of wrappers; tensors beside one, such as the best accuracy, are not the network's."""
    if not isinstance(value, dict):
        raise MalformedFile(f"it holds no state_dict{_whole(value)}. Save model.state_dict() with torch.save")
    if value.keys() >= _OPTIMIZER:
        raise MalformedFile("it holds an optimizer's state, no network's. Save model.state_dict() with torch.save")
    network = {name: member for name, member in value.items() if not _is_of_training(name, member)}
    inner = {name: member for name, member in network.items() if isinstance(member, dict) and id(member) in holders}
    beside = [member for member in network.values() if id(member) in holders and not isinstance(member, dict)]
    wrapper = next((name for name in _WRAPPERS if name in inner), None)
    is_top = level == 0
    are_numbers = all(isinstance(number, TensorRef) and number.shape in ((), (1,)) for number in beside)
    if level > _MOST_LEVELS or (beside and not (is_top and inner and (wrapper or are_numbers))):
        _check_optimizers(inner)
        return network if is_top else value
    if wrapper is not None:
        return _state_dict(inner[wrapper], holders, level + 1)
    _check_optimizers(inner)
    if len(inner) > 1:
        names = ", ".join(sorted(str(name)[:40] for name in inner)[:_SHOWN])
        raise MalformedFile(f"it holds several state_dicts ({names}). Say which one with --key")
    return next(iter(inner.values()), {})


def _is_of_training(name: Any, value: Any) -> bool:
    """Tell whether a value is the state of optimizers, by its keys, or that of random numbers, by its name."""
    if isinstance(value, (list, tuple)):
        return bool(value) and all(_is_state(name, state) for state in value)
    return _is_state(name, value)


def _is_state(name: Any, value: Any) -> bool:
    if isinstance(value, dict):
        return value.keys() >= _OPTIMIZER
    return isinstance(value, TensorRef) and _RANDOM.fullmatch(str(name)) is not None


def _check_optimizers(inner: Mapping[Any, Any]) -> None:
    """Refuse what is called as an optimizer's state is and has not its keys: it may be a part of the network."""
    for name in inner:
        if _OPTIMIZER_NAME.fullmatch(str(name)):
            raise MalformedFile(
                f"{name} holds tensors, and may be an optimizer's state or a part of the network. "
                f"Save model.state_dict() with torch.save, or name the state_dict with --key"
            )


def _holders(value: Any, kind: Callable[[Any], bool]) -> set[int]:
    """Return the ids of what is of a kind, and of the containers that hold such, at any depth; each is read once."""
    around: dict[int, list[int]] = {}
    holders: set[int] = set()
    queue, seen = [value], set[int]()
    while queue:
        here = queue.pop()
        if id(here) in seen:
            continue
        seen.add(id(here))
        if kind(here):
            holders.add(id(here))
        for _, member in _entries(here):
            around.setdefault(id(member), []).append(id(here))
            queue.append(member)
    above = list(holders)
    while above:
        for holder in around.get(above.pop(), ()):
            if holder not in holders:
                holders.add(holder)
                above.append(holder)
    return holders


def _entries(value: Any) -> Iterable[tuple[Any, Any]]:
    """The values in a container by their keys; in a list by their places."""
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, (list, tuple)) else ()


def _tensors(value: dict[Any, Any]) -> dict[str, TensorRef]:
    """The tensors of a state_dict, those of dicts and lists in it included; numbers and texts in it are left out."""
    holders = _holders(value, lambda member: _is_tensor(member) or _is_object(member))
    queue: list[tuple[str, Any, int]] = [("", value, 0)]
    tensors: dict[str, TensorRef] = {}
    count = 0
    seen = set[int]()  # a dict that stands in it twice would multiply, level by level
    while queue:
        prefix, here, level = queue.pop()
        if level > _MOST_LEVELS or id(here) in seen:
            raise MalformedFile(
                f"its containers are nested deeper than {_MOST_LEVELS} levels, or one stands in it twice"
            )
        seen.add(id(here))
        for key, member in _entries(here):
            name = f"{prefix}{key}"
            count += 1
            if count > _MOST_TENSORS:
                raise MalformedFile(f"over {_MOST_TENSORS} entries")
            if isinstance(member, TensorRef):
                if name in tensors:
                    raise MalformedFile(f"{name} stands in it twice")
                tensors[name] = member
            elif _is_object(member):
                raise MalformedFile(f"{prefix}{str(key)[:40]} is {member.words()}")
            elif id(member) in holders:
                queue.append((f"{name}.", member, level + 1))
    return tensors


def _whole(value: Any) -> str:
    return f" but {value.path[:80]}" if isinstance(value, Opaque) else ""


def _is_tensor(value: Any) -> bool:
    return isinstance(value, TensorRef)


def _is_object(value: Any) -> bool:
    return isinstance(value, Opaque) and value.may_hold_weights


_MOST_PICKLE = 64 << 20
_MOST_REPEATED = 64 << 20
"""Bytes that a view may make of fewer, by repeating them."""
_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_LOCAL_HEADER = struct.Struct("<4s22sHH")
_COUNT = struct.Struct("<q")
_ITEMS = {**ITEMS, **OTHER_ITEMS}


Stored = tuple[Any, Mapping[str, Part]]
"""What a file holds: its pickled value, and where each storage lies."""


def read(fd: int, size: int, key: str | None = None) -> dict[str, TensorView | Tensor]:
    """Read the description of a state_dict; `key` names it where the file holds several.

    A type that MindSpore's checkpoints do not have is returned as a tensor: it can be named and left out, not written.
    """
    head = os.pread(fd, 4, 0)
    value, storages = _read_zip(fd, size) if head == b"PK\x03\x04" else _read_older(fd, size, head)
    tensors = _find_state_dict(value, key)
    return {name: _view(name, tensor, storages, size) for name, tensor in tensors.items()}


def _read_zip(fd: int, size: int) -> Stored:
    try:
        with os.fdopen(os.dup(fd), "rb") as file, zipfile.ZipFile(file) as archive:
            entries = {entry.filename: entry for entry in archive.infolist()}
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, EOFError, OSError) as error:
        raise MalformedFile(f"truncated or no whole zip file: {error}") from None
    root = next((name.removesuffix("data.pkl") for name in entries if name.endswith("/data.pkl")), None)
    if root is None:
        raise MalformedFile("a zip file without data.pkl, so not from torch.save")
    if f"{root}constants.pkl" in entries:
        raise MalformedFile("a TorchScript program, not a state_dict. Save model.state_dict() with torch.save")
    order = entries.get(f"{root}byteorder")
    if order is not None and os.pread(fd, 3, _part(fd, order, size)[0]) == b"big":
        raise MalformedFile("its numbers are big-endian, which is not supported")
    at, length = _part(fd, entries[f"{root}data.pkl"], size)
    if length > _MOST_PICKLE:
        raise MalformedFile(f"its pickle is larger than {_MOST_PICKLE >> 20} MB")
    value, _ = read_pickle(io.BytesIO(os.pread(fd, length, at)))
    data = f"{root}data/"
    storages = {
        name.removeprefix(data): _part(fd, entry, size) for name, entry in entries.items() if name.startswith(data)
    }
    return value, storages


def _part(fd: int, entry: zipfile.ZipInfo, size: int) -> Part:
    """Where the bytes of an entry lie; they are stored as they are."""
    if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
        raise MalformedFile(f"{entry.filename} is compressed or encrypted, which torch.save does not do")
    header = os.pread(fd, _LOCAL_HEADER.size, max(0, min(entry.header_offset, size)))
    if len(header) < _LOCAL_HEADER.size or not header.startswith(b"PK\x03\x04"):
        raise MalformedFile(f"{entry.filename} does not lie where the zip file says")
    _, _, name, extra = _LOCAL_HEADER.unpack(header)
    at = entry.header_offset + _LOCAL_HEADER.size + name + extra
    if not 0 <= at <= at + entry.file_size <= size:
        raise MalformedFile(f"truncated: {entry.filename} ends at byte {at + entry.file_size}, the file at byte {size}")
    return at, entry.file_size


def _read_older(fd: int, size: int, head: bytes) -> Stored:
    """Read the format before torch 1.6: five pickles, then the storages one after the other."""
    if head[:1] != b"\x80":
        raise MalformedFile("neither a zip file nor a pickle, so not from torch.save")
    file = io.BytesIO(os.pread(fd, min(size, _MOST_PICKLE), 0))
    if read_pickle(file)[0] != _MAGIC:
        raise MalformedFile("a pickle, but not one of torch.save")
    if read_pickle(file)[0] != _PROTOCOL:
        raise MalformedFile("torch.save of an unknown version")
    system, _ = read_pickle(file)
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise MalformedFile("its numbers are big-endian, which is not supported")
    value, refs = read_pickle(file)
    keys, _ = read_pickle(file)
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise MalformedFile("it does not list its storages")
    sizes = {ref.key: _ITEMS.get(ref.dtype or "", 1) for ref in refs.values()}
    storages, at = {}, file.tell()
    for key in keys:
        count = os.pread(fd, _COUNT.size, at)
        length = _COUNT.unpack(count)[0] * sizes.get(key, 1) if len(count) == _COUNT.size else -1
        at += _COUNT.size
        if length < 0 or at + length > size:
            raise MalformedFile(f"truncated: storage {key[:40]} does not end in the file")
        storages[key] = (at, length)
        at += length
    return value, storages


def _view(name: str, tensor: TensorRef, storages: Mapping[str, Part], size: int) -> TensorView | Tensor:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise MalformedFile("a name that is no text") from None
    if tensor.pending:
        raise MalformedFile(
            f"{name} is a view whose values torch changes when it reads them ({tensor.pending}). "
            f"Save its .resolve_{tensor.pending}()"
        )
    ref, itemsize = tensor.storage, _ITEMS[tensor.dtype]
    if ref.key not in storages:
        raise MalformedFile(f"{name}: its storage {ref.key[:40]} is not in the file")
    at, length = storages[ref.key]
    last = tensor.offset + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.strides, strict=True))
    count = prod(tensor.shape)
    begin = ref.begin * itemsize
    if count and begin + (last + 1) * itemsize > length:
        raise MalformedFile(f"{name}: reaches to byte {begin + (last + 1) * itemsize} of a storage of {length}")
    if at + length > size:
        raise MalformedFile(f"truncated: {name} ends at byte {at + length}, the file at byte {size}")
    if count * itemsize > max(length, _MOST_REPEATED):
        raise MalformedFile(f"{name}: a view that makes {count * itemsize >> 20} MB of {length} bytes")
    if tensor.dtype in OTHER_ITEMS:
        first = at + begin + tensor.offset * itemsize
        return Tensor(name, tensor.dtype, tensor.shape, ((first, (last + 1 - tensor.offset) * itemsize * bool(count)),))
    if not count:
        return TensorView(((0, 0),), tensor.dtype, 0, tensor.shape, tensor.strides)
    return TensorView(((at + begin, length - begin),), tensor.dtype, tensor.offset, tensor.shape, tensor.strides)
