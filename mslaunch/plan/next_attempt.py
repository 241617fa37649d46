"""The next attempt at a job: whether there is one, and its plan, with a fresh port, its number and where to resume."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mslaunch.hosts import Host
from mslaunch.plan.methods.rank_processes import ranks_file
from mslaunch.plan.model import Plan, Process, Restarts
from mslaunch.plan.variables import store_port
from mslaunch.shared import layout

# What will fail the same way again, however often it is tried.
LASTING_ERRORS = frozenset(
    {
        "SyntaxError",
        "IndentationError",
        "TabError",
        "ImportError",
        "ModuleNotFoundError",
        "NameError",
        "FileNotFoundError",
    }
)


LASTING_CAUSES = frozenset({"setup", "devices", "timeout", "stuck", "no init"})
STOPPED = "stopped"
"""The cause of an attempt that was ended from outside and is no failure, such as one that a queue preempted."""
MOST_RESTARTS = 10
"""So many times max_restarts is the most, however much progress is made."""
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")

Step = tuple[int, int]
"""Epoch and step."""


@dataclass(frozen=True, slots=True)
class AttemptEnding:
    """How an attempt ended, as far as the decision about the next one needs it."""

    cause: str
    exit_code: int = 1
    error: str | None = None
    """The exception that ended it, in words."""
    error_type: str | None = None
    step: Step | None = None
    """The last step that was printed; None where none was."""
    saved: Step | None = None
    """The newest checkpoint that all ranks have; the next attempt resumes from it."""


def refusal(restarts: Restarts, endings: Sequence[AttemptEnding], replaces_hosts: bool = False) -> str | None:
    """Say why there is to be no further attempt after these; None where there may be one.

    With `replaces_hosts`, others may come in place of hosts that are lost.
    """
    last = endings[-1]
    if last.exit_code in restarts.not_after or last.cause in LASTING_CAUSES or last.error_type in LASTING_ERRORS:
        return "a restart would not mend this failure"
    if last.cause == "host lost" and restarts.min_workers is None and not replaces_hosts:
        return "a host is lost, and launch.min_workers does not allow to go on without it"
    if len(endings) > 1 and _is_same(endings[-2], last):
        return "the same failure at the same step twice"
    if spent(endings) > restarts.limit:
        return f"launch.max_restarts ({restarts.limit}) is used up"
    if len(endings) > MOST_RESTARTS * restarts.limit:
        return f"{len(endings)} attempts are enough, though there was progress"
    return None


def _is_same(earlier: AttemptEnding, later: AttemptEnding) -> bool:
    """Tell whether two attempts ended with the same exception at the same step; what is not known is not the same."""
    if None in (earlier.error, later.error, earlier.step, later.step) or earlier.step != later.step:
        return False
    return _ADDRESS.sub("", str(earlier.error)) == _ADDRESS.sub("", str(later.error))


def progressed(endings: Sequence[AttemptEnding]) -> list[bool]:
    """Tell for each attempt whether it saved a newer checkpoint than all attempts before it."""
    result, best = [], (-1, -1)
    for ending in endings:
        result.append(ending.saved is not None and ending.saved > best)
        best = max(best, ending.saved or best)
    return result


def spent(endings: Sequence[AttemptEnding]) -> int:
    """Count the failed attempts that have made no progress: each uses up a restart."""
    pairs = zip(endings, progressed(endings), strict=True)
    return sum(not progress and ending.cause != STOPPED for ending, progress in pairs)


def hosts_left(plan: Plan, lost: set[str]) -> tuple[Host, ...]:
    """Return the hosts that a job can go on with; none where they have too few ranks."""
    left = tuple(host for host in plan.hosts if host.name not in lost)
    enough = sum(len(host.devices) for host in left) >= (plan.restarts.min_workers or 0)
    return left if enough else ()


def pause(restarts: Restarts, endings: Sequence[AttemptEnding]) -> float:
    """Seconds to wait before the next attempt: doubling while there is no progress, up to a minute."""
    in_vain = 0
    for progress in reversed(progressed(endings)):
        if progress:
            break
        in_vain += 1
    return float(min(60.0, restarts.backoff * 2 ** max(0, min(in_vain, 60) - 1)))


def resuming(plan: Plan, resume: Mapping[int, str]) -> Plan:
    """Tell every rank the checkpoint that it resumes from, if there is one."""
    processes = tuple(_resuming(process, resume) for process in plan.processes)
    files = tuple(ranks_file(processes, plan.run_dir) if file.path == layout.RANKS else file for file in plan.files)
    return replace(plan, processes=processes, files=files)


def next_attempt(plan: Plan, port: int) -> Plan:
    """Plan the job once more, on the same hosts."""
    host = plan.master.rpartition(":")[0]
    env = {**plan.env, "MSLAUNCH_ATTEMPT": str(plan.attempt + 1)}
    if "MS_SCHED_PORT" in env:
        env["MS_SCHED_PORT"] = str(port)
    if env.get("MASTER_PORT") == str(store_port(plan.port)):  # else it is the user's
        env["MASTER_PORT"] = str(store_port(port))
    return replace(plan, attempt=plan.attempt + 1, master=f"{host}:{port}", env=env)


def _resuming(process: Process, resume: Mapping[int, str]) -> Process:
    env = {name: value for name, value in process.env.items() if name != "MSLAUNCH_RESUME"}
    if process.rank is not None and process.rank in resume:
        env["MSLAUNCH_RESUME"] = resume[process.rank]
    return replace(process, env=env)
