"""Failures with real processes: limits, hangs, stacks, restarts, memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mslaunch.diagnose import stacks
from mslaunch.launcher.attempt.decisions import Order
from mslaunch.launcher.attempt.run_state import RunState
from mslaunch.launcher.attempt.timeouts import JOIN_NOTICE, Timeouts
from mslaunch.transports.prestart import AGENT
from tests.conftest import Bench, wait_for
from tests.launcher.test_run_state import STOP, event, exited, run_state_of, started, tell

HANG = """
import os, time
def wait_for_peers():
    time.sleep(60)
def read_data():
    time.sleep(60)
print('ready')
wait_for_peers() if os.environ['RANK_ID'] != '2' else read_data()
"""
# On a busy machine ranks start seconds apart: they write until all of them are there, so that only then all are quiet.
TOGETHER = """
open('up', 'w').close()
while not all(os.path.exists(f'../../rank_{rank}/work/up') for rank in range(int(os.environ['RANK_SIZE']))):
    print('waiting', flush=True)
    time.sleep(0.1)
"""


def verdict_of(bench: Bench) -> dict[str, object]:
    return dict(bench.record()["verdict"])


def test_all_ranks_failing_at_once_name_one_of_them(bench: Bench) -> None:
    """The verdict is one rank's, with the exit code that it had."""
    bench.write("train.py", "raise RuntimeError('all of us')\n")
    done = bench.mslaunch("train", "-n", "4")
    assert done.returncode == 1
    assert verdict_of(bench)["summary"] == "RuntimeError: all of us"


def test_an_exception_in_an_imported_module_is_captured(bench: Bench) -> None:
    """The traceback leads through the module to the line."""
    bench.write("net.py", "def build():\n    return {}['width']\n")
    bench.write("train.py", "import net\nnet.build()\n")
    bench.mslaunch("train", "-n", "1")
    assert 'job/net.py", line 2, in build' in str(verdict_of(bench)["traceback"])


def test_an_exception_in_a_thread_is_recorded_and_ends_nothing(bench: Bench) -> None:
    """As under plain Python the rank goes on; error.json tells what the thread died of."""
    bench.write(
        "train.py", "import threading\nt = threading.Thread(target=lambda: 1 / 0, name='loader')\nt.start(); t.join()\n"
    )
    assert bench.mslaunch("train", "-n", "1").returncode == 0
    error = json.loads((bench.latest / "rank_0" / "error.json").read_text())
    assert (error["thread"], error["type"]) == ("loader", "ZeroDivisionError")


def test_a_segmentation_fault_shows_the_python_stack(bench: Bench) -> None:
    """faulthandler saw it; our own frames are left out, and names keep their letters."""
    bench.write("训练.py", "import faulthandler\ndef 崩溃(): faulthandler._sigsegv()\n崩溃()\n")
    done = bench.mslaunch("train", "-n", "1", "训练.py")
    assert done.returncode == 139
    traceback = str(verdict_of(bench)["traceback"])
    assert '训练.py", line 2 in 崩溃' in traceback
    assert "worker" not in traceback
    assert "The last lines" not in done.stdout


def test_a_rank_that_ends_well_before_the_others_is_reported_and_then_a_failure(bench: Bench) -> None:
    """Soon as a note; after launch.exit_skew as exit code 124."""
    bench.write("train.py", "import os, time\nif os.environ['RANK_ID'] == '0': time.sleep(60)\n")
    bench.write("cfg.yaml", "launch:\n  exit_skew: 2\n  config_arg: null\n")
    done = bench.mslaunch("train", "-n", "3", "-c", "cfg.yaml")
    assert done.returncode == 124
    assert "has ended with code 0; rank" in done.stdout
    assert verdict_of(bench)["cause"] == "exit skew"


SPIN = "import time; end = time.monotonic() + 8\nwhile time.monotonic() < end: pass\n"


@pytest.mark.parametrize(
    "work",
    [
        "for _ in range(16):\n    print('evaluating')\n    time.sleep(0.5)\n",
        SPIN,
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {SPIN!r}])\n",
    ],
    ids=["prints", "computes", "computes in a child"],
)
def test_a_rank_that_works_on_after_the_others_have_ended_is_left_alone(bench: Bench, work: str) -> None:
    """For much longer than launch.exit_skew."""
    bench.write("train.py", f"import os, time\nif os.environ['RANK_ID'] != '0': raise SystemExit\n{work}")
    bench.write("cfg.yaml", "launch:\n  exit_skew: 3\n  host_lost_after: 4\n  config_arg: null\n")
    done = bench.mslaunch("train", "-n", "3", "-c", "cfg.yaml")
    assert done.returncode == 0, done.stdout
    assert "has ended with code 0; rank 0 may go on" in done.stdout


