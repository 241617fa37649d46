"""mslaunch.launch(): the caller's side. A function is pickled into the run's folder, and its results are read back."""

from __future__ import annotations

import base64
import os
import pickle
import site
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mslaunch.errors import RequestError
from mslaunch.plan.model import File
from mslaunch.runs.run import JobFailed, Result
from mslaunch.runtime import call as rank_side
from mslaunch.shared import layout

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
