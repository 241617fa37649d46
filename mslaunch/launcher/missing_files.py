"""Where a file or module is that a job looks for in vain: elsewhere in the project, or in what an earlier run wrote."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from mslaunch.diagnose.verdict import Verdict
from mslaunch.errors import NotReadyError
from mslaunch.plan.model import Plan
from mslaunch.run.paths import RunFolder, runs_root
from mslaunch.run.search import list_all
from mslaunch.shared import layout

MOST_RUNS = 50
"""How many runs are looked into, the newest first."""
MOST_ENTRIES = 5000
_DEPTH = 4
_FILE = re.compile(r"No such file or directory: '([^'\n]+)'|([^\s'\",:]+)['\"]? does not exist")
_MODULE = re.compile(r"No module named '([\w.]+)'")


def point_to_missing(verdict: Verdict, plan: Plan, folder: RunFolder) -> Verdict:
    """Add to the advice where the file or module is that a rank did not find."""
    if verdict.cause != "exception":
        return verdict
    if match := _MODULE.search(verdict.summary):
        words = _module(match[1], plan)
    elif match := _FILE.search(verdict.summary):
        words = _file(match[1] or match[2], verdict.rank or 0, plan, folder)
    else:
        return verdict
    return replace(verdict, advice=" ".join(part for part in (words, verdict.advice) if part) or None)


def earlier_run_with(name: str, runs_dirs: Sequence[Path], but: RunFolder | None = None) -> str | None:
    """Say which run wrote a file or folder of this relative path, the newest one, and where it is."""
    for run in _runs(runs_dirs):
        ranks = sorted(run.path.glob(f"{layout.RANK}*/{layout.WORK}"), key=lambda path: (len(str(path)), path))
        paths = [place / name for place in (*ranks, run.code) if (place / name).exists()]
        if paths and (but is None or run.path.resolve() != but.path.resolve()):
            if len(paths) > 1 and paths[0].is_dir():
                return f"Run {run.name} wrote it on {len(paths)} ranks: {run.path}."
            return f"Run {run.name} wrote it: {paths[0]}."
    return None


def _runs(runs_dirs: Sequence[Path]) -> list[RunFolder]:
    try:
        return list_all(runs_dirs)[: -MOST_RUNS - 1 : -1]
    except NotReadyError:
        return []


def _file(name: str, rank: int, plan: Plan, folder: RunFolder) -> str | None:
    inside = _in_project(name, rank, plan, folder)
    if inside is None:
        return None
    path = Path(plan.job_dir, inside)
    if path.exists():
        return f"The project has it by now: {path}."
    earlier = earlier_run_with(inside, [runs_root(folder.path.parent)], folder)
    if earlier is not None:
        return earlier
    same = [one for one in _below(Path(plan.job_dir), folder) if one.name == path.name]
    return f"The project has a file of this name: {same[0]}." if len(same) == 1 else None


def _in_project(name: str, rank: int, plan: Plan, folder: RunFolder) -> str | None:
    """The path of a file from the project's root; None where it is meant to be elsewhere."""
    path = Path(folder.work(rank), plan.workdir, name)
    for root in (folder.work(rank), folder.code, Path(plan.job_dir)):
        inside = os.path.relpath(path, root)
        if inside.split("/")[0] != "..":
            return inside
    return None


def _module(name: str, plan: Plan) -> str | None:
    top = name.partition(".")[0]
    for path in _below(Path(plan.job_dir), RunFolder(Path(plan.run_dir))):
        place = path.parent.parent if path.name == "__init__.py" and path.parent.name == top else path.parent
        if path.name == f"{top}.py" or place != path.parent:
            return f"The project has it: {path}. Add its folder: --env PYTHONPATH={shlex.quote(str(place))}."
    return None


def _below(root: Path, run: RunFolder) -> Iterator[Path]:
    """The files of a project, those near its top first, without runs and what begins with a dot."""
    left = MOST_ENTRIES
    level = [root]
    for _ in range(_DEPTH):
        below: list[Path] = []
        for folder in level:
            try:
                entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
            except OSError:
                continue
            left -= len(entries)
            if left < 0:
                return
            for entry in entries:
                path = Path(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    if not entry.name.startswith(".") and not run.path.is_relative_to(path):
                        below.append(path)
                elif entry.is_file():
                    yield path
        level = below
