"""What Python programs import: jobs that are planned, started and waited for, and runs of the past.

The command line uses this module and nothing below it. Nothing heavy is imported before it is needed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mslaunch.api.joining import agent_member, join, membership
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
    carry_out,
    carry_out_sweep,
    check_hosts,
    choose_checkpoint,
    collect,
    combinations_of,
    config_schema,
    count_devices,
    make_request,
    make_run,
    plan_json,
    plan_request,
    prepare,
    prepare_sweep,
    program_settings,
    read,
    record_from,
    record_of_logs,
    recorded,
    resume_sweep,
    run_commands,
    setting_flags,
    start_agent_early,
    submit,
    sweep_exit_code,
    swept_so_far,
    write_scripts,
)

if TYPE_CHECKING:
    from mslaunch.launch.attach import AttachedRun, Notice
    from mslaunch.launch.attempt.run_state import RunState
    from mslaunch.launch.check import Checked, Report
    from mslaunch.launch.prepare import Prepared
    from mslaunch.launch.request import Request
    from mslaunch.plan.combinations import Combination
    from mslaunch.plan.model import File, Plan
    from mslaunch.runs.compare import Comparison
    from mslaunch.runs.labels import Labels
    from mslaunch.runs.logs import LogLines, Selection, TimedLog, merge_logs
    from mslaunch.runs.prune import Pruned
    from mslaunch.runs.record import ENDED, OutputRecord, RankRecord, RunRecord
    from mslaunch.runs.run import Result, Run
    from mslaunch.runs.summaries import RunSummary
    from mslaunch.shared.follow import Follower
    from mslaunch.sweep.members import SweepEvent
    from mslaunch.sweep.planning import Sweep
    from mslaunch.sweep.results import SweptRun
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
    "Prepared",
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
    "carry_out",
    "carry_out_sweep",
    "check_hosts",
    "choose_checkpoint",
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
    "make_run",
    "measure_run",
    "membership",
    "merge_logs",
    "object_text",
    "plan_json",
    "plan_request",
    "prepare",
    "prepare_sweep",
    "program_settings",
    "prune",
    "read",
    "record_from",
    "record_of_logs",
    "recorded",
    "resume_sweep",
    "run_commands",
    "runs",
    "setting_flags",
    "start_agent_early",
    "stop_all",
    "stop_sweep",
    "submit",
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
    "mslaunch.runs.compare": ("Comparison",),
    "mslaunch.launch.attach": ("AttachedRun", "Notice"),
    "mslaunch.launch.check": ("Checked", "Report"),
    "mslaunch.launch.prepare": ("Prepared",),
    "mslaunch.runs.prune": ("Pruned",),
    "mslaunch.launch.request": ("Request",),
    "mslaunch.launch.attempt.run_state": ("RunState",),
    "mslaunch.sweep.planning": ("Sweep",),
    "mslaunch.sweep.results": ("SweptRun",),
    "mslaunch.sweep.members": ("SweepEvent",),
    "mslaunch.plan.model": ("Plan",),
    "mslaunch.plan.combinations": ("Combination",),
    "mslaunch.runs.record": ("ENDED", "OutputRecord", "RankRecord", "RunRecord"),
    "mslaunch.runs.labels": ("Labels",),
    "mslaunch.runs.run": ("Result", "Run"),
    "mslaunch.runs.summaries": ("RunSummary",),
    "mslaunch.runs.logs": ("LogLines", "Selection", "TimedLog", "merge_logs"),
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


class Job:
    """A job that can be planned, started, or run to its end. Settings are those of `launch:` in a job's YAML."""

    def __init__(
        self,
        script: str | os.PathLike[str] | None = None,
        *,
        config: str | os.PathLike[str] | None = None,
        args: Sequence[Any] = (),
        values: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        """`args` are the script's arguments, `values` override keys of its config."""
        from mslaunch.errors import RequestError

        if isinstance(args, (str, bytes)):
            raise RequestError(f"args: write a list, for example {args.split()!r}, got {args!r}.")
        flags = {**settings, **({"script": script} if script else {})}
        self._config = os.fspath(config) if config else None
        self._args = tuple(str(item) for item in args)
        self._values = {name: _to_yaml(name, value) for name, value in (values or {}).items()}
        self._flags = {name: _plain(value) for name, value in flags.items() if value is not None}
        self._files: tuple[File, ...] = ()

    @property
    def request(self) -> Request:
        """What is asked for, in the form that preparing takes."""
        assignments = tuple(f"{name}={value}" for name, value in self._values.items())
        return make_request(self._config, assignments, self._flags, self._args, files=self._files)

    def plan(self) -> Plan:
        """Return what would be started, as --dry-run shows it; nothing is written, started or contacted."""
        return plan_request(self.request)

    def start(self) -> Run:
        """Start the job in the background. It ends with this program; a job that a queue runs does not."""
        prepared = prepare(self.request)
        if prepared.queue is not None:
            return submit(prepared, prepared.queue)[0]
        run = make_run(prepared)
        from mslaunch.launch.background import BackgroundRun

        return BackgroundRun(prepared, run.folder)

    def run(self, check: bool = True) -> Result:
        """Start the job and wait for its end; raise JobFailed unless it succeeded or `check` is off."""
        from mslaunch.runs.run import JobFailed

        with self.start() as run:
            result = run.wait()
        if check and not result.succeeded:
            raise JobFailed(result)
        return result


def _plain(value: Any) -> Any:
    """Settings as the command line would give them: numbers in a sequence are written as a list of ranges."""
    if isinstance(value, (list, tuple, range)) and value and all(isinstance(item, int) for item in value):
        return ",".join(map(str, value))
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _to_yaml(name: str, value: Any) -> str:
    from mslaunch.errors import RequestError
    from mslaunch.settings.yaml_config import write_flow

    try:
        return write_flow(json.loads(json.dumps(value, default=os.fspath)))
    except (TypeError, ValueError):
        raise RequestError(f"values: {name}: YAML has no {type(value).__name__}, got {value!r}.") from None


def launch(
    function: Callable[..., Any],
    /,
    *args: Any,
    workers: int = 1,
    settings: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> list[Any]:
    """Call a function on every rank and return what it returned, by rank.

    `args` and `kwargs` are the function's; `settings` are those of the job (hosts, method and so on). An exception of a
    rank is raised here, with the verdict as its cause.
    """
    from mslaunch.launch.function_job import SCRIPT, import_path, pack, results

    own = {"tail": "none", "workers": workers, **(settings or {})}
    own["env"] = {"PYTHONPATH": import_path(os.environ), **(own.get("env") or {})}
    job = Job(SCRIPT, **own)
    job._files = (pack(function, args, kwargs),)
    with job.start() as run:
        ended = run.wait()
    return results(run.path, ended)


def sweep(
    job: Job | Mapping[str, Any],
    values: Mapping[str, Any],
    at_once: int | None = None,
    fail_fast: bool = False,
) -> list[tuple[dict[str, Any], Result]]:
    """Run a job once for every combination of values; return each combination with how its run ended.

    `job` is a Job, or a mapping of what Job takes. A key of `values` is one of the config, or a setting of the launcher
    as `launch.method`; a value that is no list, range or other iterable is a constant.
    """
    from mslaunch.plan.combinations import Axis, axis_of, combine
    from mslaunch.sweep.members import unseen_sweep

    one = job if isinstance(job, Job) else Job(**job)
    constants = [Axis(key, (value,)) for key, value in one._values.items() if key not in values]
    combinations = combine([*constants, *(axis_of(key, some) for key, some in values.items())])
    prepared = prepare_sweep(replace(one.request, assignments=()), combinations, at_once)
    swept, _ = carry_out_sweep(prepared, unseen_sweep, fail_fast)
    return [(dict(run.values), run.result) for run in swept]


def runs(runs_dir: str | os.PathLike[str] | None = None) -> list[Run]:
    """Return the runs of a folder, oldest first."""
    from mslaunch.runs.run import runs as found

    return found(os.fspath(runs_dir) if runs_dir else default_runs_dir())


def find_run(name: str | None = None, runs_dir: str | os.PathLike[str] | None = None) -> Run:
    """Return the run of this name, or of which it is an unambiguous part; the newest where none is named.

    Without a folder, in the argument or in MSLAUNCH_RUNS_DIR, those below the current one are searched as well.
    """
    from mslaunch.runs.run import find

    return find(name, places_for(runs_dir))


def find_runs(name: str, runs_dir: str | os.PathLike[str] | None = None) -> list[Run]:
    """Return the runs of the sweep of this name that have begun; where there is none, the run of this name alone."""
    from mslaunch.runs.sweep_record import find_named, runs_of

    sweep = find_named(places_for(runs_dir), name)
    return [find_run(name, runs_dir)] if sweep is None else runs_of(sweep)


def stop_sweep(name: str, runs_dir: str | os.PathLike[str] | None = None, as_owner: bool = False) -> bool:
    """Stop a whole sweep, and wait until nothing of it is left; False where there is no sweep of this name.

    With `as_owner` root gives up its rights for those of the sweep's owner, for good.
    """
    from mslaunch.runs.sweep_record import stop_named

    return stop_named(places_for(runs_dir), name, as_owner)


def stop_all(runs_dir: str | os.PathLike[str] | None = None) -> list[tuple[str, str]]:
    """Stop the caller's sweeps and runs of a folder that go on; return the name of each, and its state or the error."""
    from mslaunch.runs.sweep_record import stop_all as stop_everything

    return stop_everything(places_for(runs_dir))


def known_folders() -> list[str]:
    """Return the folders in which this user has launched runs."""
    from mslaunch.runs.places import known

    return [str(folder) for folder in known()]


def default_runs_dir() -> str:
    from mslaunch.runs.places import default_runs_dir as default

    return default(os.environ)
