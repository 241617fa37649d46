"""A reshard that does not come to its end leaves no half set: full disks, signals, kill -9, two at once."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mslaunch.checkpoint.moving.file_io import SourceChanged
from mslaunch.checkpoint.sharding.reshard import Target
from mslaunch.checkpoint.sharding.strategy import Layout, Strategy, read_strategy
from mslaunch.errors import RequestError
from tests.beds.sharded import (
    checkpoints,
    content_of,
    contents_of,
    json_strategy,
    plan,
    strategy_file,
    strategy_of,
    write_hollow,
    write_shard,
)
from tests.conftest import Bench, wait_for

SMALL = ("ckpt", "reshard", str(checkpoints("tp2")), "--from", str(strategy_file("tp2")), "-o", "new")
COPIES = {"w": {"dev_matrix": [4], "tensor_map": [-1, -1]}}
"""Four replicas of one parameter."""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def partial_of(bench: Bench) -> Path | None:
    return next((made.parent for made in bench.folder.glob(".new.partial-*/new")), None)


def stop_midway(bench: Bench) -> subprocess.Popen[str]:
    """Start a reshard to `new` of more than can be written between two looks, and stop it where it stands.

    Where the machine was so fast, or this test so slow, that it was done already, it is started anew with more.
    """
    (bench.folder / "large.json").write_bytes(json_strategy(COPIES))
    for megabytes in (48, 256, 1024):
        write_hollow(bench.folder / "large.ckpt", {"w": (megabytes, 1 << 18)})
        process = bench.start("ckpt", "reshard", "large.ckpt", "--to", "large.json", "-o", "new")
        wait_for(lambda: partial_of(bench) or (bench.folder / "new").exists(), "the reshard to begin")
        hold(process)
        if partial_of(bench):
            return process
        process.kill()
        process.wait()
        shutil.rmtree(bench.folder / "new")
    raise AssertionError("the reshard was always done before it could be stopped")


def hold(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGSTOP)
    wait_for(lambda: process.poll() is not None or is_stopped(process.pid), "the reshard to stop")


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def end(process: subprocess.Popen[str], number: int) -> tuple[int, str]:
    """Send a signal to a stopped process and let it go on; return its exit code and what it said."""
    process.send_signal(number)
    process.send_signal(signal.SIGCONT)
    said, _ = process.communicate(timeout=60)
    return process.returncode, said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_leaves_nothing(bench: Bench, number: signal.Signals) -> None:
    """What was begun is removed, and the exit code is the signal's."""
    process = stop_midway(bench)
    assert end(process, number) == (128 + number, "mslaunch: interrupted; nothing was kept.\n")
    assert names(bench.folder) == ["large.ckpt", "large.json"]


def test_what_kill_leaves_the_next_one_removes(bench: Bench) -> None:
    """kill -9 leaves a hidden folder and no target; a reshard to the same target clears it away."""
    process = stop_midway(bench)
    left = partial_of(bench)
    assert end(process, signal.SIGKILL) == (-signal.SIGKILL, "")
    assert left is not None
    assert names(bench.folder) == [left.name, "large.ckpt", "large.json"]
    done = bench.mslaunch(*SMALL)
    assert (done.returncode, done.stderr) == (0, "")
    assert names(bench.folder) == ["large.ckpt", "large.json", "new"]
    assert contents_of(bench.folder / "new") == contents_of(checkpoints("full"))


def test_of_two_at_once_one_wins(bench: Bench) -> None:
    """The other says so in the end; neither disturbs what the other writes, and the target is one of them, whole."""
    slow = stop_midway(bench)
    begun = partial_of(bench)
    quick = bench.mslaunch(*SMALL)
    assert (quick.returncode, quick.stderr) == (0, "")
    assert partial_of(bench) == begun
    code, said = end(slow, signal.SIGCONT)
    assert (code, said) == (2, "mslaunch: new: is there already. Give another name, or remove it.\n")
    assert names(bench.folder) == ["large.ckpt", "large.json", "new"]
    assert contents_of(bench.folder / "new") == contents_of(checkpoints("full"))


