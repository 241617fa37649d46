"""New checkpoints are written in a hidden folder: who may remove it, how it is called, where it lies."""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mslaunch.checkpoint.moving.new_files import Planned
from mslaunch.checkpoint.sharding.reshard import Target
from mslaunch.errors import RequestError
from tests.beds.sharded import checkpoints, contents_of, json_strategy, plan, strategy_file, strategy_of, write_shard
from tests.conftest import Bench

BOOT = Path("/proc/sys/kernel/random/boot_id")
RESHARD = ("ckpt", "reshard", str(checkpoints("tp2")), "--from", str(strategy_file("tp2")), "-o")


def planned() -> Planned:
    return plan(checkpoints("tp2"), strategy_of("tp2"), Target())


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def leave(folder: Path, name: str, boot: str | None = None, age: float = 0.0) -> Path:
    """Leave what a process leaves that was killed while it wrote."""
    left = folder / name
    (left / "new").mkdir(parents=True)
    (left / "lock").write_text(BOOT.read_text().strip() if boot is None else boot)
    for path in (left / "new", left / "lock", left):
        os.utime(path, (time.time() - age,) * 2)
    return left


@pytest.mark.parametrize("target", ["new", "x[1]", "n" * 255])
def test_what_a_killed_process_left_is_removed(tmp_path: Path, target: str) -> None:
    """Whatever its number was, with characters of patterns in the name, and with the longest of names."""
    planned().write(tmp_path / "first")
    short = target if len(target) < 200 else next(iter(begun(tmp_path, target)))
    leave(tmp_path, f".{short}.partial-1")
    planned().write(tmp_path / target)
    assert names(tmp_path) == sorted(["first", target])


def begun(folder: Path, target: str) -> Iterator[str]:
    """How a long name is shortened: as a writer does it that is looked at while it writes."""
    seen: list[str] = []
    planned().write(folder / target, lambda _: seen.extend(p.name for p in folder.glob(".*.partial-*")))
    for path in sorted((folder / target).rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (folder / target).rmdir()
    yield seen[0].removeprefix(".").rpartition(".partial-")[0]


def test_what_a_living_process_writes_is_left_alone(tmp_path: Path) -> None:
    """Its lock says so, in whatever container it is."""
    left = leave(tmp_path, ".new.partial-1", age=1e6)
    with (left / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        planned().write(tmp_path / "new")
    assert names(tmp_path) == [left.name, "new"]


def test_what_another_machine_writes_is_left_alone_until_it_is_old(tmp_path: Path) -> None:
    """Its locks may not be seen from here."""
    fresh = leave(tmp_path, ".new.partial-1", boot="another")
    leave(tmp_path, ".new.partial-2", boot="another", age=1e6)
    planned().write(tmp_path / "new")
    assert names(tmp_path) == [fresh.name, "new"]


def test_a_folder_of_that_number_does_not_stop_a_process(tmp_path: Path) -> None:
    """Every container has a process 1: what one has left is not taken for the target."""
    (tmp_path / f".new.partial-{os.getpid()}").mkdir()
    planned().write(tmp_path / "new")
    assert contents_of(tmp_path / "new") == contents_of(checkpoints("full"))


def test_a_link_to_an_empty_folder_is_followed(bench: Bench) -> None:
    """The set is where the link leads, and the link stays."""
    (bench.folder / "disk").mkdir()
    (bench.folder / "new").symlink_to("disk")
    done = bench.mslaunch(*RESHARD, "new")
    assert (done.returncode, done.stderr) == (0, "")
    assert (bench.folder / "new").is_symlink()
    assert contents_of(bench.folder / "disk") == contents_of(checkpoints("full"))


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """An empty disk; its folder's name holds a blank."""
    if os.geteuid() != 0:
        pytest.skip("mounting takes root")
    folder = tmp_path / "a disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(folder)], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no disk can be mounted here: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_an_empty_disk_is_written_to(bench: Bench, mounted: Path) -> None:
    """What a killed process has left in it does not count, and is removed."""
    leave(mounted, ".partial-1")
    done = bench.mslaunch(*RESHARD, str(mounted))
    assert (done.returncode, done.stderr) == (0, "")
    assert names(mounted) == ["rank_0"]
    assert contents_of(mounted) == contents_of(checkpoints("full"))


def test_a_disk_that_has_got_a_set_meanwhile_keeps_it(mounted: Path) -> None:
    """The second one says so, and leaves nothing."""

    def come(_: int) -> None:
        (mounted / "rank_0").mkdir(exist_ok=True)
        (mounted / "rank_0" / "theirs").touch()

    with pytest.raises(RequestError, match="a disk: is there already"):
        planned().write(mounted, come)
    assert [path.name for path in mounted.rglob("*")] == ["rank_0", "theirs"]


def many_ranks(folder: Path) -> tuple[str, ...]:
    write_shard(folder / "w.ckpt", {"w": ("Int8", (8, 8), bytes(64))})
    (folder / "s.json").write_bytes(json_strategy({"w": {"dev_matrix": [300], "tensor_map": [-1, -1]}}))
    return ("ckpt", "reshard", "w.ckpt", "--to", "s.json", "-o", "new")


def limit_files(bench: Bench, limit: str) -> subprocess.CompletedProcess[str]:
    args = many_ranks(bench.folder)
    return subprocess.run(
        ["bash", "-c", f'{limit}; exec "$0" "$@"', bench.program, *args],
        cwd=bench.folder,
        env=bench.env,
        capture_output=True,
        text=True,
    )


def test_more_files_than_the_shell_allows_are_written(bench: Bench) -> None:
    """The limit is raised as far as it may be."""
    done = limit_files(bench, "ulimit -Sn 128")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(names(bench.folder / "new")) == 300


def test_more_files_than_allowed_at_all_are_told(bench: Bench) -> None:
    """By the limit, not as a fault of the disk; nothing is left."""
    done = limit_files(bench, "ulimit -n 128")
    assert (done.returncode, done.stderr) == (
        3,
        "mslaunch: no further file can be opened. Raise the limit (ulimit -n).\n",
    )
    assert names(bench.folder) == ["s.json", "w.ckpt"]
