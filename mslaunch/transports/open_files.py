"""The limit of open files: every host takes a few, and many hosts take more than a shell allows by default."""

from __future__ import annotations

import os
import resource

from mslaunch.errors import NotReadyError

PER_HOST = 4
"""Standard input, output and error of a host's process; and one more while it starts."""
SPARE = 64
"""For logs, modules, and whatever else this process opens meanwhile."""


def raise_limit(hosts: int) -> None:
    """Make room for the streams to so many hosts, or refuse."""
    needed = hosts * PER_HOST + SPARE + len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise NotReadyError(
            f"{hosts} hosts need {needed} open files, and the limit here is {hard}. Raise it (nofile in "
            f"/etc/security/limits.conf), or name fewer hosts."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed if hard == resource.RLIM_INFINITY else hard, hard))
