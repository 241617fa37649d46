"""Processes of a rank that are killed: the verdict names them, and the kernel where it lacked memory."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from mslaunch.agent.kernel_kills import KernelKills
from mslaunch.diagnose.case import Case
from mslaunch.diagnose.judge import judge
from mslaunch.diagnose.logs.scan import scan
from tests.conftest import Bench

KILLED = """
import multiprocessing, os, signal, sys, time
child = multiprocessing.get_context({start!r}).Process(target=time.sleep, args=(600,))
if __name__ == "__main__":
    child.start()
    {kill}
    child.join()
    {end}
"""
BY_OTHERS = "os.kill(child.pid, signal.SIGKILL)"
BY_SIGTERM = "os.kill(os.getpid(), signal.SIGTERM); time.sleep(600)"


@pytest.mark.parametrize(
    ("start", "end", "words"),
    [
        ("fork", BY_SIGTERM, "was killed by SIGTERM"),
        ("spawn", "sys.exit(3)", "exited with code 3"),
        ("fork", "raise RuntimeError('a worker died.\\nTry again.')", "RuntimeError: a worker died"),
    ],
)
def test_a_killed_data_loading_process_is_named(bench: Bench, start: str, end: str, words: str) -> None:
    """How the rank ends after it is only the consequence."""
    bench.write("train.py", KILLED.format(start=start, kill=BY_OTHERS, end=end))
    done = bench.mslaunch("train", "-n", "1")
    headline = bench.record()["verdict"]["summary"].splitlines()[0]
    assert headline.startswith(f"{words}, after its child process ")
    assert headline.endswith(" was killed by SIGKILL")
    assert headline in done.stdout
    assert "advice: SIGKILL comes from outside" in done.stdout
    assert "out-of-memory kills since the job began: " in done.stdout


POOL = (
    "from concurrent.futures import ProcessPoolExecutor\n"
    "def die(): os.kill(os.getpid(), signal.SIGKILL)\n"
    "with ProcessPoolExecutor(2) as pool: pool.submit(die).result()\n"
)
PROGRAM = "child = subprocess.Popen(['sleep', '600'])\n{kill}\nchild.wait()\nraise RuntimeError('it died')\n"


@pytest.mark.parametrize("script", [POOL, PROGRAM.format(kill=BY_OTHERS)], ids=["pool", "program"])
def test_a_killed_process_of_a_pool_and_a_killed_program_are_named(bench: Bench, script: str) -> None:
    """A pool ends its other processes by itself, which nobody takes for the reason."""
    bench.write("train.py", f"import os, signal, subprocess\n{script}")
    bench.mslaunch("train", "-n", "1")
    assert bench.record()["verdict"]["summary"].endswith(" was killed by SIGKILL")


OWN = KILLED.format(start="fork", kill="child.{end}()", end="raise RuntimeError('it died')")


@pytest.mark.parametrize(
    "script",
    [
        OWN.replace("{end}", "kill"),
        OWN.replace("{end}", "terminate"),
        f"import subprocess\n{PROGRAM.format(kill='child.kill()')}",
        "import os, signal, atexit, time\n"
        "if (child := os.fork()) == 0: time.sleep(600)\n"
        "atexit.register(lambda: os.kill(child, signal.SIGKILL))\n"
        "raise RuntimeError('it died')\n",
    ],
    ids=["kill", "terminate", "program", "after its exception"],
)
def test_processes_that_the_script_ends_itself_are_no_reason(bench: Bench, script: str) -> None:
    """A script may end its own processes as it likes."""
    bench.write("train.py", script)
    bench.mslaunch("train", "-n", "1")
    assert bench.record()["verdict"]["summary"] == "RuntimeError: it died"


@pytest.mark.parametrize(
    ("end", "words"), [(BY_SIGTERM, "was killed by SIGTERM"), ("raise KeyError('x')", "KeyError: 'x'")]
)
def test_a_killed_process_that_nobody_waited_for_is_named(bench: Bench, end: str, words: str) -> None:
    """It comes to the agent together with its rank; a rank that raises reports it."""
    bench.write(
        "train.py",
        "import os, signal, sys, time\n"
        "child = os.fork()\n"
        "if child == 0: time.sleep(600)\n"
        "os.kill(child, signal.SIGKILL)\n"
        "os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)\n"
        "print('child', child, flush=True)\n"
        f"{end}\n",
    )
    bench.mslaunch("train", "-n", "1")
    child = bench.log(0).split()[1]
    summary = bench.record()["verdict"]["summary"]
    assert summary.startswith(f"{words}, after its child process {child}")
    assert summary.endswith(" was killed by SIGKILL")


@pytest.mark.parametrize("end", [BY_SIGTERM, "raise RuntimeError('a worker died')"])
def test_a_process_that_was_killed_for_lack_of_memory_is_the_cause(bench: Bench, small_memory: Path, end: str) -> None:
    """Also where the rank raises because of it; its traceback is shown all the same."""
    bench.write(
        "train.py",
        "import multiprocessing, os, signal, time\n"
        "def load():\n"
        f"    open('{small_memory}/cgroup.procs', 'w').write(str(os.getpid()))\n"
        "    hog = [bytearray(10_000_000) for _ in range(100)]\n"
        "child = multiprocessing.get_context('fork').Process(target=load)\n"
        "child.start()\n"
        "child.join()\n"
        f"{end}\n",
    )
    done = bench.mslaunch("train", "-n", "1")
    verdict = bench.record()["verdict"]
    assert verdict["summary"].startswith("its child process ")
    assert verdict["summary"].endswith(" was killed by the kernel: out of memory")
    assert verdict["pattern"] == "out-of-memory"
    assert ("RuntimeError: a worker died" in done.stdout) == ("raise" in end)


def test_mindspores_own_words_about_a_data_loading_process_are_the_summary() -> None:
    """Its main process ends itself by SIGTERM then, which says nothing."""
    line = (
        "[ERROR] MD(1,7f,python3):2026-11-17-12:38:38.657.340 [sig_handler.cc:556] SIGCHLDHandler] "
        "Dataset worker process 27744 was killed by signal: Killed. Main process will be terminated."
    )
    case = Case("0", 0, failed_at=1.0, exit_code=143, signal=15, cause="signal", summary="was killed by SIGTERM")
    verdict = judge([Case(**{**{name: getattr(case, name) for name in case.__slots__}, "findings": scan([line])})])
    assert verdict is not None
    assert verdict.summary == (
        "The data-loading process 27744 was killed from outside (Killed). The rank was then ended by SIGTERM."
    )
    assert verdict.pattern == "dataset-worker-killed"


class Machine:
    """Files with the contents that a kernel gives them."""

    def __init__(self, folder: Path) -> None:
        self.own, self.all, self.log = folder / "memory.events", folder / "vmstat", folder / "kmsg"
        self.own.write_text("low 0\nhigh 0\nmax 12\noom 0\noom_kill 0\noom_group_kill 0\n")
        self.all.write_text("nr_free_pages 1\noom_kill 7\n")
        self.log.write_text(f"3,1,{int((time.monotonic() - 900) * 1e6)},-;Out of memory: Killed process 11 (old)\n")
        self.kills = KernelKills(([str(self.own)], str(self.all)), str(self.log))

    def kill(self, pid: int, in_own_group: bool) -> None:
        self.all.write_text("nr_free_pages 1\noom_kill 8\n")
        if in_own_group:
            self.own.write_text("low 0\nhigh 0\nmax 99\noom 1\noom_kill 1\noom_group_kill 0\n")
        now = int(time.monotonic() * 1e6)
        group = "/system.slice/job" if in_own_group else "/other"
        with self.log.open("a") as file:
            file.write(
                f"6,742,{now},-;oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg={group},task=python3,pid={pid},uid=0\n"
                f"3,743,{now},-;Memory cgroup out of memory: Killed process {pid} (python3) total-vm:323756kB\n"
            )


def test_nothing_was_killed(tmp_path: Path) -> None:
    """Kills from before the job do not count."""
    assert Machine(tmp_path).kills.find(11, ()) is None


def test_the_rank_itself_was_killed(tmp_path: Path) -> None:
    """By its number in the kernel's log."""
    machine = Machine(tmp_path)
    machine.kill(42, in_own_group=False)
    assert machine.kills.find(42, ()) == ""


