"""Runs of other users: they are read where permissions allow, and acted on by their owner only."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

import mslaunch
from mslaunch.errors import RequestError
from mslaunch.run import launchers
from mslaunch.shared.guard import processes_with
from mslaunch.shared.processes import read_stat
from tests.beds.other_user import MSLAUNCH, NOBODY, as_user, needs_root, run_as
from tests.conftest import Bench, wait_for

pytestmark = needs_root


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process of root that a forged record names."""
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def give(folder: Path, uid: int = NOBODY) -> None:
    """Make a folder, with everything in it, another user's."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, uid, uid, follow_symlinks=False)


def forge(folder: Path, process: subprocess.Popen[bytes]) -> None:
    """Have a run's record say that it is running, and that this process is its launcher."""
    path = folder / "run.json"
    raw = json.loads(path.read_text())
    stat = read_stat(process.pid)
    assert stat is not None
    launcher = {**asdict(launchers.this_process()), "pid": process.pid, "start_time": stat.began}
    path.write_text(json.dumps({**raw, "state": "running", "ended": None, "launcher": launcher}))


def sentence(done: subprocess.CompletedProcess[str], words: str) -> None:
    """One line on standard error that matches, nothing else."""
    assert done.stdout == ""
    assert re.fullmatch(rf"mslaunch: {words}\n", done.stderr), done.stderr


@pytest.fixture
def theirs(bench: Bench, victim: subprocess.Popen[bytes]) -> Path:
    """A run of another user whose record names a process of root as its launcher."""
    bench.write("train.py", "print('hello')\n")
    assert bench.mslaunch("train", "-n", "1", "--run-id", "theirs").returncode == 0
    forge(bench.runs / "theirs", victim)
    give(bench.runs / "theirs")
    return bench.runs / "theirs"


@pytest.mark.parametrize("verb", ["stop", "stacks", "collect"])
def test_root_does_not_act_on_the_run_of_another_user(
    bench: Bench, theirs: Path, victim: subprocess.Popen[bytes], verb: str
) -> None:
    """A forged record would have root signal any process, a forged plan would have it run any program."""
    done = bench.mslaunch(verb, "theirs")
    assert done.returncode == 2
    sentence(done, f".*/{theirs.name}: belongs to nobody, and {verb} is for your own runs only. Give --as-owner, .*")
    assert victim.poll() is None


def test_a_file_of_another_user_in_an_own_folder_is_not_trusted(
    bench: Bench, theirs: Path, victim: subprocess.Popen[bytes]
) -> None:
    """Also where the folder itself is the caller's: run.json or plan.json that others put there, or a link."""
    for name in ("plan.json", "run.json"):
        give(theirs, 0)
        os.chown(theirs / name, NOBODY, NOBODY)
        done = bench.mslaunch("stop", "theirs")
        assert done.returncode == 2
        sentence(done, f".*/{name}: belongs to nobody, .*")
    give(theirs, 0)
    shutil.move(theirs / "run.json", theirs / "else")
    (theirs / "run.json").symlink_to("else")
    sentence(bench.mslaunch("stop", "theirs"), ".*/run.json: is a link, .*")
    assert victim.poll() is None


def test_programs_are_refused_likewise(theirs: Path, victim: subprocess.Popen[bytes]) -> None:
    """Run.stop() and Run.stacks() raise; reading the run goes on working."""
    run = mslaunch.find_run(str(theirs))
    assert run.state == "running"
    for act in (run.stop, run.stacks):
        with pytest.raises(RequestError, match="belongs to nobody"):
            act()
    assert victim.poll() is None


def test_as_owner_nobody_elses_process_is_signalled(
    bench: Bench, theirs: Path, victim: subprocess.Popen[bytes], shared_folder: Path
) -> None:
    """With root's rights given up, a record that names a process of root is told as such."""
    shared = shared_folder / "theirs"
    shutil.copytree(theirs, shared, symlinks=True)
    give(shared)
    done = bench.mslaunch("stop", str(shared), "--as-owner")
    assert done.returncode == 3
    sentence(done, rf"{shared}: its launcher, pid {victim.pid}, runs as another user\. .*")
    assert victim.poll() is None