def test_two_that_start_together_make_one_set(bench: Bench) -> None:
    """Whoever is first: exactly one succeeds."""
    both = [bench.start(*SMALL) for _ in range(2)]
    said = [process.communicate(timeout=60)[0] for process in both]
    assert sorted(process.returncode for process in both) == [0, 2], said
    assert names(bench.folder) == ["new"]
    assert contents_of(bench.folder / "new") == contents_of(checkpoints("full"))


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "no hard links"])
def test_a_file_that_has_come_meanwhile_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """Of two at once to one file, the second says so."""
    target = tmp_path / "new.ckpt"
    planned = plan(checkpoints("tp2"), strategy_of("tp2"), Target())
    if not links:
        monkeypatch.setattr(os, "link", refuse_link)
    planned.write_file(target)
    known = target.read_bytes()
    with pytest.raises(RequestError, match=r"new\.ckpt: is there already\."):
        plan(checkpoints("tp4"), strategy_of("tp4"), Target()).write_file(target)
    assert target.read_bytes() == known
    assert names(tmp_path) == ["new.ckpt"]


def refuse_link(*args: object) -> None:
    raise PermissionError(errno.EPERM, "Operation not permitted", *map(str, args))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk takes root")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if (done := subprocess.run(mount, capture_output=True, text=True)).returncode:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_too_small_is_told_before_anything_is_written(bench: Bench, small_disk: Path) -> None:
    """With what is needed and what is free; the exit code is 3."""
    write_hollow(bench.folder / "net.ckpt", {"w": (1024, 1024)})
    (bench.folder / "s.json").write_bytes(json_strategy(COPIES))
    target = small_disk / "new"
    done = bench.mslaunch("ckpt", "reshard", "net.ckpt", "--to", "s.json", "-o", str(target))
    assert done.returncode == 3
    assert re.fullmatch(rf"mslaunch: {target}: .+ are needed and .+ are free there. Free some, .+\n", done.stderr)
    assert names(small_disk) == []


def test_a_disk_that_fills_up_keeps_nothing(bench: Bench, small_disk: Path) -> None:
    """There was room for the tensors, but not for the files around them; the exit code is 3."""
    write_shard(bench.folder / "net.ckpt", {"w": ("Int8", (512, 512), bytes(512 * 512))})
    (bench.folder / "s.json").write_bytes(json_strategy(COPIES))
    args = ("ckpt", "reshard", "net.ckpt", "--to", "s.json", "-o")
    target = small_disk / "new"
    done = bench.mslaunch(*args, str(target))
    assert done.returncode == 3
    assert done.stderr.startswith(f"mslaunch: {target}: the disk is full; nothing was kept.")
    assert names(small_disk) == []
    single = bench.mslaunch("ckpt", "convert", "net.ckpt", "-o", str(small_disk / "net.safetensors"))
    assert (single.returncode, names(small_disk)) == (0, ["net.safetensors"])
    assert content_of(small_disk / "net.safetensors") == content_of(bench.folder / "net.ckpt")


def test_a_target_that_cannot_be_made_is_told(bench: Bench) -> None:
    """A file where a folder should be: exit code 3, and the file is still there."""
    bench.write("file", "mine")
    done = bench.mslaunch(*SMALL[:-1], "file/new")
    assert (done.returncode, done.stdout) == (3, "")
    assert "cannot be written: Not a directory" in done.stderr
    assert names(bench.folder) == ["file"]


def test_a_source_that_is_cut_while_it_is_read_leaves_nothing(tmp_path: Path) -> None:
    """What was planned is no longer there; that is told with the file's name."""
    path = write_shard(tmp_path / "old" / "net.ckpt", {"w": ("Int8", (8, 512), bytes(8 * 512))})
    planned = plan(tmp_path / "old", None, Target(Strategy("s", {0: {"w": Layout((2,), ((0,), ()))}}, False)))
    os.truncate(path, 2000)
    with pytest.raises(SourceChanged, match=r"net.ckpt changed while it was read; nothing was written. Run it again."):
        planned.write(tmp_path / "new")
    assert names(tmp_path) == ["old"]


def test_the_new_set_is_read_only_by_its_owner(tmp_path: Path) -> None:
    """Weights are nobody else's business, as with MindSpore's own files."""
    strategy = read_strategy(strategy_file("tp4"))
    plan(checkpoints("tp2"), strategy_of("tp2"), Target(strategy)).write(tmp_path / "new")
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("new/*/*")} == {0o600}
