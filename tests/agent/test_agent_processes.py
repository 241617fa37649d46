"""An agent and its processes: logs of earlier attempts, processes that are hard to see, clocks that differ."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from mslaunch.hosts import LOCAL
from mslaunch.launcher.execute import execute
from mslaunch.launcher.read import Request
from mslaunch.shared.processes import descendants
from tests.beds.driven_agent import driven_agent
from tests.beds.launch_bed import ready
from tests.conftest import Bench, wait_for

HEADLESS = """import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_what_an_attempt_has_written_is_put_aside_before_the_next(tmp_path: Path) -> None:
    """Log, exception, exit, stacks and CANN's own logs get the attempt's number; the job's files stay."""
    folder = tmp_path / "rank_0"
    (folder / "plog").mkdir(parents=True)
    for name in ("log.txt", "log.times", "error.json", "exit.json", "stack.txt", "plog/a.log", "weights.bin"):
        (folder / name).write_text("first")
    with driven_agent(tmp_path) as agent:
        agent.run("echo second", attempt=1)
        agent.until("exited", rank=0)
    kept = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    aside = ["error.0.json", "exit.0.json", "log.0.times", "log.0.txt", "plog.0/a.log", "stack.0.txt"]
    assert kept == sorted([*aside, "log.times", "log.txt", "weights.bin"])
    assert [(folder / name).read_text() for name in ("log.0.txt", "log.txt")] == ["first", "second\n"]


def test_a_process_whose_first_thread_has_ended_is_still_found() -> None:
    """The kernel shows it as a zombie while its other threads run on."""
    process = subprocess.Popen([sys.executable, "-c", HEADLESS])
    try:
        state = Path(f"/proc/{process.pid}/stat")
        wait_for(lambda: state.read_text().rpartition(")")[2].split()[0] == "Z", "its first thread to end")
        assert process.pid in descendants(os.getpid())
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def test_times_of_a_host_are_told_by_our_clock(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a host whose clock is an hour ahead reports at ten happened at nine."""
    bench.write("train.py", "")
    monkeypatch.chdir(bench.folder)
    launch = ready(Request(flags={"workers": 1}))
    cluster = replace(launch.site.open(), skew={LOCAL: 3600.0})
    final = execute(launch, cluster, lambda *_: None)
    began, ended = (datetime.fromisoformat(when or "") for when in (final.started, final.ranks[0].ended))
    assert 3000 < (began - ended).total_seconds() <= 3600