def skewed() -> tuple[RunState, Timeouts]:
    """Three ranks, of which one has ended; the agents have been asked to look at the others."""
    run_state = run_state_of(3, exit_skew=30)
    timeouts = Timeouts(run_state)
    tell(run_state, exited(0, 10.0))
    assert timeouts.check(14.0, 0.0) == [Order("activity")]
    run_state.pop_notes()
    return run_state, timeouts


def active(silent: dict[str, float], idle: dict[str, float]) -> dict[str, Any]:
    return event("activity", 60.0, silent=silent, idle=idle)


@pytest.mark.parametrize(("skew", "notice"), [(300, 30.0), (36_000, 30.0), (100, 10.0), (2, 1.0)])
def test_ranks_that_go_on_are_told_of_after_a_while(skew: float, notice: float) -> None:
    """Ranks of a healthy job end a moment apart, and rank 0 may save a checkpoint; its agent looks at it at once."""
    run_state = run_state_of(2, exit_skew=skew)
    timeouts = Timeouts(run_state)
    tell(run_state, exited(1, 10.0))
    orders = [timeouts.check(now, 0.0) for now in (10.5, 11.0, 10.0 + notice - 0.01)]
    before = run_state.pop_notes() if notice > 1 else []
    timeouts.check(10.0 + notice, 0.0)
    assert (orders[:2], before) == ([[], [Order("activity")]], [])
    assert [note.partition(";")[0] for note in run_state.pop_notes()] == ["rank 1 has ended with code 0"]


def test_ranks_that_wait_for_one_that_computes_are_no_hang() -> None:
    """All that are left must be silent and idle, not only some."""
    run_state, timeouts = skewed()
    tell(run_state, active({"1": 40.0, "2": 40.0}, {"1": 40.0, "2": 0.0}))
    assert timeouts.check(60.0, 0.0) == []
    tell(run_state, active({"1": 70.0, "2": 70.0}, {"1": 70.0, "2": 30.0}))
    assert timeouts.check(90.0, 0.0) == STOP
    assert run_state.ending.failures[0].cause == "exit skew"


def test_ranks_that_compute_in_silence_are_told_of_once() -> None:
    """They may wait busily for each other, which nobody can tell from work."""
    run_state, timeouts = skewed()
    for _ in range(2):
        tell(run_state, active({"1": 40.0, "2": 40.0}, {"1": 0.0, "2": 0.0}))
        assert timeouts.check(60.0, 0.0) == []
    (note,) = run_state.pop_notes()
    assert "ranks 1-2 use CPU time and have printed nothing for 30 s" in note


def test_the_whole_job_has_a_time_limit(bench: Bench) -> None:
    """--timeout ends it with exit code 124; where its ranks stand still, the odd one is named with its line."""
    bench.write("train.py", HANG.replace("print('ready')\n", TOGETHER))
    done = bench.mslaunch("train", "-n", "4", "--timeout", "5")
    assert done.returncode == 124
    verdict = verdict_of(bench)
    assert (verdict["rank"], verdict["cause"]) == (2, "timeout")
    where = "ranks 0-1,3: train.py:4 in wait_for_peers; rank 2: train.py:6 in read_data"
    assert f"the job took longer than 5 s (launch.timeout); {where}" in str(verdict["summary"])


def test_a_hang_is_explained_by_grouped_stacks(bench: Bench) -> None:
    """The odd rank is named with its line, the others with theirs, and the job is ended."""
    bench.write("train.py", HANG.replace("print('ready')\n", TOGETHER))
    done = bench.mslaunch("train", "-n", "4", "--stall-timeout", "5")
    assert done.returncode == 124, done.stdout
    verdict = verdict_of(bench)
    assert (verdict["rank"], verdict["cause"]) == (2, "stalled")
    assert "ranks 0-1,3: train.py:4 in wait_for_peers; rank 2: train.py:6 in read_data" in str(verdict["summary"])
    assert "in read_data" in (bench.latest / "rank_2" / "stack.txt").read_text()


