"""The limit of open files: many hosts or many shards take more than a shell allows by default."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from mslaunch.errors import NotReadyError
from mslaunch.text import counted

PROCESS_FILES = 4
"""Standard input, output and error of a host's process; and one more while it starts."""
SPARE = 64
"""For logs, modules, and whatever else this process opens meanwhile."""


def raise_limit(hosts: int, per_host: int = PROCESS_FILES, extra: int = 0) -> None:
    """Make room for the streams to so many hosts, or refuse; for `extra` files too, as far as the limit allows."""
    needed = hosts * per_host + SPARE + len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed + extra <= soft:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise NotReadyError(
            f"{counted(hosts, 'host')} need {needed} open files, and the limit here is {hard}. Raise it (nofile in "
            f"/etc/security/limits.conf), or name fewer hosts."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed + extra if hard == resource.RLIM_INFINITY else hard, hard))


@contextmanager
def room_for(files: int) -> Iterator[None]:
    """Raise the limit while so many files are open; where it cannot be raised, opening one too many tells."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = files + SPARE + len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    if soft == resource.RLIM_INFINITY or needed <= soft:
        yield
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed if hard == resource.RLIM_INFINITY else hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