def test_the_sweep_of_another_user_is_neither_stopped_nor_resumed(bench: Bench) -> None:
    """sweep.json names a launcher, a script and its flags."""
    bench.write("train.py", "print('hello')\n")
    assert bench.mslaunch("sweep", "--set", "seed=1,2", "-n", "1", "--run-id", "s").returncode == 0
    os.chown(bench.runs / "s" / "sweep.json", NOBODY, NOBODY)
    for args, doing in ((("stop", "s"), "stop"), (("sweep", "--resume", "s"), "resume"), (("stop", "s/1"), "stop")):
        done = bench.mslaunch(*args)
        assert done.returncode == 2, done.stdout
        sentence(done, f".*/s/sweep.json: belongs to nobody, and {doing} is for your own runs only. .*")


def test_only_processes_of_the_own_user_count_as_a_runs() -> None:
    """A variable in its environment does not make another user's process root's to end."""
    process = subprocess.Popen(as_user(["sleep", "600"]), env={"PATH": os.environ["PATH"], "MSLAUNCH_RUN_DIR": "/x/y"})
    try:
        wait_for(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n", "the other user's process")
        assert process.pid not in processes_with("MSLAUNCH_RUN_DIR=/x/y")
    finally:
        process.kill()
        process.wait()


def launch_theirs(folder: Path, script: str, *args: str) -> subprocess.CompletedProcess[str]:
    (folder / "job").mkdir(exist_ok=True)
    (folder / "job").chmod(0o777)
    (folder / "job" / "train.py").write_text(script)
    return run_as([MSLAUNCH, "train", "-n", "1", "--runs-dir", str(folder / "runs"), *args], folder / "job")


def test_root_reads_another_users_run_and_acts_on_it_as_its_owner(bench: Bench, shared_folder: Path) -> None:
    """--as-owner stops it for good, and leaves nothing of root's in the folder."""
    done = launch_theirs(shared_folder, "import time\nprint('up')\ntime.sleep(600)\n", "--detach", "--run-id", "r")
    assert done.returncode == 0, done.stderr
    there = ("--runs-dir", str(shared_folder / "runs"))
    wait_for(lambda: "up" in bench.mslaunch("logs", "r", *there).stdout, "the rank's output")
    assert "running" in bench.mslaunch("ps", *there).stdout
    assert bench.mslaunch("stop", "r", *there).returncode == 2
    stacks = bench.mslaunch("stacks", "r", *there, "--as-owner")
    assert "train.py" in stacks.stdout, stacks.stderr
    stopped = bench.mslaunch("stop", "r", *there, "--as-owner")
    assert (stopped.returncode, stopped.stdout) == (0, "r: stopped\n"), stopped.stderr
    assert {path.lstat().st_uid for path in (shared_folder / "runs").rglob("*")} == {NOBODY}


def test_closed_runs_of_others_disturb_nobody(bench: Bench, shared_folder: Path) -> None:
    """In a shared folder with root's runs: launching, ps, status, logs and stop of one's own go on working."""
    bench.write("train.py", "print('root')\n")
    runs = shared_folder / "runs"
    assert bench.mslaunch("train", "-n", "1", "--run-id", "a", "--runs-dir", str(runs)).returncode == 0
    runs.chmod(0o1777)
    assert bench.mslaunch("train", "-n", "1", "--run-id", "open", "--runs-dir", str(runs)).returncode == 0
    (runs / "open").chmod(0o755)  # its record stays closed
    done = launch_theirs(shared_folder, "print('mine')\n", "--run-id", "b")
    assert done.returncode == 0, done.stderr
    assert bench.mslaunch("train", "-n", "1", "--run-id", "z", "--runs-dir", str(runs)).returncode == 0
    assert ((runs / "latest").readlink(), (runs / f"latest-{NOBODY}").readlink()) == (Path("z"), Path("b"))
    for args, words in ((("status",), "b: succeeded"), (("logs",), "mine"), (("stop",), "b: succeeded")):
        shown = run_as([MSLAUNCH, *args, "--runs-dir", str(runs)], shared_folder)
        assert words in shown.stdout, shown.stderr
    listed = run_as([MSLAUNCH, "ps", "--runs-dir", str(runs)], shared_folder)
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["RUN", "b"], listed.stdout
    assert re.fullmatch(r"mslaunch: .*/open/run\.json: .*\(Permission denied\)\. .*\n", listed.stderr), listed.stderr


def test_a_folder_of_runs_that_cannot_be_read_is_told(shared_folder: Path) -> None:
    """It is not taken for one without runs."""
    (shared_folder / "closed").mkdir(mode=0o700)
    for verb in ("ps", "status"):
        done = run_as([MSLAUNCH, verb, "--runs-dir", str(shared_folder / "closed")], shared_folder)
        assert done.returncode == 3
        sentence(done, ".*/closed: the folder of runs cannot be read .*")


def test_without_umask_others_cannot_write_into_the_folder_of_runs(bench: Bench) -> None:
    """Neither into those above it that a launch makes; the run itself is closed."""
    bench.write("train.py", "")
    command = f"umask 000; exec {MSLAUNCH} train -n 1 --runs-dir new/runs"
    subprocess.run(["sh", "-c", command], cwd=bench.folder, env=bench.env, check=True, capture_output=True)
    modes = [path.stat().st_mode & 0o777 for path in (bench.folder / "new", bench.folder / "new" / "runs")]
    assert modes == [0o755, 0o755]
    run = (bench.folder / "new" / "runs" / "latest").resolve()
    assert run.stat().st_mode & 0o777 == 0o700
    ours = [path for path in run.rglob("*") if path.is_file() and not path.is_symlink() and "code" not in path.parts]
    assert len(ours) > 8
    assert [path.name for path in ours if path.stat().st_mode & 0o077] == []


HOSTILE = {"started": "yesterday", "world_size": "many", "ranks": 3, "launcher": {"pid": "self"}, "script": ["x"]}


@pytest.mark.parametrize("field", HOSTILE)
def test_a_hostile_record_is_told_in_one_sentence(bench: Bench, field: str) -> None:
    """Whatever another user writes into a run.json, `ps` lists the other runs and shows no traceback."""
    bench.write("train.py", "")
    for name in ("bad", "good"):
        assert bench.mslaunch("train", "-n", "1", "--run-id", name).returncode == 0
    path = bench.runs / "bad" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: HOSTILE[field]}))
    done = bench.mslaunch("ps")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["RUN", "good"]
    assert re.fullmatch(r"mslaunch: .*/bad/run\.json: not a record .*\n", done.stderr), done.stderr


