"""A local agent started early: Python starts in another process while the launcher still loads its own modules.

Until it gets orders an agent does nothing, and when its input closes it ends, so an unused agent exits by itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

AGENT = "import sys; sys.path.append(sys.argv[1]); from mslaunch.agent.main import main; main(*sys.argv[2:])"
NAMELESS_AGENT = (
    "import sys; sys.path.append(sys.argv[1]); from mslaunch.agent.main import main; import mslaunch.shared.probe\n"
    "name = sys.stdin.buffer.raw.readline().decode().strip(); name and main(name)"
)
"""Loads what it needs, and learns its host's name from the first line of its input."""

NOT_FOR_AGENTS = ("MSLAUNCH_SECRET",)
"""Variables of this process that nothing it starts may see."""

_early: list[subprocess.Popen[bytes]] = []


def start(
    host: str, python: str | None = None, reads_stdin: bool = True, without: Collection[str] = ()
) -> subprocess.Popen[bytes]:
    """Start an agent, `without` some variables, in its own session: Ctrl-C is for the launcher."""
    here = str(Path(__file__).parents[2])
    ends: tuple[int, ...] = ()
    with suppress(OSError):  # a terminal that is another job's at the moment is not for a rank of this one
        if reads_stdin and not (os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp()):
            ends = (os.dup(0),)
    argv = (python or sys.executable, "-I", "-S", "-c", AGENT, here, host, *map(str, ends))
    try:
        return _popen(argv, without, ends)
    finally:
        for end in ends:
            os.close(end)


def start_nameless(without: Collection[str] = ()) -> subprocess.Popen[bytes]:
    """Start an agent before its host's name is known: the first line of its input."""
    here = str(Path(__file__).parents[2])
    return _popen((sys.executable, "-I", "-S", "-c", NAMELESS_AGENT, here), without)


def _popen(argv: Sequence[str], without: Collection[str], ends: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv,
        env={name: value for name, value in os.environ.items() if name not in (*NOT_FOR_AGENTS, *without)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        bufsize=0,
        pass_fds=ends,
    )


def start_early(host: str) -> None:
    _early.append(start(host))


def take(host: str) -> subprocess.Popen[bytes]:
    """Return the agent that was started early, or a new one."""
    early = _early.pop() if _early else None
    return early if early is not None and early.poll() is None else start(host)
