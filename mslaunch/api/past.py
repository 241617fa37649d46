"""What can be done with runs that are over, for programs and the command line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from mslaunch.errors import RecordUnreadable
    from mslaunch.run.compare import Comparison
    from mslaunch.run.labels import Labels
    from mslaunch.run.prune import Pruned
    from mslaunch.run.run import Run
    from mslaunch.run.summaries import RunSummary


def list_summaries(
    runs_dir: str | os.PathLike[str], last: int | None = None
) -> tuple[list[tuple[Run, RunSummary | RecordUnreadable]], int]:
    """Return the runs of a folder, oldest first, each with its summary or why it has none; and how many are older.

    With `last`, only so many of the newest are looked at.
    """
    from pathlib import Path

    from mslaunch.run import summaries
    from mslaunch.run.run import Run

    rows, older = summaries.list_summaries(Path(runs_dir), last)
    return [(Run(folder), summary) for folder, summary in rows], older


def places_for(runs_dir: str | os.PathLike[str] | None) -> list[Path]:
    """Return the folders of runs in which to look: the one that is named, or those that may be meant."""
    from pathlib import Path

    from mslaunch.run.search import folders_to_search

    return [Path(runs_dir)] if runs_dir else folders_to_search(os.environ)


def words_of_run(run: Run) -> str:
    """Return what to type after a verb for this run: its name, and --runs-dir where its folder is not the default."""
    from mslaunch.run.search import arguments_for

    return arguments_for(run.folder, os.environ)


def unexpected_place(run: Run, name: str | None) -> str | None:
    """Return the folder of runs that holds a run which was found by its name, where that is not the default one."""
    from pathlib import Path

    from mslaunch.run.paths import runs_root
    from mslaunch.run.search import option_for, path_from_here

    if name and Path(name).resolve() == run.path.resolve():
        return None
    root = runs_root(run.path.parent)
    return path_from_here(root) if option_for(root, os.environ) else None


def words_of_room(runs_dir: str | os.PathLike[str], total: int = 0) -> list[str]:
    """Return what there is to say of runs that take `total` bytes, and of a disk that is nearly full."""
    from pathlib import Path

    from mslaunch.run.disk_usage import describe_use

    return describe_use(Path(runs_dir), total)


def labels_of(run: Run) -> Labels:
    """Return the tags and notes of a run."""
    from mslaunch.run import labels

    return labels.read(run.folder)


def label_run(run: Run, note: str | None = None, add: Sequence[str] = (), remove: Sequence[str] = ()) -> Labels:
    """Add a note and tags to a run, and remove tags; return what it has now."""
    from mslaunch.run import labels

    return labels.label(run.folder, note, add, remove)


def measure_run(run: Run) -> int:
    """Return the bytes that a run's folder takes now."""
    from mslaunch.run.disk_usage import measure

    return measure(run.path)


def prune(
    runs_dir: str | os.PathLike[str] | None = None,
    keep: int | None = None,
    ended_before: float | None = None,
    states: Sequence[str] = (),
    checkpoints: str | None = None,
    dry_run: bool = False,
    tags: Sequence[str] = (),
) -> Pruned:
    """Remove the runs of a folder that fit all that is given, or with `checkpoints` (keep-best, drop) only those.

    Runs that are alive, another user's, tagged keep, or that another run refers to stay, and runs with other tags
    unless `tags` has one of theirs. `ended_before` is in seconds since 1970.
    """
    from pathlib import Path

    from mslaunch.api import default_runs_dir
    from mslaunch.run.prune import prune as remove
    from mslaunch.run.prune_choice import Criteria

    folder = Path(runs_dir or default_runs_dir())
    return remove(folder, Criteria(keep, ended_before, tuple(states), tuple(tags)), checkpoints, dry_run)


def export_csv(run: Run, file: str | os.PathLike[str]) -> int:
    """Write the metrics of a run as CSV, a line for each number; `-` is standard output. Return how many rows."""
    from mslaunch.run import export

    return export.export_csv(run.folder, os.fspath(file))


def export_tensorboard(run: Run, folder: str | os.PathLike[str]) -> list[Path]:
    """Write the metrics of a run as TensorBoard's event files; return them."""
    from mslaunch.run import export

    return export.export_tensorboard(run.folder, os.fspath(folder))


def compare(runs: Sequence[Run], with_code: bool = True) -> Comparison:
    """Compare two or more runs: configuration, code, environment, versions, metrics, speed; secrets are masked."""
    from mslaunch.run.compare import compare_runs

    return compare_runs([run.folder for run in runs], os.environ, with_code)
