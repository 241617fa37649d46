"""Deletes the objects of a job whose submitter was killed: a process of its own that sees the pipe to it end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_MAIN = (
    "import sys; sys.path.append(sys.argv[1]); from mslaunch.transports.kubernetes.guard import main; main(sys.argv[2])"
)
_DONE = b"done"
PATIENCE = 600.0


@contextmanager
def guarded(job: str) -> Iterator[None]:
    """Have a job deleted if this process is killed inside the block."""
    with subprocess.Popen(
        [sys.executable, "-c", _MAIN, str(Path(__file__).parents[3]), job],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            yield
        finally:
            with suppress(OSError):
                process.communicate(_DONE)


def main(job: str) -> None:
    """Wait for the end of the pipe; delete the job unless all was well."""
    if sys.stdin.buffer.read() == _DONE:
        return
    from mslaunch.transports.kubernetes.cluster import Cluster, parse_job

    Cluster(parse_job(job)).delete(PATIENCE)