def infer_shared(folder: Path, uid: int) -> subprocess.CompletedProcess[str]:
    """Reshard a checkpoint that everybody may read into a run in a folder that everybody may write to."""
    argv = [MSLAUNCH, "infer", "--ckpt", "ckpt", "-n", "2", "--runs-dir", str(folder / "runs"), "--run-id", f"of-{uid}"]
    return run_as(argv, folder, uid=uid)


def test_every_user_keeps_resharded_sets_of_his_own(shared_folder: Path) -> None:
    """Nobody serves what another user has put there, and nobody fails because of it; a planted folder is reported."""
    fixtures = Path(__file__).parents[1] / "fixtures"
    shutil.copytree(fixtures / "checkpoints/tp4", shared_folder / "ckpt")
    shutil.copy(fixtures / "strategies/tp4/strategy_0.json", shared_folder / "ckpt/strategy.json")
    (shared_folder / "infer.py").write_text("print('served')\n")
    runs = shared_folder / "runs"
    runs.mkdir()
    runs.chmod(0o1777)
    kept = {uid: runs / f".checkpoints-{uid}" for uid in (0, 1001, 1002, 1003)}
    kept[1002].mkdir(mode=0o700)
    kept[1003].symlink_to(kept[0])
    for uid in kept:
        done = infer_shared(shared_folder, uid)
        assert done.returncode == 0, done.stderr
        shards = [*(runs / f"of-{uid}/checkpoints").rglob("*.ckpt")]
        assert {(path.lstat().st_uid, path.lstat().st_nlink) for path in shards} == {(uid, 2 if uid < 1002 else 1)}
        refused = {1002: f"{kept[1002]} belongs to root", 1003: f"{kept[1003]} is not a folder"}.get(uid)
        assert ("is not kept for later runs" in done.stdout) == (refused is not None)
        assert refused is None or f"is not kept for later runs: {refused}" in done.stdout
    assert [path.lstat().st_mode & 0o777 for path in (kept[0], kept[1001])] == [0o700, 0o700]
