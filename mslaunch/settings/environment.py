"""Rules about environment variables: which are launch variables, which look like secrets, which a rank gets."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""The name of a variable, as every shell takes it."""

RANKS_ONLY = "MSLAUNCH_ENV_"
"""MSLAUNCH_ENV_K holds the value of `--env K` where K itself would change the launcher too: in a queue's job."""

RANK_VARIABLES = frozenset(
    f"MSLAUNCH_{name}"
    for name in (
        "AGENT",
        "ATTEMPT",
        "CHECKPOINTS",
        "CONFIG",
        "CORES",
        "CWD",
        "ENDED_CODE",
        "ENDED_DIR",
        "ENDED_RUN",
        "ENDED_STATE",
        "ENDED_TEXT",
        "GUARDED",
        "HOST",
        "JOB_DIR",
        "MEMORY_NODES",
        "NUMA_NODE",
        "RANKS",
        "RESUME",
        "RUN_DIR",
        "RUN_ID",
        "SECRETS",
        "SHARED",
        "SUBMIT_DIR",
        "WORKDIR",
    )
)
"""What mslaunch itself sets for ranks and hooks, and so for a launch inside one of them."""

LAUNCH_VARIABLES = (
    "MS_ROLE",
    "MS_SCHED_HOST",
    "MS_SCHED_PORT",
    "MS_WORKER_NUM",
    "MS_SERVER_NUM",
    "MS_NODE_ID",
    "MS_WORKER_IP",
    "RANK_ID",
    "RANK_SIZE",
    "RANK_TABLE_FILE",
    "MINDSPORE_HCCL_CONFIG_PATH",
    "DEVICE_ID",
    "DEVICE_NUM",
    "SERVER_ID",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)
"""What launchers set for one process. Tunables such as MS_TOPO_TIMEOUT are the user's and are passed on."""

IDENTITY = frozenset(
    (
        "MS_ROLE",
        "MS_NODE_ID",
        "MS_WORKER_NUM",
        "MS_SCHED_HOST",
        "MS_SCHED_PORT",
        "RANK_ID",
        "RANK_SIZE",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
    )
)
"""What makes a rank that rank: with one value for all of them, or another one, no job could work."""

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


def asked_by_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the MSLAUNCH_* variables that somebody has set as settings, not mslaunch for a rank that launches."""
    inside = "MSLAUNCH_RUN_DIR" in environment
    return {
        name: value
        for name, value in environment.items()
        if name.startswith("MSLAUNCH_") and value and not (inside and name in RANK_VARIABLES)
    }


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