def test_a_dead_child_was_killed(tmp_path: Path) -> None:
    """It is named with what the kernel calls it."""
    machine = Machine(tmp_path)
    machine.kill(43, in_own_group=False)
    assert machine.kills.find(42, (43,)) == "43 (python3)"


@pytest.mark.parametrize(("in_own_group", "found"), [(True, "44 (python3)"), (False, None)])
def test_a_process_that_nobody_saw_counts_in_the_jobs_own_group(
    tmp_path: Path, in_own_group: bool, found: str | None
) -> None:
    """Elsewhere on the machine it is somebody else's."""
    machine = Machine(tmp_path)
    machine.kill(44, in_own_group)
    assert machine.kills.find(42, ()) == found


def test_what_the_kernel_shows_is_described_with_what_it_does_not_show(tmp_path: Path) -> None:
    """Who reads that a rank was killed by SIGKILL wants to know whether the kernel did it."""
    machine = Machine(tmp_path)
    begin = "out-of-memory kills since the job began:"
    assert machine.kills.describe() == f"{begin} none in its cgroup, none on the machine"
    machine.kill(46, in_own_group=False)
    machine.log.unlink()
    machine.own.unlink()
    assert machine.kills.describe() == (
        f"{begin} not counted in its cgroup, 1 on the machine; the kernel's log cannot be read here"
    )


def test_without_the_kernels_log_the_counters_tell(tmp_path: Path) -> None:
    """Most users may not read it."""
    machine = Machine(tmp_path)
    machine.kill(45, in_own_group=True)
    machine.log.unlink()
    assert machine.kills.find(42, (45,)) == "45"
    assert machine.kills.find(42, ()) == "of unknown number"
