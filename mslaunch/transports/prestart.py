"""A local agent started early: Python starts in another process while the launcher still loads its own modules.

Until it gets orders an agent does nothing, and when its input closes it ends, so an unused agent exits by itself.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

AGENT = "import sys; sys.path.append(sys.argv[1]); from mslaunch.agent.main import main; main(sys.argv[2])"

_early: list[subprocess.Popen[bytes]] = []


def start(host: str) -> subprocess.Popen[bytes]:
    """Start an agent from this installation, in a session of its own, so that Ctrl-C reaches the launcher only."""
    here = str(Path(__file__).parents[2])
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", AGENT, here, host],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        bufsize=0,
    )


def start_early(host: str) -> None:
    _early.append(start(host))


def take(host: str) -> subprocess.Popen[bytes]:
    """Return the agent that was started early, or a new one."""
    early = _early.pop() if _early else None
    return early if early is not None and early.poll() is None else start(host)
