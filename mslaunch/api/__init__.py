"""What Python programs import: jobs that are planned, started and waited for, and runs of the past.

The command line uses this module and nothing below it. Nothing heavy is imported before it is needed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from mslaunch.api.objects import complete_objects, object_text
from mslaunch.api.past import (
    compare,
    export_csv,
    export_tensorboard,
    label_run,
    labels_of,
    list_summaries,
    measure_run,
    places_for,
    prune,
    unexpected_place,
    words_of_room,
    words_of_run,
)
from mslaunch.api.steps import (
    attach,
    become_owner,
    carry_out_sweep,
    check_hosts,
    collect,
    combinations_of,
    config_schema,
    count_devices,
    make_request,
    plan_json,
    plan_request,
    prepare_sweep,
    program_settings,
    record_from,
    record_of_logs,
    resume_sweep,
    run_commands,
    setting_flags,
    start_agent_early,
    sweep_exit_code,
    swept_so_far,
    write_scripts,
)
from mslaunch.launcher.membership import agent_member, join

if TYPE_CHECKING:
    from mslaunch.job import Job, launch, sweep
    from mslaunch.launcher.attach import AttachedRun, Notice
    from mslaunch.launcher.attempt.run_state import RunState
    from mslaunch.launcher.check import Checked, Report
    from mslaunch.launcher.read import Request
    from mslaunch.plan.combinations import Combination
    from mslaunch.plan.model import Plan
    from mslaunch.run.compare import Comparison
    from mslaunch.run.labels import Labels
    from mslaunch.run.logs import LogLines, Selection, TimedLog, merge_logs
    from mslaunch.run.prune import Pruned
    from mslaunch.run.record import ENDED, OutputRecord, RankRecord, RunRecord
    from mslaunch.run.run import Result, Run
    from mslaunch.run.summaries import RunSummary
    from mslaunch.shared.follow import Follower
    from mslaunch.sweeps.members import SweepEvent
    from mslaunch.sweeps.planning import Sweep
    from mslaunch.sweeps.results import SweptRun
    from mslaunch.transports.base import JobQueue
    from mslaunch.transports.join.find_launcher import Member

__all__ = [
    "ENDED",
    "AttachedRun",
    "Checked",
    "Combination",
    "Comparison",
    "Follower",
    "Job",
    "JobQueue",
    "Labels",
    "LogLines",
    "Member",
    "Notice",
    "OutputRecord",
    "Plan",
    "Pruned",
    "RankRecord",
    "Report",
    "Request",
    "Result",
    "Run",
    "RunRecord",
    "RunState",
    "RunSummary",
    "Selection",
    "Sweep",
    "SweepEvent",
    "SweptRun",
    "TimedLog",
    "agent_member",
    "attach",
    "become_owner",
    "carry_out_sweep",
    "check_hosts",
    "collect",
    "combinations_of",
    "compare",
    "complete_objects",
    "config_schema",
    "count_devices",
    "default_runs_dir",
    "export_csv",
    "export_tensorboard",
    "find_run",
    "find_runs",
    "join",
    "known_folders",
    "label_run",
    "labels_of",
    "launch",
    "list_summaries",
    "make_request",
    "measure_run",
    "merge_logs",
    "object_text",
    "plan_json",
    "plan_request",
    "prepare_sweep",
    "program_settings",
    "prune",
    "record_from",
    "record_of_logs",
    "resume_sweep",
    "run_commands",
    "runs",
    "setting_flags",
    "start_agent_early",
    "stop_all",
    "stop_sweep",
    "sweep",
    "sweep_exit_code",
    "swept_so_far",
    "unexpected_place",
    "words_of_room",
    "words_of_run",
    "write_scripts",
]

_PASSED_ON = {
    "mslaunch.shared.follow": ("Follower",),
    "mslaunch.run.compare": ("Comparison",),
    "mslaunch.launcher.attach": ("AttachedRun", "Notice"),
    "mslaunch.launcher.check": ("Checked", "Report"),
    "mslaunch.run.prune": ("Pruned",),
    "mslaunch.launcher.read": ("Request",),
    "mslaunch.launcher.attempt.run_state": ("RunState",),
    "mslaunch.sweeps.planning": ("Sweep",),
    "mslaunch.sweeps.results": ("SweptRun",),
    "mslaunch.sweeps.members": ("SweepEvent",),
    "mslaunch.plan.model": ("Plan",),
    "mslaunch.plan.combinations": ("Combination",),
    "mslaunch.run.record": ("ENDED", "OutputRecord", "RankRecord", "RunRecord"),
    "mslaunch.run.labels": ("Labels",),
    "mslaunch.run.run": ("Result", "Run"),
    "mslaunch.job": ("Job", "launch", "sweep"),
    "mslaunch.run.summaries": ("RunSummary",),
    "mslaunch.run.logs": ("LogLines", "Selection", "TimedLog", "merge_logs"),
    "mslaunch.transports.base": ("JobQueue",),
    "mslaunch.transports.join.find_launcher": ("Member",),
}
"""Names that are defined elsewhere and only passed on; each is loaded when it is first used."""

if not TYPE_CHECKING:  # a type checker must not take every name for one that exists

    def __getattr__(name: str) -> Any:
        for module, names in _PASSED_ON.items():
            if name in names:
                import importlib

                return getattr(importlib.import_module(module), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def runs(runs_dir: str | os.PathLike[str] | None = None) -> list[Run]:
    """Return the runs of a folder, oldest first."""
    from mslaunch.run import find

    return find.runs(runs_dir)


def find_run(name: str | None = None, runs_dir: str | os.PathLike[str] | None = None) -> Run:
    """Return the run of this name, or of which it is an unambiguous part; the newest where none is named.

    Without a folder, in the argument or in MSLAUNCH_RUNS_DIR, those below the current one are searched as well.
    """
    from mslaunch.run import find

    return find.find_run(name, runs_dir)


def find_runs(name: str, runs_dir: str | os.PathLike[str] | None = None) -> list[Run]:
    """Return the runs of the sweep of this name that have begun; where there is none, the run of this name alone."""
    from mslaunch.run.sweep_record import find_named, runs_of

    sweep = find_named(places_for(runs_dir), name)
    return [find_run(name, runs_dir)] if sweep is None else runs_of(sweep)


def stop_sweep(name: str, runs_dir: str | os.PathLike[str] | None = None, as_owner: bool = False) -> bool:
    """Stop a whole sweep, and wait until nothing of it is left; False where there is no sweep of this name.

    With `as_owner` root gives up its rights for those of the sweep's owner, for good.
    """
    from mslaunch.run.sweep_record import stop_named

    return stop_named(places_for(runs_dir), name, as_owner)


def stop_all(runs_dir: str | os.PathLike[str] | None = None) -> list[tuple[str, str]]:
    """Stop the caller's sweeps and runs of a folder that go on; return the name of each, and its state or the error."""
    from mslaunch.run.sweep_record import stop_all as stop_everything

    return stop_everything(places_for(runs_dir))


def known_folders() -> list[str]:
    """Return the folders in which this user has launched runs."""
    from mslaunch.run.search import remembered

    return [str(folder) for folder in remembered()]


def default_runs_dir() -> str:
    from mslaunch.run.search import default_runs_dir as default

    return default(os.environ)
