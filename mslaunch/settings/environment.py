"""The variables of a launch: a table of those that ranks get, and which of the shell's are settings."""

from __future__ import annotations

import re
from dataclasses import dataclass

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""The name of a variable, as every shell takes it."""

RANKS_ONLY = "MSLAUNCH_ENV_"
"""MSLAUNCH_ENV_K holds the value of `--env K` where K itself would change the launcher too: in a queue's job."""


@dataclass(frozen=True, slots=True)
class RankVariable:
    """A variable that mslaunch, or another launcher, sets for a process."""

    name: str
    meaning: str = ""
    """Empty for what no rank of ours gets: the variables of other launchers, of hooks and of mslaunch itself."""
    setter: str = "every method"
    is_identity: bool = False
    """It makes a rank that rank: with one value for all of them, or another one, no job could work."""
    keeps_own: bool = False
    """A value from the shell is kept."""


_CLUSTER = "dynamic, msrun; on a CPU every method"
_BOUND = "every method, for ranks that are bound"
VARIABLES = (
    RankVariable("MS_ROLE", "MS_WORKER", _CLUSTER, is_identity=True),
    RankVariable("MS_SCHED_HOST", "address of MindSpore's scheduler: the first host", _CLUSTER, is_identity=True),
    RankVariable("MS_SCHED_PORT", "its port", _CLUSTER, is_identity=True),
    RankVariable("MS_WORKER_NUM", "number of ranks", _CLUSTER, is_identity=True),
    RankVariable("MS_SERVER_NUM"),
    RankVariable("MS_NODE_ID", "number of the rank", _CLUSTER, is_identity=True),
    RankVariable("MS_WORKER_IP"),
    RankVariable("RANK_ID", "number of the rank", is_identity=True),
    RankVariable("RANK_SIZE", "number of ranks", is_identity=True),
    RankVariable("RANK_TABLE_FILE", "the rank table", "rank-table; every method with `--rank-table`"),
    RankVariable("MINDSPORE_HCCL_CONFIG_PATH"),
    RankVariable("DEVICE_ID", "number of the rank's device on its host"),
    RankVariable("DEVICE_NUM", "devices used on the rank's host"),
    RankVariable("SERVER_ID", "number of the host", "rank-table"),
    RankVariable("RANK", "as torchrun: RANK_ID", is_identity=True),
    RankVariable("WORLD_SIZE", "as torchrun: RANK_SIZE", is_identity=True),
    RankVariable("LOCAL_RANK", "as torchrun: number of the rank on its host", is_identity=True),
    RankVariable("LOCAL_WORLD_SIZE", "as torchrun: ranks on the host"),
    RankVariable("NODE_RANK", "as torchrun: number of the host"),
    RankVariable("GROUP_RANK", "as torchrun: number of the host"),
    RankVariable("MASTER_ADDR", "as torchrun: the first host"),
    RankVariable("MASTER_PORT", "as torchrun: a free port there, for a store of rank 0"),
    RankVariable("OMP_NUM_THREADS", "number of the rank's cores", _BOUND, keeps_own=True),
    RankVariable("ASCEND_PROCESS_LOG_PATH", "folder of CANN's logs", "every method, on Ascend", keeps_own=True),
    RankVariable("MSLAUNCH_RUN_ID", "name of the run"),
    RankVariable("MSLAUNCH_RUN_DIR", "folder of the run"),
    RankVariable("MSLAUNCH_ATTEMPT", "number of the attempt, from 0"),
    RankVariable("MSLAUNCH_HOST", "name of the rank's host"),
    RankVariable("MSLAUNCH_CONFIG", "the configuration of the script, as JSON"),
    RankVariable("MSLAUNCH_SUBMIT_DIR", "folder of the launch"),
    RankVariable("MSLAUNCH_JOB_DIR", "root of the project"),
    RankVariable("MSLAUNCH_CWD", "`launch.cwd`"),
    RankVariable("MSLAUNCH_WORKDIR", "where in the project the ranks work, unless in its root"),
    RankVariable("MSLAUNCH_SHARED", "`launch.shared`, if any, separated by colons"),
    RankVariable("MSLAUNCH_SECRETS", "names of variables that are secrets, if any, separated by commas"),
    RankVariable("MSLAUNCH_CHECKPOINTS", "file that names the checkpoint of each rank, for `mslaunch infer`"),
    RankVariable("MSLAUNCH_RESUME", "checkpoint that the rank resumes from, after a restart"),
    RankVariable("MSLAUNCH_CORES", "the rank's cores", _BOUND),
    RankVariable("MSLAUNCH_NUMA_NODE", "the NUMA node of the rank's device", _BOUND),
    RankVariable("MSLAUNCH_MEMORY_NODES", "NUMA nodes of the rank's memory", _BOUND),
    RankVariable("MSLAUNCH_AGENT"),
    RankVariable("MSLAUNCH_RANKS"),
    RankVariable("MSLAUNCH_GUARDED_BY"),
    RankVariable("MSLAUNCH_ENDED_CODE"),
    RankVariable("MSLAUNCH_ENDED_DIR"),
    RankVariable("MSLAUNCH_ENDED_RUN"),
    RankVariable("MSLAUNCH_ENDED_STATE"),
    RankVariable("MSLAUNCH_ENDED_TEXT"),
)
"""Every variable of a launch, each once. Tunables such as MS_TOPO_TIMEOUT are the user's and are passed on."""

RANK_VARIABLES = frozenset(row.name for row in VARIABLES if row.name.startswith("MSLAUNCH_"))
"""What mslaunch itself sets for ranks and hooks, and so for a launch inside one of them."""
