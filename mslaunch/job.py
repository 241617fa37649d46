"""What Python programs import: jobs that are planned, started and waited for, and runs of the past."""

from __future__ import annotations

import base64
import json
import os
import pickle
import site
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mslaunch.errors import RequestError
from mslaunch.runtime import call as rank_side
from mslaunch.shared import layout

if TYPE_CHECKING:  # a program that imports Job pays for a launch when it launches
    from mslaunch.launcher.read import Request
    from mslaunch.plan.model import File, Plan
    from mslaunch.run.run import Result, Run


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
        """What is asked for: the start of every launch."""
        from mslaunch.launcher.read import Request

        assignments = tuple(f"{name}={value}" for name, value in self._values.items())
        return Request(self._config, assignments, self._flags, self._args, files=self._files)

    def plan(self) -> Plan:
        """Return what would be started, as --dry-run shows it; nothing is written, started or contacted."""
        from mslaunch.launcher.pipeline import plan_only

        return plan_only(self.request)

    def start(self) -> Run:
        """Start the job in the background. It ends with this program; a job that a queue runs does not."""
        from mslaunch.launcher import pipeline
        from mslaunch.launcher.background import ThreadRunner

        started: Run = pipeline.launch(self.request, ThreadRunner())
        return started

    def run(self, check: bool = True) -> Result:
        """Start the job and wait for its end; raise JobFailed unless it succeeded or `check` is off."""
        from mslaunch.run.run import JobFailed

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
    from mslaunch.sweeps.planning import prepare_sweep
    from mslaunch.sweeps.running import carry_out_sweep, unseen_sweep

    one = job if isinstance(job, Job) else Job(**job)
    constants = [Axis(key, (value,)) for key, value in one._values.items() if key not in values]
    combinations = combine([*constants, *(axis_of(key, some) for key, some in values.items())])
    prepared = prepare_sweep(replace(one.request, assignments=()), combinations, at_once)
    swept, _ = carry_out_sweep(prepared, unseen_sweep, fail_fast)
    return [(dict(run.values), run.result) for run in swept]


SCRIPT = Path(rank_side.__file__).with_name("call_script") / "mslaunch_call.py"
"""What every rank runs. It is part of the installation: a queue may start it when this program is gone."""


def pack(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> File:
    """Pickle a call for ranks of the same Python version."""
    try:
        import cloudpickle
    except ImportError:
        raise RequestError("mslaunch.launch() needs cloudpickle. Run pip install cloudpickle.") from None
    try:
        pickled = cloudpickle.dumps((function, args, dict(kwargs)))
    except Exception as error:  # whatever __reduce__ of the caller's own classes raises
        name = getattr(function, "__qualname__", repr(function))
        raise RequestError(
            f"{name} and its arguments cannot be pickled ({type(error).__name__}: {error}). "
            f"Open files, locks and connections inside the function."
        ) from error
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    from mslaunch.plan.model import File

    return File(layout.CALL, f"{version}\n{base64.b64encode(pickled).decode()}\n")


def import_path(environment: Mapping[str, str]) -> str:
    """PYTHONPATH for the ranks: the folders that the caller imports from, but for those of Python itself."""
    own = [os.path.abspath(folder or ".") for folder in sys.path]  # noqa: PTH100 -- Path.absolute keeps `..`
    inherited = [folder for folder in environment.get("PYTHONPATH", "").split(os.pathsep) if folder]
    return os.pathsep.join(dict.fromkeys(folder for folder in (*own, *inherited) if not _is_of_python(folder)))


def _is_of_python(folder: str) -> bool:
    """Tell whether every Python has such a folder of its own: the standard library and site-packages."""
    paths = sysconfig.get_paths()
    library = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    archive = f"python{sys.version_info[0]}{sys.version_info[1]}.zip"
    known = [*library, *site.getsitepackages(), site.getusersitepackages()]
    return Path(folder).name == archive or any(Path(folder).is_relative_to(path) for path in known)


def results(run_dir: Path, ended: Result) -> list[Any]:
    """Return what the function returned on every rank, in order; raise what it raised first."""
    if not ended.succeeded:
        raise _failure(run_dir, ended)
    return [_returned(run_dir, rank.rank) for rank in ended.ranks]


def _failure(run_dir: Path, ended: Result) -> Exception:
    """The exception of the rank that failed first, with the verdict as its cause; else the verdict alone.

    SystemExit and KeyboardInterrupt end a rank; they must not end the caller.
    """
    from mslaunch.run.run import JobFailed

    failed = JobFailed(ended)
    rank = ended.verdict.rank if ended.verdict else None
    kind, error = _outcome(run_dir, rank) if rank is not None else ("", None)
    if kind != "raised" or not isinstance(error, Exception):
        return failed
    error.__cause__ = failed
    return error


def _returned(run_dir: Path, rank: int) -> Any:
    kind, value = _outcome(run_dir, rank)
    if kind == "returned":
        return value
    raise RequestError(
        f"rank {rank}: {_MISSING[kind].format(value)}. Return plain values, arrays or objects of classes that "
        f"both sides can import."
    )


_MISSING = {
    "raised": "ended well, but had raised {!r}",
    "unpicklable": "what it returned cannot be pickled ({})",
    "unreadable": "what it returned cannot be read here ({})",
}


def _outcome(run_dir: Path, rank: int) -> tuple[str, Any]:
    """Return how the function ended on a rank: returned, raised, unpicklable or unreadable; and what."""
    try:
        outcome: tuple[str, Any] = pickle.loads((run_dir / layout.rank_folder(rank) / layout.RESULT).read_bytes())
    except Exception as error:  # not there, cut short, or of a class that this process cannot import
        return "unreadable", f"{type(error).__name__}: {error}"
    return outcome
