"""What Python programs import: jobs that are planned, started and waited for, and runs of the past."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mslaunch.errors import RequestError
from mslaunch.launch import pipeline
from mslaunch.launch.function_job import SCRIPT, import_path, pack, results
from mslaunch.launch.pipeline import plan_only
from mslaunch.launch.read import Request
from mslaunch.launch.runners import ThreadRunner
from mslaunch.plan.combinations import Axis, axis_of, combine
from mslaunch.plan.model import File, Plan
from mslaunch.runs.run import JobFailed, Result, Run
from mslaunch.settings.yaml_config import write_flow


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
        return Request(self._config, assignments, self._flags, self._args, files=self._files)

    def plan(self) -> Plan:
        """Return what would be started, as --dry-run shows it; nothing is written, started or contacted."""
        return plan_only(self.request)

    def start(self) -> Run:
        """Start the job in the background. It ends with this program; a job that a queue runs does not."""
        started: Run = pipeline.launch(self.request, ThreadRunner())
        return started

    def run(self, check: bool = True) -> Result:
        """Start the job and wait for its end; raise JobFailed unless it succeeded or `check` is off."""
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
    from mslaunch.sweep.members import unseen_sweep
    from mslaunch.sweep.planning import prepare_sweep
    from mslaunch.sweep.queue import carry_out_sweep

    one = job if isinstance(job, Job) else Job(**job)
    constants = [Axis(key, (value,)) for key, value in one._values.items() if key not in values]
    combinations = combine([*constants, *(axis_of(key, some) for key, some in values.items())])
    prepared = prepare_sweep(replace(one.request, assignments=()), combinations, at_once)
    swept, _ = carry_out_sweep(prepared, unseen_sweep, fail_fast)
    return [(dict(run.values), run.result) for run in swept]