def test_names_in_stacks_keep_their_letters() -> None:
    """faulthandler writes letters beyond ASCII as escapes; what cannot be printed stays one."""
    stack = r"Thread 0x1:" "\n" r'  File "/\u4e2d\u6587/caf\xe9\x07\U0001f600.py", line 3 in \u7b49\u5f85' "\n"
    (frame,) = stacks.parse(stack)
    assert (frame.file, frame.function) == ("/中文/café\\x07😀.py", "等待")


IN_COLLECTIVE = "/site-packages/mindspore/ops/primitive.py"
IN_DATASET = "/site-packages/mindspore/dataset/engine/datasets.py"


@pytest.mark.parametrize(
    ("inside", "rank", "cause"),
    [(IN_COLLECTIVE, 1, "exit skew"), (IN_DATASET, None, "stalled"), ("/home/me/evaluate.py", None, "stalled")],
)
def test_a_rank_that_ended_while_all_others_wait_in_a_collective_is_named(
    inside: str, rank: int | None, cause: str
) -> None:
    """Ranks that wait for their data, or in code of their own, do not wait for it; the sentence has it all the same."""
    run_state = run_state_of(3, stall_timeout=5)
    tell(run_state, exited(1, 10.0))
    run_state.ask_for_stacks("stall")
    stack = (
        f'Thread 0x1 (most recent call first):\n  File "{inside}", line 7 in wait\n  File "train.py", line 9 in main\n'
    )
    assert tell(run_state, event("stacks", 20.0, stacks={"0": stack, "2": stack})) == STOP
    (failure,) = run_state.ending.failures
    assert (failure.rank, failure.cause, failure.exit_code) == (rank, cause, 124)
    assert "ended with code 0" in failure.summary
    assert "no output from any rank for 5 s; ranks 0,2: " in failure.summary


def test_py_spy_adds_native_frames(bench: Bench) -> None:
    """Where it is installed, the C side of a hang is in stack.txt too."""
    py_spy = shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if py_spy is None:
        pytest.skip("py-spy is not installed (pip install '.[dev]')")
    if os.geteuid() != 0:
        pytest.skip("without root, py-spy may only look at its own children")
    bench.write("train.py", HANG)
    bench.start("train", "-n", "1", PATH=f"{Path(py_spy).parent}:{bench.env['PATH']}")
    wait_for(lambda: bench.leftovers() and bench.log(0), "the rank")
    assert "rank 0: train.py:4 in wait_for_peers" in bench.mslaunch("stacks").stdout
    assert "nanosleep" in (bench.latest / "rank_0" / "stack.txt").read_text()
    bench.mslaunch("stop")


def test_a_hang_can_be_reported_only(bench: Bench) -> None:
    """launch.on_stall: report lets the job go on."""
    bench.write("train.py", "import time\ntime.sleep(8)\nprint('done')\n")
    bench.write("cfg.yaml", "launch:\n  on_stall: report\n  stall_timeout: 2\n  config_arg: null\n")
    done = bench.mslaunch("train", "-n", "1", "-c", "cfg.yaml")
    assert done.returncode == 0
    assert "no output from any rank for 2 s; rank 0: train.py:2 in <module>" in done.stdout


def test_stacks_on_demand_leave_the_job_alone(bench: Bench) -> None:
    """`mslaunch stacks` groups the ranks; the job goes on."""
    bench.write("train.py", HANG)
    process = bench.start("train", "-n", "3")
    wait_for(lambda: len(bench.leftovers()) == 3 and all(bench.log(rank) for rank in range(3)), "the ranks")
    done = bench.mslaunch("stacks")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == [
        "ranks 0-1: train.py:4 in wait_for_peers",
        "rank 2: train.py:6 in read_data",
    ]
    assert process.poll() is None
    assert len(bench.leftovers()) == 3
    assert json.loads(bench.mslaunch("stacks", "--json").stdout)[1].startswith("rank 2")
    bench.mslaunch("stop")
    assert bench.mslaunch("stacks").returncode == 2


def test_a_rank_that_is_not_ready_survives_the_taking_of_stacks(bench: Bench) -> None:
    """A program without a handler would die of the signal, so it is not sent."""
    bench.write("go.sh", "#!/bin/sh\necho ready\nsleep 30\n").chmod(0o755)
    process = bench.start("train", "-n", "1", "go.sh")
    wait_for(lambda: bench.leftovers() and bench.log(0), "the rank")
    assert "rank 0: no Python stack could be taken" in bench.mslaunch("stacks").stdout
    assert process.poll() is None
    bench.mslaunch("stop")


