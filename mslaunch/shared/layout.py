"""What the files and folders of a run are called, on every host. Travels with the agent: Python 3.9, no imports.

docs/runs.md says what each holds. Paths are relative to the run's folder; those of a rank, to the rank's folder.
"""

PLAN = "plan.json"
RECORD = "run.json"
EVENTS = "events.jsonl"
METRICS = "metrics.jsonl"
LABELS = "labels.json"
REPORT = "report.html"
LAUNCHER_LOG = "launcher.log"
ON_END_LOG = "on_end.log"
CONFIG = "config.yaml"
CONFIG_JSON = "config.json"
CHECKPOINTS = "checkpoints.json"
CALL = "call.pkl"
ZIP = "mslaunch.zip"
BOOT = "mslaunch_rank.py"
RESERVE = ".reserve"  # room on the disk that the last record of a run needs; gone once that is written
CODE = "code"
REPOSITORY = ".git"  # in code/, where the project has one: a repository of the run's own
SNAPSHOT = "code.json"  # what was put into code/: the files that were copied, and the links to the project
SCHEDULER = "scheduler"
MSRUN_LOGS = "msrun"
LATEST = "latest"  # in the folder of runs: a link to the newest one, of the user who owns the link
SWEEP = "sweep.json"
SWEEP_LOCK = "sweep.lock"  # in a folder that holds the runs of a sweep

SCRIPTS = "scripts"
RANKS = f"{SCRIPTS}/ranks.json"
RANK_TABLE = f"{SCRIPTS}/rank_table.json"
HOSTFILE = f"{SCRIPTS}/hostfile"
SETUP_LOG = f"{SCRIPTS}/setup.log"
SYNC_LOG = f"{SCRIPTS}/sync.log"

RANK = "rank_"
WORK = "work"  # in a rank's folder: its mirror of the project, in which it works, and where what it writes stays
LOG = "log.txt"
TIMES = "log.times"
ENV_LOG = "env.log"
ERROR = "error.json"
EXIT = "exit.json"
STACK = "stack.txt"
VERSIONS = "mslaunch_versions.json"
RESULT = "result.pkl"
PLOG = "plog"
RANK_FILES = (LOG, TIMES, ENV_LOG, ERROR, EXIT, STACK, VERSIONS)  # what mslaunch writes into a rank's folder
COLLECTED_OF_A_RANK = (*RANK_FILES, RESULT)
_FOLDERS_WITH_LOGS = (SCHEDULER, SCRIPTS, MSRUN_LOGS)
ATTEMPT_FILES = (LOG, TIMES, ERROR, EXIT, STACK, PLOG)
"""What each attempt writes anew; a restart renames those of the attempt before."""


def rank_folder(rank: int) -> str:
    return f"{RANK}{rank}"


def work_folder(rank: int) -> str:
    return f"{RANK}{rank}/{WORK}"


def latest_of(user: int) -> str:
    """The link to a user's newest run where `latest` is another user's."""
    return f"{LATEST}-{user}"


def script(name: str) -> str:
    return f"{SCRIPTS}/{name}"


def agent_address(host: str) -> str:
    """The file that says where a host's agent listens, for ranks that mpirun's own daemons start."""
    return f"{SCRIPTS}/agent.{host}"


def earlier_name(name: str, attempt: int) -> str:
    """The name of a file of an earlier attempt: log.txt of attempt 0 is log.0.txt, plog is plog.0."""
    stem, dot, suffix = name.rpartition(".")
    return f"{stem}.{attempt}.{suffix}" if dot else f"{name}.{attempt}"


def original_name(name: str) -> str:
    """The name that a file of an earlier attempt had in its own: log.txt for log.0.txt; any other name as it is."""
    stem, _, suffix = name.rpartition(".")
    if suffix.isdigit():
        return stem
    first, _, attempt = stem.rpartition(".")
    return f"{first}.{suffix}" if attempt.isdigit() else name


def is_collected(parts: tuple[str, ...]) -> bool:
    """Tell whether a file is one that collection is about, by the parts of its path below the run's folder."""
    folder, *inside = parts
    if folder.startswith(RANK):
        own = original_name(inside[0]) if inside else ""
        return own in COLLECTED_OF_A_RANK if len(inside) == 1 else own == PLOG
    return folder in _FOLDERS_WITH_LOGS and bool(inside) and inside[-1].endswith((".log", LOG))
