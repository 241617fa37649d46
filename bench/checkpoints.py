"""How fast sharded checkpoints are transformed and verified, beside MindSpore's own transform and `cp -r`."""

from __future__ import annotations

import mmap
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.measure import MSLAUNCH, ROUNDS, Row, medians, seconds
from mslaunch.checkpoint.formats.table import frame
from mslaunch.checkpoint.formats.tensor import Tensor
from mslaunch.checkpoint.sharding.strategy import Layout, write_strategy

RANKS, NEW_RANKS = 8, 4
HIDDEN, LAYERS = 2048, 11  # 2.1 GB in float32
TRANSFORM = """
import sys
import mindspore
mindspore.transform_checkpoints(sys.argv[1], sys.argv[2], "net", sys.argv[3], sys.argv[4]{more})
"""


def parameters() -> Iterator[tuple[str, tuple[int, ...], int | None]]:
    """Name, whole shape and the dimension that is cut, of a plain decoder."""
    yield "embedding", (16000, HIDDEN), 0
    for layer in range(LAYERS):
        yield f"layers.{layer}.norm", (HIDDEN,), None
        yield f"layers.{layer}.qkv", (HIDDEN, 3 * HIDDEN), 1
        yield f"layers.{layer}.proj", (HIDDEN, HIDDEN), 0
        yield f"layers.{layer}.up", (HIDDEN, 4 * HIDDEN), 1
        yield f"layers.{layer}.down", (4 * HIDDEN, HIDDEN), 0


@contextmanager
def shards(suffix: str) -> Iterator[Path]:
    """A folder with 2 GB in src/rank_0 … rank_7, and the strategies from.ckpt and to.ckpt."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for ranks, file in ((RANKS, "from.ckpt"), (NEW_RANKS, "to.ckpt")):
            layouts = [(name, _layout(len(shape), cut, ranks)) for name, shape, cut in parameters()]
            (folder / file).write_bytes(write_strategy(layouts))
        noise = np.random.default_rng(1).bytes(64 << 20)
        for rank in range(RANKS):
            _write(folder / f"src/rank_{rank}/net-1_1{suffix}", noise)
        yield folder


def _layout(dimensions: int, cut: int | None, ranks: int) -> Layout:
    return Layout((ranks,), tuple((0,) if index == cut else () for index in range(dimensions)))


def _write(path: Path, noise: bytes) -> None:
    tensors = []
    for name, shape, cut in parameters():
        sliced = tuple(size // (RANKS if index == cut else 1) for index, size in enumerate(shape))
        tensors.append(Tensor(name, "Float32", sliced, ((0, int(np.prod(sliced)) * 4),)))
    layout = frame(path, tensors)
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        for at, head in layout.heads:
            os.pwrite(file.fileno(), head, at)
        for parts in layout.places.values():
            for at, length in parts:
                os.pwrite(file.fileno(), noise[:length], at)


def reshard() -> Iterator[Row]:
    """2 GB from 8 to 4 ranks, in both formats."""
    for suffix, ratio in ((".ckpt", 15.0), (".safetensors", 6.0)):
        what = f"reshard 2 GB, 8 -> 4, {suffix}"
        with shards(suffix) as folder:
            command = [MSLAUNCH, "ckpt", "reshard", "src", "--from", "from.ckpt", "--to", "to.ckpt", "-o", "out"]
            beside = beside_copy(folder, "src", command, "out")
            yield beside.row(what, 1.25)
            peak = peak_memory(command, folder)
            yield Row(what + ", peak memory", f"{peak:.0f} MB", "", peak, 300.0, "MB")
            theirs = _theirs(folder, suffix)
        yield Row(what, f"{beside.ours:.2f} s", f"transform {theirs:.1f} s", beside.ours / theirs, 1 / ratio)


@dataclass(frozen=True)
class BesideCopy:
    """Medians of times, and of the ratios of pairs."""

    ours: float
    copy: float
    ratio: float
    cpu: float
    """The ratio of CPU times, which a busy machine changes less."""

    def row(self, what: str, limit: float) -> Row:
        return Row(what, f"{self.ours:.2f} s", f"cp -r {self.copy:.2f} s, CPU {self.cpu:.2f} x", self.ratio, limit)


def beside_copy(folder: Path, source: str, command: list[str], made: str, rounds: int = ROUNDS) -> BesideCopy:
    """Take a command and `cp -r` of its source in turns; the two of a pair see the same machine."""

    def timed(words: list[str], result: Path) -> tuple[float, float]:
        ready_memory()
        before = _cpu_of_children()
        took = seconds(words, folder)
        cpu = _cpu_of_children() - before
        remove(result)
        os.sync()  # the next one must not pay for this one's pages
        return took, cpu

    pairs = [
        (timed(command, folder / made), timed(["cp", "-r", source, "copy"], folder / "copy")) for _ in range(rounds + 1)
    ][1:]
    ours, copies = zip(*pairs, strict=True)
    times, cpus = ([one[index] / other[index] for one, other in pairs] for index in (0, 1))
    return BesideCopy(
        statistics.median(took for took, _ in ours),
        statistics.median(took for took, _ in copies),
        statistics.median(times),
        statistics.median(cpus),
    )


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def ready_memory() -> None:
    """Touch as much memory as a copy takes: a virtual machine may have given freed pages back to its host."""
    time.sleep(6)  # until it has taken what the last run freed; it would do so during this one
    with mmap.mmap(-1, 5 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE):
        pass


def peak_memory(command: list[str], folder: Path) -> float:
    """Peak memory of one command, in MB; in a process of its own, since ru_maxrss never falls."""
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command], cwd=folder, capture_output=True, text=True, check=True
    )
    return int(done.stdout) / 1024


def _theirs(folder: Path, suffix: str) -> float:
    more = ', output_format="safetensors"' if suffix == ".safetensors" else ""
    script = folder / "transform.py"
    script.write_text(TRANSFORM.format(more=more))
    args = [str(folder / name) for name in ("src", "theirs", "from.ckpt", "to.ckpt")]
    empty = folder / "import.py"
    empty.write_text("import mindspore\n")
    # Importing MindSpore is not transforming.
    start_up = seconds([sys.executable, str(empty)], folder)
    return seconds([sys.executable, str(script), *args], folder) - start_up


def verify_set() -> Iterator[Row]:
    """Headers and sizes of a 2 GB set of 8 ranks."""
    with shards(".ckpt") as folder:
        command = [MSLAUNCH, "ckpt", "verify", "src", "--strategy", "from.ckpt"]
        took = medians({"mslaunch": lambda: seconds(command, folder)})["mslaunch"]
    yield Row("verify 2 GB of 8 ranks", f"{took:.2f} s", "", took, 1.0, "s")
