"""Nothing outlives a run, whatever is killed or stopped: agent, guard, launcher, in any combination."""

from __future__ import annotations

import json
import os
import signal
import sys
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from mslaunch.shared import processes
from tests.conftest import Bench, wait_for

CHILD = (
    "import subprocess, sys, time\n"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
    "time.sleep(600)\n"
)


def agent_of(bench: Bench) -> int:
    """The process of the run's agent: the parent of a rank; its own parent is the guard."""
    return parent_of(wait_for(lambda: started_rank(bench), "the record of a start"))


def started_rank(bench: Bench) -> int | None:
    events = map(json.loads, (bench.latest / "events.jsonl").read_text().splitlines())
    return next((event["pid"] for event in events if event["ev"] == "started"), None)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def running(words: str) -> list[int]:
    """Processes whose command line holds these words."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if words.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def test_a_daemon_without_session_and_environment_ends_with_the_agent(bench: Bench) -> None:
    """`setsid env -i` takes everything away that a process could be known by, but not that it descends from the run."""
    mark = uuid.uuid4().hex
    bench.write(
        "train.py",
        "import subprocess, sys, time\n"
        "code = 'import os, time; os.fork() and os._exit(0); time.sleep(600)'\n"
        f"subprocess.run(['setsid', 'env', '-i', {sys.executable!r}, '-c', code, {mark!r}])\n"
        "time.sleep(600)\n",
    )
    process = bench.start("train", "-n", "1")
    wait_for(lambda: running(mark) and bench.leftovers(), "the daemon")
    os.kill(agent_of(bench), signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == 125
    assert running(mark) == []
    assert list(bench.work(0).iterdir()) == []


def test_killing_agent_and_guard_together_leaves_nothing(bench: Bench) -> None:
    """The ranks die with the agent, and the launcher ends what they have started."""
    bench.write("train.py", CHILD)
    process = bench.start("train", "-n", "2")
    wait_for(lambda: len(bench.leftovers()) == 4, "ranks and their children")
    agent = agent_of(bench)
    for pid in (parent_of(agent), agent):
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == 125
    assert bench.leftovers() == []
    assert [list(bench.work(rank).iterdir()) for rank in (0, 1)] == [[], []]


@pytest.mark.parametrize(("where", "number"), [("here", signal.SIGSTOP), ("n1:1", signal.SIGKILL)])
def test_the_loss_of_the_guard_alone_changes_nothing(request: pytest.FixtureRequest, where: str, number: int) -> None:
    """The agent goes on, and so does the job; its end does not wait for a guard that somebody has stopped."""
    bench: Bench = request.getfixturevalue("bench" if where == "here" else "far")
    flag = bench.folder / "flag"
    bench.write("train.py", f"import os, time\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.05)\n")
    process = bench.start("train", *(["-n", "1"] if where == "here" else ["--hosts", where]))
    wait_for(bench.leftovers, "the rank")
    os.kill(parent_of(agent_of(bench)), number)
    flag.touch()
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0, out


def test_a_stopped_agent_is_continued_to_end_its_ranks(bench: Bench) -> None:
    """SIGTERM of the launcher ends a job whose agent somebody has stopped as any other: the ranks get their time."""
    bench.write("train.py", "import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: exit(0))\ntime.sleep(600)\n")
    process = bench.start("train", "-n", "1")
    wait_for(lambda: processes.handles(started_rank(bench) or 0, signal.SIGTERM) if bench.leftovers() else None, "it")
    os.kill(agent_of(bench), signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 143
    assert bench.record()["ranks"][0]["exit_code"] == 0


def test_a_stopped_agent_does_not_outlive_its_launcher(bench: Bench) -> None:
    """SIGSTOP of the agent, then kill -9 of the launcher: the guard sees both, and ends the run."""
    bench.write("train.py", CHILD)
    process = bench.start("train", "-n", "1")
    wait_for(lambda: len(bench.leftovers()) == 2, "the rank and its child")
    os.kill(agent_of(bench), signal.SIGSTOP)
    process.kill()
    process.wait()
    wait_for(lambda: not bench.leftovers(), "the guard to end the run")
    wait_for(lambda: list(bench.work(0).iterdir()) == [], "the guard to remove the links")


def test_a_stopped_agent_on_another_host_keeps_no_rank_alive(far: Bench) -> None:
    """The launcher gives the host up after launch.host_lost_after, which ends its stream; the guard there sees it."""
    far.write("train.py", CHILD)
    process = far.start("train", "--hosts", "n1:1", "--set", "launch.host_lost_after=3", "train.py")
    wait_for(lambda: len(far.leftovers()) == 2, "the rank and its child")
    os.kill(agent_of(far), signal.SIGSTOP)
    process.communicate(timeout=90)
    assert process.returncode == 125
    wait_for(lambda: not far.leftovers(), "the guard to end the run")
