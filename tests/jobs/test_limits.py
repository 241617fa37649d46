"""Machines that have run out of something, and users that no machine knows: one sentence, and nothing is left."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from mslaunch.errors import limit_of
from tests.beds.other_user import MSLAUNCH, needs_root, run_as
from tests.conftest import TIMEOUT, Bench, wait_for

pytestmark = needs_root
STRANGER = 50_000 + os.getpid() % 10_000  # no entry in the password database, and no process but its own


def processes_of(uid: int) -> list[str]:
    return subprocess.run(["ps", "-o", "pid=", "-U", str(uid)], capture_output=True, text=True).stdout.split()


def launch_as_stranger(folder: Path, limit: str, *args: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text("print('trained')\n")
    wait_for(lambda: not processes_of(STRANGER), "processes of the test before to end")
    done = run_as([MSLAUNCH, "train", "-n", "2", *args], folder, uid=STRANGER, limit=limit)
    assert "Traceback" not in done.stderr + done.stdout
    wait_for(lambda: not processes_of(STRANGER), "the last process of the launch to end")
    return done


def test_a_user_without_name_home_and_variables_launches(shared_folder: Path) -> None:
    """As in a container that runs with a number of its own."""
    done = launch_as_stranger(shared_folder, "")
    assert (done.returncode, done.stderr) == (0, "")
    for verb in ("ps", "status", "logs", "diagnose", "stop", "check"):
        shown = run_as([MSLAUNCH, verb], shared_folder, uid=STRANGER)
        assert (shown.returncode, shown.stderr) == (0, ""), verb


def test_a_host_that_refuses_a_user_without_name_is_told(shared_folder: Path) -> None:
    """ssh itself knows no such user; what it says is passed on in one sentence."""
    (shared_folder / "train.py").write_text("")
    done = run_as([MSLAUNCH, "train", "--hosts", "127.0.0.1:1", "--transport", "ssh"], shared_folder, uid=STRANGER)
    assert done.returncode == 3
    assert re.fullmatch(r"mslaunch: 127\.0\.0\.1: .*\n", done.stderr), done.stderr


@pytest.mark.parametrize("processes", range(1, 8))
def test_too_few_processes_are_told(shared_folder: Path, processes: int) -> None:
    """Wherever the limit is reached: in the launcher, the agent or between two ranks."""
    done = launch_as_stranger(shared_folder, f"ulimit -u {processes}")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "ulimit -u" in done.stdout + done.stderr


@pytest.mark.parametrize("files", [6, 8, 9])
def test_too_few_open_files_are_told(shared_folder: Path, files: int) -> None:
    """Here and in the agent."""
    done = launch_as_stranger(shared_folder, f"ulimit -n {files}")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "ulimit -n" in done.stdout + done.stderr


@pytest.mark.parametrize("kilobytes", [20_000, 30_000, 50_000])
def test_too_little_memory_is_told(shared_folder: Path, kilobytes: int) -> None:
    """Also while modules are still loaded."""
    done = launch_as_stranger(shared_folder, f"ulimit -v {kilobytes}")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "ulimit -v" in done.stdout + done.stderr


def launch_on(bench: Bench, options: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Launch with the folder of runs on a file system of its own, which ends with the command."""
    small = bench.folder.parent / "small"
    small.mkdir(exist_ok=True)
    command = f'mount -t tmpfs -o {options} tmpfs "$0" && exec "$@"'
    train = [MSLAUNCH, "train", "-n", "1", "--runs-dir", str(small), *args]
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", command, str(small), *train],
        cwd=bench.folder,
        env=bench.env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        stdin=subprocess.DEVNULL,
    )


def exit_code_with(bench: Bench, inodes: int) -> int:
    """Launch on a disk with so many inodes; where that fails, the message says that the disk is full."""
    done = launch_on(bench, f"nr_inodes={inodes}", "-c", "cfg.yaml")
    assert "Traceback" not in done.stderr, (inodes, done.stderr)
    if done.returncode != 0:
        assert re.search("disk is full|No space left on device", done.stdout + done.stderr), (inodes, done.stdout)
    return done.returncode


def test_a_disk_with_too_few_inodes_is_told_wherever_it_ends(bench: Bench) -> None:
    """Folder, run.json, events.jsonl, the log of launch.setup or of a rank: each is the one that is missing once."""
    bench.write("train.py", "print('trained')\n")
    bench.write("cfg.yaml", "launch:\n  config_arg: null\n")
    inodes = 4
    assert exit_code_with(bench, inodes) == 3
    while exit_code_with(bench, inodes) != 0:
        inodes += 1
        assert inodes < 40
    bench.write("cfg.yaml", "launch:\n  config_arg: null\n  setup: export X=1\n")
    codes = [exit_code_with(bench, inodes + more) for more in range(-2, 3)]
    assert codes[0] != 0
    assert codes[-1] == 0


def test_a_disk_that_is_full_is_told_wherever_it_ends(bench: Bench) -> None:
    """The same for its blocks."""
    bench.write("train.py", "print('trained')\n")
    for kilobytes in (8, 80, 120, 160, 200, 240, 280):
        done = launch_on(bench, f"size={kilobytes}k")
        assert "Traceback" not in done.stderr, (kilobytes, done.stderr)
        assert done.returncode == 0 or re.search("disk is full|No space left on device", done.stdout + done.stderr)


@pytest.mark.parametrize(
    "words", ["error return without exception set", "<x> returned NULL without setting an exception"]
)
def test_what_python_says_where_it_has_no_memory_to_say_more_is_told(words: str) -> None:
    """Under `ulimit -v` an import may end in a SystemError."""
    found = limit_of(SystemError(words))
    assert found is not None
    assert "no memory left" in str(found)