def test_ranks_that_do_not_join_are_named() -> None:
    """After a minute of waiting in init(), the ranks that others wait for are named, once."""
    run_state = run_state_of(6)
    timeouts = Timeouts(run_state)
    tell(run_state, *(event("joining", 10.0, rank=rank) for rank in (0, 1, 2, 4)))
    assert timeouts.check(10.0 + JOIN_NOTICE - 1, 0.0) == []
    assert run_state.pop_notes() == []
    timeouts.check(10.0 + JOIN_NOTICE, 0.0)
    assert run_state.pop_notes() == ["ranks 3,5 have not joined after 60 s; the others wait in init()"]
    timeouts.check(10.0 + 2 * JOIN_NOTICE, 0.0)
    assert run_state.pop_notes() == []


def test_an_init_that_does_not_return_is_told_from_a_missing_rank() -> None:
    """All ranks are there, and still nothing happens."""
    run_state = run_state_of(2)
    tell(run_state, event("joining", 1.0, rank=0), event("joining", 1.0, rank=1))
    Timeouts(run_state).check(100.0, 0.0)
    assert run_state.pop_notes() == ["all ranks are in init(), which has not returned after 60 s"]


def absent_rank() -> tuple[RunState, Timeouts]:
    """Four ranks, of which one has ended without init() while the others are in it."""
    run_state = run_state_of(4, exit_skew=30, timeout=1000)
    tell(run_state, *(event("joining", 10.0, rank=rank) for rank in (0, 2, 3)), exited(1, 11.0))
    timeouts = Timeouts(run_state)
    timeouts.check(12.5, 0.0)
    return run_state, timeouts


def test_a_rank_that_has_ended_without_init_is_named_soon() -> None:
    """Once, and long before the minute that ranks have to join in."""
    run_state, timeouts = absent_rank()
    for now in (13.1, 14.0, 80.0 - JOIN_NOTICE):
        timeouts.check(now, 0.0)
    notes = [note for note in run_state.pop_notes() if "init()" in note]
    assert notes == ["rank 1 has ended without init(); ranks 0,2-3 wait for it in init()"]


def test_a_rank_that_has_ended_after_init_is_not_blamed() -> None:
    """It has joined, though the others have not returned yet."""
    run_state = run_state_of(2)
    tell(run_state, *(event("joining", 10.0, rank=rank) for rank in (0, 1)), event("joined", 11.0, rank=1))
    tell(run_state, exited(1, 12.0))
    Timeouts(run_state).check(10.0 + JOIN_NOTICE, 0.0)
    assert run_state.pop_notes()[-1] == "all ranks are in init(), which has not returned after 60 s"


@pytest.mark.parametrize(("now", "cause"), [(60.0, "exit skew"), (1001.0, "timeout")])
def test_a_limit_names_the_rank_that_has_ended_without_init(now: float, cause: str) -> None:
    """Whichever limit comes first."""
    run_state, timeouts = absent_rank()
    assert timeouts.check(now, 0.0) == STOP
    failure = run_state.ending.failures[0]
    assert (failure.rank, failure.cause) == (1, cause)
    assert failure.summary.startswith("rank 1 has ended without init(); ranks 0,2-3 wait for it in init(); ")


def test_ranks_that_end_together_are_not_talked_about() -> None:
    """A healthy job says nothing about a rank that ends a moment before the others."""
    run_state = run_state_of(2)
    tell(run_state, exited(0, 10.0))
    Timeouts(run_state).check(10.5, 0.0)
    assert run_state.pop_notes() == []


def test_the_time_limit_is_the_whole_jobs() -> None:
    """A restart does not begin it anew."""
    run_state = run_state_of(2, timeout=5)
    run_state.activity.last_start = 100.0
    assert Timeouts(run_state, job_began=90.0).check(101.0, 0.0) == [Order("stacks")]


def test_a_hang_is_judged_by_what_the_agents_saw() -> None:
    """Neither the time before the first rank nor that since the last word from an agent counts."""
    run_state = run_state_of(2, stall_timeout=5)
    timeouts = Timeouts(run_state)
    tell(run_state, event("pulse", 50.0, quiet=50.0))
    assert timeouts.check(51.0, 0.0) == []
    tell(run_state, started(0, 60.0), event("pulse", 64.0, quiet=1.0))
    assert timeouts.check(90.0, 0.0) == []
    tell(run_state, event("pulse", 68.5, quiet=5.5))
    assert timeouts.check(68.5, 0.0) == [Order("stacks")]


