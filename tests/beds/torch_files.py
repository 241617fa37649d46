"""Files as torch.save writes them, made without torch; and torch itself, in an environment of its own, as a witness."""

from __future__ import annotations

import struct
import subprocess
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

TORCH_PYTHON = ROOT / ".venv-torch" / "bin" / "python"
needs_torch = pytest.mark.skipif(
    not (ROOT / ".venv-torch" / ".ready").exists(), reason="torch is not installed (make .venv-torch/.ready)"
)
MAGIC = 0x1950A86A20F9469CFC6C
STORAGES = {"Float32": "FloatStorage", "Int64": "LongStorage", "Int8": "CharStorage", "BFloat16": "BFloat16Storage"}


class Instruction:
    """Something that only a pickle can say."""

    def make(self) -> bytes:
        raise NotImplementedError


@dataclass(frozen=True)
class Global(Instruction):
    """A name that a pickle imports."""

    path: str

    def make(self) -> bytes:
        module, _, name = self.path.rpartition(".")
        return f"c{module}\n{name}\n".encode()


@dataclass(frozen=True)
class Call(Instruction):
    """What a pickle calls."""

    callee: Any
    arguments: tuple[Any, ...] = ()

    def make(self) -> bytes:
        return instructions(self.callee) + instructions(self.arguments) + b"R"


@dataclass(frozen=True)
class Persistent(Instruction):
    """What a pickle refers to outside."""

    words: Any

    def make(self) -> bytes:
        return instructions(self.words) + b"Q"


@dataclass(frozen=True)
class Raw(Instruction):
    """Instructions as they are."""

    data: bytes

    def make(self) -> bytes:
        return self.data


@dataclass(frozen=True)
class Saved(Instruction):
    """A tensor as a view of a storage."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    offset: int = 0
    count: int | None = None

    def call(self) -> Call:
        dense = tuple(prod(self.shape[index + 1 :]) for index in range(len(self.shape)))
        count = prod(self.shape) if self.count is None else self.count
        words = ("storage", Global(f"torch.{STORAGES[self.dtype]}"), self.key, "cpu", count)
        view = (Persistent(words), self.offset, self.shape, dense if self.strides is None else self.strides)
        return Call(Global("torch._utils._rebuild_tensor_v2"), (*view, False, Call(Global("collections.OrderedDict"))))

    def make(self) -> bytes:
        return self.call().make()


def instructions(value: Any) -> bytes:
    """The instructions that make a value, without an end."""
    if isinstance(value, Instruction):
        return value.make()
    if isinstance(value, dict):
        return b"}(" + b"".join(instructions(key) + instructions(one) for key, one in value.items()) + b"u"
    if isinstance(value, (tuple, list)):
        return b"(" + b"".join(map(instructions, value)) + (b"t" if isinstance(value, tuple) else b"l")
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if isinstance(value, int):
        data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        return b"\x8a" + bytes([len(data)]) + data
    text = str(value).encode()
    return b"X" + struct.pack("<I", len(text)) + text


def pickled(value: Any) -> bytes:
    return b"\x80\x02" + instructions(value) + b"."


def save_zip(path: Path, value: Any, storages: Mapping[str, bytes], **more: bytes) -> Path:
    """Write a file as torch.save does since 1.6."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", value if isinstance(value, bytes) else pickled(value))
        for name, data in {"byteorder": b"little", **more}.items():
            archive.writestr(f"archive/{name}", data)
        for key, data in storages.items():
            archive.writestr(f"archive/data/{key}", data)
        archive.writestr("archive/version", b"3\n")
    return path


def save_older(path: Path, value: Any, storages: Mapping[str, tuple[int, bytes]]) -> Path:
    """Write a file as torch.save did before; storages are the number of their elements and their bytes."""
    system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    heads = b"".join(map(pickled, (MAGIC, 1001, system, value, list(storages))))
    path.write_bytes(heads + b"".join(struct.pack("<q", count) + data for count, data in storages.values()))
    return path


def save_state(path: Path, content: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> Path:
    """Write a state_dict of type, shape and bytes of each tensor."""
    value = {name: Saved(name, dtype, shape) for name, (dtype, shape, _) in content.items()}
    return save_zip(path, value, {name: data for name, (_, _, data) in content.items()})


def ask_torch(script: str, *args: object) -> str:
    """Run a script in the environment that has torch."""
    done = subprocess.run([TORCH_PYTHON, "-c", script, *map(str, args)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout
