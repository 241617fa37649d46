"""`mslaunch ckpt convert` and what a target may be: the same bytes in the other format, nothing overwritten."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mslaunch.checkpoint.formats.table import read_shard
from tests.beds.sharded import (
    checkpoints,
    content_of,
    contents_of,
    known_content,
    needs_mindspore,
    strategy_file,
    write_anew,
    write_with_mindspore,
)
from tests.conftest import Bench

FILE = checkpoints("tp2") / "rank_1" / "net1.ckpt"
RESHARD = ("ckpt", "reshard", str(checkpoints("tp2")), "--from", str(strategy_file("tp2")))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_with_mindspore(tmp_path_factory)


def test_a_file_goes_there_and_back(bench: Bench) -> None:
    """What comes back holds the same, byte for byte."""
    there = bench.mslaunch("ckpt", "convert", str(FILE), "-o", "a.safetensors")
    assert (there.returncode, there.stderr) == (0, "")
    assert there.stdout.startswith("a.safetensors: 1 rank, 36.9 KB")
    back = bench.mslaunch("ckpt", "convert", "a.safetensors", "-o", "a.ckpt")
    assert back.returncode == 0
    assert content_of(bench.folder / "a.safetensors") == content_of(bench.folder / "a.ckpt") == content_of(FILE)


def test_a_set_keeps_its_names(bench: Bench) -> None:
    """Only the endings change; without a word on the format it is the other one."""
    done = bench.mslaunch("ckpt", "convert", str(checkpoints("pp2tp2")), "-o", "new")
    assert done.returncode == 0
    made = sorted(str(path.relative_to(bench.folder)) for path in bench.folder.glob("new/*/*"))
    assert made == [f"new/rank_{rank}/net{rank}.safetensors" for rank in range(4)]
    assert contents_of(bench.folder / "new") == contents_of(checkpoints("pp2tp2"))


@needs_mindspore
@pytest.mark.parametrize("name", ["split_async.ckpt", "plain.safetensors", "crc.ckpt"])
def test_what_mindspore_wrote_is_converted(written: Path, bench: Bench, name: str) -> None:
    """All types and scalars, from one piece or several; a checksum is compared, but not carried over."""
    target = "new.ckpt" if name.endswith("safetensors") else "new.safetensors"
    done = bench.mslaunch("ckpt", "convert", str(written / name), "-o", target)
    assert (done.returncode, done.stderr) == (0, "")
    assert content_of(bench.folder / target) == known_content(written)
    assert read_shard(bench.folder / target).crc is None


@needs_mindspore
def test_changed_bytes_are_not_converted(written: Path, bench: Bench) -> None:
    """The new file would have no checksum to tell."""
    path = bench.folder / "net.ckpt"
    shutil.copy(written / "crc.ckpt", path)
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    write_anew(path, bytes(data))
    done = bench.mslaunch("ckpt", "convert", "net.ckpt", "-o", "new.safetensors")
    assert done.returncode == 2
    assert "rank 0, net.ckpt: its bytes have changed (crc_num)" in done.stderr
    assert [file.name for file in bench.folder.iterdir()] == ["net.ckpt"]


@needs_mindspore
def test_a_text_keeps_its_file_a_ckpt(written: Path, bench: Bench) -> None:
    """It is told before anything is written."""
    done = bench.mslaunch("ckpt", "convert", str(written / "plain.ckpt"), "-o", "new.safetensors")
    assert (done.returncode, [*bench.folder.iterdir()]) == (2, [])
    assert done.stderr == "mslaunch: note: str cannot be written to .safetensors. Keep .ckpt.\n"


def test_a_truncated_file_is_not_converted(bench: Bench) -> None:
    """Said with its name, and nothing is left."""
    (bench.folder / "cut.ckpt").write_bytes(FILE.read_bytes()[:-1])
    done = bench.mslaunch("ckpt", "convert", "cut.ckpt", "-o", "new.safetensors")
    assert done.returncode == 2
    assert "cut.ckpt: not a whole checkpoint: truncated" in done.stderr
    assert [path.name for path in bench.folder.iterdir()] == ["cut.ckpt"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((*RESHARD, "-o", "there"), "there: is there already"),
        ((*RESHARD, "-o", "file"), "file: is there already"),
        ((*RESHARD, "-o", "."), "-o .: has no name"),
        ((*RESHARD, "-o", "new", "--to", "x", "--to-tp", "2"), "--to and --to-tp both name the new layout"),
        ((*RESHARD, "-o", "new", "--format", "onnx"), "one of ckpt, safetensors is wanted, got 'onnx'"),
        (("ckpt", "reshard", str(FILE), "-o", "new"), "neither --from nor --to is given"),
        (("ckpt", "reshard", str(FILE), "-o", "new", "--to-tp", "2"), "--to-tp needs --from"),
        (("ckpt", "convert", str(FILE), "-o", "file"), "the new file's name must end in .safetensors"),
        (("ckpt", "convert", str(FILE), "-o", "a.safetensors"), "a.safetensors: is there already"),
        (("ckpt", "convert", str(FILE), "-o", "a.safetensors", "--format", "ckpt"), "must end in .ckpt"),
        (("ckpt", "convert", "none.ckpt", "-o", "new.safetensors"), "none.ckpt: no such checkpoint"),
    ],
)
def test_wrong_requests_change_nothing(bench: Bench, args: tuple[str, ...], words: str) -> None:
    """What is there is never overwritten; one line tells, and the exit code is 2."""
    for name in ("file", "there/kept", "a.safetensors"):
        bench.write(name, "mine")
    done = bench.mslaunch(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    left = {str(path.relative_to(bench.folder)): path.read_text() for path in bench.folder.rglob("*") if path.is_file()}
    assert left == dict.fromkeys(("file", "there/kept", "a.safetensors"), "mine")


def test_an_empty_folder_may_be_the_target(bench: Bench) -> None:
    """Unless it is the one that one stands in."""
    (bench.folder / "new").mkdir()
    assert bench.mslaunch(*RESHARD, "-o", "new").returncode == 0
    assert contents_of(bench.folder / "new") == contents_of(checkpoints("full"))
    shutil.rmtree(bench.folder / "new")
    done = bench.mslaunch(*RESHARD, "-o", ".")
    assert (done.returncode, done.stderr) == (2, "mslaunch: -o .: has no name. Name a folder that is not there yet.\n")
