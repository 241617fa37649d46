"""The limit of open files: every shard takes one, and many shards take more than a shell allows by default."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

SPARE = 64
"""For whatever else this process opens meanwhile."""


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
