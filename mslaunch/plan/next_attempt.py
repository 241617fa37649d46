"""The next attempt at a job: the same plan with a fresh port, its number, and where to resume."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mslaunch import layout
from mslaunch.hosts import Host
from mslaunch.plan.methods import ranks_file
from mslaunch.plan.model import Plan, Process

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


def may_restart(plan: Plan, exit_code: int, cause: str, error_type: str | None) -> bool:
    """Tell whether starting again could mend this failure, and is allowed."""
    if plan.attempt >= plan.restarts.limit or exit_code in plan.restarts.not_after:
        return False
    if cause == "host lost":
        return plan.restarts.min_workers is not None
    return cause not in ("setup", "timeout", "stuck", "no init") and error_type not in LASTING_ERRORS


def hosts_left(plan: Plan, lost: set[str]) -> tuple[Host, ...]:
    """Return the hosts that a job can go on with; none where they have too few ranks."""
    left = tuple(host for host in plan.hosts if host.name not in lost)
    enough = sum(len(host.devices) for host in left) >= (plan.restarts.min_workers or 0)
    return left if enough else ()


def pause(plan: Plan) -> float:
    """Seconds to wait before the next attempt: doubling, up to a minute."""
    return float(min(60.0, plan.restarts.backoff * 2**plan.attempt))


def resuming(plan: Plan, resume: Mapping[int, str]) -> Plan:
    """Tell every rank the checkpoint that it resumes from, if there is one."""
    processes = tuple(_resuming(process, resume) for process in plan.processes)
    files = tuple(ranks_file(processes, plan.run_dir) if file.path == layout.RANKS else file for file in plan.files)
    return replace(plan, processes=processes, files=files)


def next_attempt(plan: Plan, port: int, resume: Mapping[int, str]) -> Plan:
    """Plan the job once more; ranks that have a checkpoint to resume from are told so."""
    host = plan.master.rpartition(":")[0]
    env = {**plan.env, "MSLAUNCH_ATTEMPT": str(plan.attempt + 1)}
    if "MS_SCHED_PORT" in env:
        env["MS_SCHED_PORT"] = str(port)
    return resuming(replace(plan, attempt=plan.attempt + 1, master=f"{host}:{port}", env=env), resume)


def _resuming(process: Process, resume: Mapping[int, str]) -> Process:
    env = {name: value for name, value in process.env.items() if name != "MSLAUNCH_RESUME"}
    if process.rank is not None and process.rank in resume:
        env["MSLAUNCH_RESUME"] = resume[process.rank]
    return replace(process, env=env)
