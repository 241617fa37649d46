"""Shards for tests: what MindSpore wrote, files made up on the spot, and MindSpore itself as a witness."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

import pytest

from mslaunch.checkpoint.formats.table import frame, read_shard
from mslaunch.checkpoint.formats.tensor import Tensor
from mslaunch.checkpoint.moving.new_files import Planned
from mslaunch.checkpoint.sharding.reshard import Target, plan_transform
from mslaunch.checkpoint.sharding.sets import find_set
from mslaunch.checkpoint.sharding.strategy import Strategy, read_strategy
from mslaunch.documents import protobuf
from tests.conftest import ROOT

FIXTURES = ROOT / "tests" / "fixtures"
STRATEGIES = {
    "tp2": "tp2/strategy_0.ckpt",
    "tp4": "tp4/strategy_0.json",
    "dp4": "dp4/strategy_0.ckpt",
    "dp2tp2opt": "dp2tp2opt/strategy_0.ckpt",
    "pp2tp2": "pp2tp2_merged.ckpt",
}
LAYOUTS = ("full", *STRATEGIES)
PAIRS = [(one, other) for one in LAYOUTS for other in LAYOUTS]

Content = dict[str, tuple[str, tuple[int, ...], bytes]]
"""Type, shape and bytes of each parameter, by its name."""

needs_mindspore = pytest.mark.skipif(
    find_spec("mindspore") is None, reason="MindSpore is not installed (pip install '.[mindspore]')"
)


def strategy_file(layout: str) -> Path:
    return FIXTURES / "strategies" / STRATEGIES[layout]


def strategy_of(layout: str) -> Strategy | None:
    return read_strategy(strategy_file(layout)) if layout in STRATEGIES else None


def checkpoints(layout: str) -> Path:
    return FIXTURES / "checkpoints" / layout


def content_of(path: Path) -> Content:
    """Read a whole shard."""
    data = path.read_bytes()
    return {
        name: (tensor.dtype, tensor.shape, b"".join(data[at : at + length] for at, length in tensor.parts))
        for name, tensor in read_shard(path).tensors.items()
    }


def contents_of(folder: Path) -> dict[int, Content]:
    """Read all shards of a set, by rank."""
    return {rank: content_of(path) for rank, path in find_set(folder).files.items()}


def tensors_of(content: Content) -> list[Tensor]:
    """A file's parameters before they have a place in it."""
    return [Tensor(name, dtype, shape, ((0, len(data)),)) for name, (dtype, shape, data) in content.items()]


def shard_bytes(path: Path, content: Content) -> bytes:
    """Put a shard together in memory."""
    layout = frame(path, tensors_of(content))
    out = bytearray(layout.size)
    for at, head in layout.heads:
        out[at : at + len(head)] = head
    for name, (_, _, data) in content.items():
        begin = 0
        for at, length in layout.places[name]:
            out[at : at + length] = data[begin : begin + length]
            begin += length
    return bytes(out)


def write_shard(path: Path, content: Content) -> Path:
    return write_anew(path, shard_bytes(path, content))


def write_anew(path: Path, data: bytes) -> Path:
    """Write a file that may be there already; cutting that short first would wait for the disk each time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    return path


def write_hollow(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> Path:
    """A shard of float32 zeros that takes no room on the disk, however large it is."""
    sizes = {name: 4 * prod(shape) for name, shape in shapes.items()}
    layout = frame(path, [Tensor(name, "Float32", shape, ((0, sizes[name]),)) for name, shape in shapes.items()])
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(layout.size)
        for at, head in layout.heads:
            os.pwrite(file.fileno(), head, at)
    return path


def ckpt_value(name: bytes, *fields: bytes) -> bytes:
    """One value of a .ckpt, made by hand of the fields of its tensor."""
    tensor = b"".join(fields)
    return protobuf.field_bytes(1, protobuf.field_bytes(1, name) + protobuf.field_bytes(2, tensor))


def ckpt_tensor(dims: Iterable[int], dtype: bytes = b"Float32", data: bytes = b"") -> bytes:
    numbers = b"".join(protobuf.field_number(1, dim) for dim in dims)
    return numbers + protobuf.field_bytes(2, dtype) + protobuf.field_bytes(3, data)


def safetensors_bytes(header: Any, data: bytes = b"") -> bytes:
    """A .safetensors with this header: text as it is, anything else as JSON."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def json_strategy(layouts: Mapping[str, Mapping[str, Any]], stage: int = 0) -> bytes:
    """A strategy in MindSpore's JSON form; layouts give dev_matrix and tensor_map, and what differs from the usual."""
    usual = {"field": 0, "opt_weight_shard_step": 0, "opt_weight_shard_size": 0}
    items = {name: {**usual, **layout} for name, layout in layouts.items()}
    operators = {"op": {"parallel_strategy": [[1]], "stage": stage}}
    return json.dumps({"parallel_strategy_item": operators, "parallel_layout_item": items}).encode()


