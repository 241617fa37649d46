"""Rules about environment variables: which are launch variables, which travel, which defaults a rank gets."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping

from mslaunch.settings.environment import RANK_VARIABLES, VARIABLES

LAUNCH_VARIABLES = tuple(row.name for row in VARIABLES if row.name not in RANK_VARIABLES and not row.keeps_own)
"""What launchers set for one process."""
IDENTITY = frozenset(row.name for row in VARIABLES if row.is_identity)

_LAUNCHER_PREFIXES = re.compile(r"(OMPI|PMIX|PMI|PRTE|HYDRA|TORCHELASTIC|MSLAUNCH)_")
_USER_TUNABLE = re.compile(r"OMPI_MCA_|PMIX_MCA_")

_TUNED: tuple[tuple[int, Mapping[str, str]], ...] = (
    (
        0,
        {
            # A worker that registers before the scheduler listens waits this long; MindSpore's default is 3 to 5 s.
            "MS_RETRY_INTERVAL_LOWER": "1",
            "MS_RETRY_INTERVAL_UPPER": "1",
            # What msrun gives a cluster to form.
            "MS_TOPO_TIMEOUT": "600",
            # Output reaches log.txt line by line, also that of a rank that is killed.
            "PYTHONUNBUFFERED": "1",
        },
    ),
    # MindSpore's FAQ gives MS_NODE_TIMEOUT 900 to 1800 s above 128 devices. There MindSpore makes one try for each
    # 3 s of it, with a retry interval between two: one of 1 s would cut the time to a third, so its default stays.
    # To form a cluster MindSpore's own default is 1800 s.
    (128, {"MS_TOPO_TIMEOUT": "1800", "MS_NODE_TIMEOUT": "900", "PYTHONUNBUFFERED": "1"}),
    (1024, {"MS_TOPO_TIMEOUT": "3600", "MS_NODE_TIMEOUT": "1800", "PYTHONUNBUFFERED": "1"}),
)
"""Defaults for jobs with more ranks than the number; the last row that applies counts."""
TUNABLE = frozenset(name for _, defaults in _TUNED for name in defaults)
"""Variables with a default that a variable of the same name in the shell overrides."""


def is_identity(name: str) -> bool:
    """Tell whether a variable is mslaunch's alone to set."""
    return name in IDENTITY or name.startswith("MSLAUNCH_")


def store_port(port: int) -> int:
    """MASTER_PORT: a store of rank 0 may listen there, so it is not the port of MindSpore's scheduler."""
    return port + 1


def inherited_launch_variables(environment: Iterable[str]) -> tuple[str, ...]:
    """Name the variables that another launcher, a pod or an earlier export left in the shell."""
    names = set(environment)
    inside_mpirun = "OMPI_COMM_WORLD_RANK" in names
    dropped = {name for name in names if name in LAUNCH_VARIABLES}
    for name in names:
        if _LAUNCHER_PREFIXES.match(name) and (inside_mpirun or not _USER_TUNABLE.match(name)):
            dropped.add(name)
    return tuple(sorted(dropped))


def absolute_pythonpath(environment: Mapping[str, str], submit_dir: str) -> dict[str, str]:
    """Ranks run in folders of their own, so relative entries of PYTHONPATH are made absolute."""
    entries = environment.get("PYTHONPATH", "").split(":")
    if all(entry.startswith("/") or not entry for entry in entries):
        return {}
    return {"PYTHONPATH": ":".join(posixpath.join(submit_dir, entry) if entry else entry for entry in entries)}


def tuned_defaults(environment: Mapping[str, str], world_size: int) -> dict[str, str]:
    """Return the defaults for a job of this size that the shell does not override."""
    *_, defaults = (row for ranks, row in _TUNED if world_size > ranks)
    return {name: value for name, value in defaults.items() if name not in environment}


CARRIED = ("MS_", "GLOG_", "HCCL_", "ASCEND_", "NCCL_", "CUDA_", "MINDSPORE_", "OMP_", "OMPI_MCA_", "LC_")
CARRIED_NAMES = ("PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "TZ")

NOT_CARRIED = ("ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
"""These name devices of the machine that they are set on."""


def carried(environment: Mapping[str, str], unset: tuple[str, ...]) -> tuple[str, ...]:
    """Name the variables that travel to other hosts; everything else is the host's own."""
    names = (name for name in environment if name.startswith(CARRIED) or name in CARRIED_NAMES)
    return tuple(sorted(name for name in names if name not in unset and name not in NOT_CARRIED))
