"""Stands between msrun or mpirun and a rank: they do not tell how a rank ended, so this does."""

from __future__ import annotations

import os
import signal
import sys
import time

from mslaunch.shared import processes, work_folder
from mslaunch.worker import report


def split(exit_file: str) -> None:
    """Fork: the child returns and becomes the rank, the parent waits, records its end in exit.json and ends alike."""
    parent = os.getpid()
    done, say_done = os.pipe()
    child = os.fork()
    if child == 0:
        processes.die_with_parent(parent)
        report.settle().say_done = say_done
        return
    os.close(say_done)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # An agent signals the rank itself; without one, this is the only way to it.
        signal.signal(number, signal.SIG_IGN if report.me.agent else lambda number, _: _forward(child, number))
    report.notify("started", child=child)
    status = os.waitpid(child, 0)[1]
    if report.me.rank is not None and not report.me.agent:
        work_folder.clear(report.me.run_dir, report.me.rank)  # an agent does so when nothing of the run is left
    outcome = processes.outcome(status)
    code, killed_by, crashed = outcome["code"], outcome["signal"], None
    if killed_by in processes.CRASHES and _was_said(done):
        # Only MindSpore's clean-up has crashed, and mpirun would end all other ranks for it.
        code, killed_by, crashed = 0, None, killed_by
    ended: dict[str, report.Value] = {"code": code, "signal": killed_by, "time": time.time()}
    try:
        report.write_json(exit_file, ended)
    except OSError as error:
        print(f"mslaunch: cannot write {exit_file}: {error}", file=sys.stderr)
    report.notify("ended", child=child, code=code, signal=killed_by, crashed=crashed)
    os._exit(128 + killed_by if killed_by else code or 0)


def _was_said(pipe: int) -> bool:
    os.set_blocking(pipe, False)  # what the rank has started may still hold the other end
    try:
        return os.read(pipe, 1) != b""
    except BlockingIOError:
        return False


def _forward(child: int, number: int) -> None:
    try:
        os.kill(child, number)
    except ProcessLookupError:
        pass
