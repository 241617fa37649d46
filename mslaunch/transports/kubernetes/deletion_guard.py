"""Deletes the objects of a job whose submitter was killed: a process of its own that sees the pipe to it end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_MAIN = (
    "import sys; sys.path.append(sys.argv[1]); from mslaunch.transports.kubernetes.deletion_guard import main; main()"
)
PATIENCE = 300.0


class Guard:
    """The process, and the job that it is to delete."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.job = ""
        self.process = process

    def watch(self, job: str, mark: str = "") -> None:
        """Have the job with this mark deleted if this process is killed; an empty name releases it again."""
        self.job = job
        with suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.write(f"{job} {mark}\n".encode())
            self.process.stdin.flush()


@contextmanager
def guarding() -> Iterator[Guard]:
    """Have what is watched, and not released, deleted when the block or this process ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", _MAIN, str(Path(__file__).parents[3])],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    guard = Guard(process)
    try:
        yield guard
    finally:
        with suppress(OSError):
            assert process.stdin is not None
            process.stdin.close()
        if not guard.job:  # else it goes on with the deletion by itself
            process.wait()


def main() -> None:
    """Wait for the end of the pipe; delete the job that its last line names."""
    lines = sys.stdin.read().splitlines()
    if not lines or not lines[-1].strip():
        return
    from mslaunch.transports.kubernetes.api_server import JobObjects, NotFound, mark_of, parse_job

    job, _, mark = lines[-1].rpartition(" ")
    cluster = JobObjects(parse_job(job))
    with suppress(NotFound):
        if mark_of(cluster.root(PATIENCE)) == mark:
            cluster.delete(PATIENCE)
