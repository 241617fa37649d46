"""How fast PyTorch's weights are imported, beside `cp -r` of the same bytes and torch.load with save_checkpoint."""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path

import numpy as np

from bench.checkpoints import beside_copy, parameters, peak_memory, remove
from bench.measure import MSLAUNCH, TORCHRUN, Row, seconds
from mslaunch.checkpoint.formats.safetensors import frame
from mslaunch.checkpoint.formats.tensor import Tensor
from mslaunch.checkpoint.sharding.strategy import Layout, write_strategy

FILES, RANKS = 8, 8
TORCH_PYTHON = str(Path(TORCHRUN).parent / "python")
LOAD = """
import sys
import torch
state = torch.load(sys.argv[1], weights_only=True)
for name, tensor in state.items():
    tensor.numpy().tofile(sys.argv[2] + "/" + name)
"""
SAVE = """
import sys
import mindspore
import numpy as np
from mindspore import Parameter, Tensor
shapes = {shapes}
state = [
    {{"name": name, "data": Parameter(Tensor(np.fromfile(sys.argv[1] + "/" + name, np.float32).reshape(shape)))}}
    for name, shape in shapes.items()
]
mindspore.save_checkpoint(state, sys.argv[2])
"""
"""The two live in environments of their own, so values pass through memory files; both parts are counted."""


@contextmanager
def weights() -> Iterator[Path]:
    """A folder with 2 GB in 8 .safetensors, the same in a .pth, and a strategy of 8 ranks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        noise = np.random.default_rng(1).bytes(80 << 20)
        everything = [(name, shape) for name, shape, _ in parameters()]
        for number in range(FILES):
            some = everything[number::FILES]
            path = folder / f"hf/model-{number + 1:05d}-of-{FILES:05d}.safetensors"
            path.parent.mkdir(exist_ok=True)
            _write_safetensors(path, some, noise)
        (folder / "pth").mkdir()
        _write_pth(folder / "pth/net.pth", everything, noise)
        cuts = [(name, _layout(len(shape), cut)) for name, shape, cut in parameters()]
        (folder / "s.ckpt").write_bytes(write_strategy(cuts))
        yield folder


def _layout(dimensions: int, cut: int | None) -> Layout:
    return Layout((RANKS,), tuple((0,) if index == cut else () for index in range(dimensions)))


def _write_safetensors(path: Path, some: list[tuple[str, tuple[int, ...]]], noise: bytes) -> None:
    layout = frame([Tensor(name, "Float32", shape, ((0, prod(shape) * 4),)) for name, shape in some], "pt")
    with path.open("wb") as file:
        for at, head in layout.heads:
            os.pwrite(file.fileno(), head, at)
        for parts in layout.places.values():
            for at, length in parts:
                _put(file.fileno(), noise, at, length)


def _put(fd: int, noise: bytes, at: int, length: int) -> None:
    for begin in range(0, length, len(noise)):
        os.pwrite(fd, noise[: min(len(noise), length - begin)], at + begin)


def _write_pth(path: Path, everything: list[tuple[str, tuple[int, ...]]], noise: bytes) -> None:
    """Write what torch.save would: a pickle of views, and a storage for each."""
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
        archive.writestr("net/data.pkl", b"\x80\x02}(" + b"".join(map(_entry, everything)) + b"u.")
        archive.writestr("net/byteorder", "little")
        for name, shape in everything:
            with archive.open(f"net/data/{name}", "w", force_zip64=True) as file:
                for begin in range(0, prod(shape) * 4, len(noise)):
                    file.write(noise[: min(len(noise), prod(shape) * 4 - begin)])
        archive.writestr("net/version", "3\n")


def _entry(row: tuple[str, tuple[int, ...]]) -> bytes:
    name, shape = row
    strides = tuple(prod(shape[index + 1 :]) for index in range(len(shape)))
    words = _text("storage") + b"ctorch\nFloatStorage\n" + _text(name) + _text("cpu") + _number(prod(shape))
    view = b"K\x00" + b"".join(b"(" + b"".join(map(_number, sizes)) + b"t" for sizes in (shape, strides))
    hooks = b"\x89ccollections\nOrderedDict\n)R"
    return _text(name) + b"ctorch._utils\n_rebuild_tensor_v2\n((" + words + b"tQ" + view + hooks + b"tR"


def _text(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text)) + text.encode()


def _number(number: int) -> bytes:
    return b"J" + struct.pack("<i", number)


def import_weights() -> Iterator[Row]:
    """2 GB to one .ckpt and to 8 ranks' shards, from .safetensors and from .pth."""
    with weights() as folder:
        for source, limit in (("hf", 1.6), ("pth", 2.0)):
            to_file = [MSLAUNCH, "ckpt", "import", source, "--to", "out.ckpt"]
            to_ranks = [MSLAUNCH, "ckpt", "import", source, "--strategy", "s.ckpt", "-o", "out"]
            for what, command, made in ((".ckpt", to_file, "out.ckpt"), ("8 ranks", to_ranks, "out")):
                name = f"import 2 GB of {source} to {what}"
                yield beside_copy(folder, source, command, made).row(name, limit)
                peak = peak_memory(command, folder)
                yield Row(name + ", peak memory", f"{peak:.0f} MB", "", peak, 300.0, "MB")
                remove(folder / made)
        yield _beside_torch(folder)


def _beside_torch(folder: Path) -> Row:
    """torch.load and save_checkpoint, without the time that importing the two takes."""
    shapes = json.dumps({name: shape for name, shape, _ in parameters()})
    memory = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        ours = seconds([MSLAUNCH, "ckpt", "import", "pth", "--to", "out.ckpt"], folder)
        load = _without_start(TORCH_PYTHON, "torch", LOAD, [str(folder / "pth/net.pth"), str(memory)], folder)
        script = SAVE.format(shapes=shapes)
        save = _without_start(sys.executable, "mindspore", script, [str(memory), str(folder / "theirs.ckpt")], folder)
    finally:
        shutil.rmtree(memory)
    theirs = load + save
    return Row("import 2 GB of pth", f"{ours:.2f} s", f"torch + MindSpore {theirs:.1f} s", ours / theirs, 1 / 4)


def _without_start(python: str, module: str, script: str, args: list[str], folder: Path) -> float:
    start = seconds([python, "-c", f"import {module}"], folder)
    return seconds([python, "-c", script, *args], folder) - start