def test_limits_do_not_touch_a_job_that_is_ending() -> None:
    """Once something failed, no watch adds to it."""
    run_state = run_state_of(2, timeout=5)
    assert tell(run_state, exited(0, 1.0, 3)) == STOP
    assert Timeouts(run_state).check(100.0, 0.0) == []


def test_out_of_memory_is_called_that(bench: Bench, small_memory: Path) -> None:
    """Where the kernel says that it killed the rank for lack of memory, the verdict does too."""
    bench.write(
        "train.py",
        "import os\nif os.environ['RANK_ID'] == '1':\n"
        f"    open('{small_memory}/cgroup.procs', 'w').write(str(os.getpid()))\n"
        "    hog = [bytearray(10_000_000) for _ in range(100)]\n"
        "import time; time.sleep(60)\n",
    )
    done = bench.mslaunch("train", "-n", "2")
    assert done.returncode == 137, done.stdout
    assert "killed by the kernel: out of memory" in done.stdout
    assert verdict_of(bench)["pattern"] == "out-of-memory"


@pytest.mark.parametrize("size", ["1000k", "3m"])
def test_a_full_disk_does_not_end_the_launcher(bench: Bench, size: str) -> None:
    """Ranks are ended, and the exit code is right; how it ended is recorded where there was room to begin with."""
    small = bench.folder.parent / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(small)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("a small file system cannot be mounted here")
    try:
        bench.write("train.py", "for i in range(100000): print('x' * 100)\n")
        done = bench.mslaunch("train", "-n", "2", "--runs-dir", str(small))
        assert done.returncode == 1, done.stdout + done.stderr
        assert "No space left on device" in done.stdout
        assert "Traceback" not in done.stderr
        is_recorded = "failed" in bench.mslaunch("status", "--runs-dir", str(small)).stdout
        is_told = "run.json could not be written: the disk is full" in done.stdout
        assert (is_recorded, is_told) == ((False, True) if size == "1000k" else (True, False))
        assert not list((small / "latest").glob(".run*"))
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_python_3_9_runs_agent_and_ranks(bench: Bench, python_3_9: str) -> None:
    """What travels works on the oldest Python that hosts may have."""
    bench.write(
        "train.py",
        "import sys\nfrom mslaunch.runtime import load_config\nprint(sys.version_info[:2], load_config().lr)\n",
    )
    bench.write("cfg.yaml", f"lr: 2\nlaunch:\n  python: {python_3_9}\n")
    assert "[rank 0] (3, 9) 2" in bench.mslaunch("train", "-n", "1", "-c", "cfg.yaml").stdout
    bundle = bench.latest / "mslaunch.zip"
    agent = subprocess.run(
        [python_3_9, "-I", "-S", "-c", AGENT, str(bundle), "h"], input=b"", capture_output=True, timeout=60
    )
    assert b'"ev":"hello"' in agent.stdout
    assert agent.stderr == b""


def test_ranks_that_raise_by_themselves_are_not_called_victims(bench: Bench) -> None:
    """Two of three ranks raise at the same time; the third one is stopped because of it."""
    bench.write(
        "train.py",
        "import os, pathlib, signal, time\n"
        "rank = os.environ['RANK_ID']\n"
        "if rank == '2': time.sleep(600)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "pathlib.Path(f'../../ready{rank}').touch()\n"
        "while not all(pathlib.Path(f'../../ready{one}').exists() for one in (0, 1)): time.sleep(0.01)\n"
        "raise ValueError('both')\n",
    )
    done = bench.mslaunch("train", "-n", "3")
    assert done.returncode == 1
    record = bench.record()
    first, verdict = record["verdict"]["rank"], record["verdict"]
    assert (verdict["also_failed"], verdict["victims"]) == ([1 - first], [2])
    both = (f"failed too: rank {1 - first}\n", f"or rank {1 - first}, too close in time to tell: the same error\n")
    assert any(words in done.stdout for words in both)
    assert "victims: rank 2, stopped because of it" in done.stdout
    assert "failed" in bench.mslaunch("status").stdout.splitlines()[4 + (1 - first)]