def plan(source: Path, cut_by: Strategy | None, wanted: Target) -> Planned:
    """What `mslaunch ckpt reshard` does before it writes."""
    return plan_transform(find_set(source, cut_by.world_size if cut_by else None), cut_by, wanted)


def ask_mindspore(script: str, *args: object) -> None:
    """Run a script in a Python of its own: importing MindSpore takes seconds and changes the environment."""
    command = [sys.executable, "-c", script, *map(str, args)]
    done = subprocess.run(command, env={**os.environ, "GLOG_v": "4"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Make a folder once for all of pytest's workers: the first to come does it, the others wait."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / "done"
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # an attempt that failed
            folder.mkdir()
            make(folder)
            done.touch()
    return folder


WRITE = """
import json
import sys

import mindspore
import numpy as np
from mindspore import Tensor
from mindspore.train import serialization

chance = np.random.default_rng(1)
parameters = {
    "rows": Tensor(chance.random((10, 100), np.float32)),
    "wide": Tensor(chance.random((3, 1000), np.float32)),
    "brain": Tensor(chance.random((30, 70), np.float32)).astype(mindspore.bfloat16),
    "bytes": Tensor(chance.integers(-128, 128, (7, 300)).astype(np.int8)),
    "half": Tensor(chance.random(5).astype(np.float16)),
    "double": Tensor(chance.random((4, 3))),
    "bools": Tensor(np.array([True, False])),
    "scalar": Tensor(np.float32(1.5)),
    "flag": Tensor(np.array(True)),
    "steps": Tensor(np.int32(70000)),
    "few": Tensor(np.uint8(200)),
    "one": Tensor(np.array([5], np.int64)),
}
known = {name: [str(t.dtype), t.shape, bytes(t.get_bytes()).hex()] for name, t in parameters.items()}
with open(sys.argv[1] + "/known.json", "w") as file:
    json.dump(known, file)


def save(name, crc=False, leave_out=(), **more):
    chosen = [{"name": key, "data": value} for key, value in parameters.items() if key not in leave_out]
    path = sys.argv[1] + "/" + name
    mindspore.save_checkpoint(chosen, path, crc_check=crc, format=name.rpartition(".")[2], **more)


save("plain.ckpt", append_dict={"note": "a text"})
save("plain.safetensors")
save("crc.ckpt", crc=True)
save("crc.safetensors", crc=True, leave_out=("brain",))  # MindSpore cannot: "cannot include dtype 'E' in a buffer"
serialization.SLICE_SIZE = 1  # KiB: what it does above 512 MiB, at sizes that a test can afford
save("split.ckpt")
save("split_async.ckpt", async_save=True)
"""


def write_with_mindspore(factory: pytest.TempPathFactory) -> Path:
    """Files of MindSpore's own, and known.json with what is in them."""
    return once(factory, "written", lambda folder: ask_mindspore(WRITE, folder))


def known_content(folder: Path) -> Content:
    raw = json.loads((folder / "known.json").read_text())
    return {name: (dtype, tuple(shape), bytes.fromhex(data)) for name, (dtype, shape, data) in raw.items()}
