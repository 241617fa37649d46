"""Runs, past and present: finding them by name, asking how they stand, stopping them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from mslaunch.errors import AmbiguousRun, NoSuchRun, NotReadyError
from mslaunch.launch import identity, record
from mslaunch.launch.run_folder import RunFolder


def list_runs(runs_dir: Path) -> list[RunFolder]:
    """Return the runs in a folder, oldest first."""
    if not runs_dir.is_dir():
        return []
    folders = [
        RunFolder(path) for path in runs_dir.iterdir() if not path.is_symlink() and (path / "run.json").is_file()
    ]
    return sorted(folders, key=lambda folder: (folder.plan.stat().st_mtime_ns, folder.run_id))


def find_run(runs_dir: Path, name: str | None) -> RunFolder:
    """Find a run by its path, its name or an unambiguous beginning of it; the newest where none is named."""
    if name and "/" in name and (Path(name) / "run.json").is_file():
        return RunFolder(Path(name).resolve())
    runs = list_runs(runs_dir)
    known = [run.run_id for run in runs]
    if not runs:
        raise NoSuchRun(name or "latest", str(runs_dir), known)
    if name in (None, "latest"):
        return runs[-1]
    matches = [run for run in runs if run.run_id.startswith(str(name))]
    exact = [run for run in matches if run.run_id == name]
    if not matches:
        raise NoSuchRun(str(name), str(runs_dir), known)
    if len(matches) > 1 and not exact:
        raise AmbiguousRun(str(name), [run.run_id for run in matches])
    return (exact or matches)[0]


def stop(folder: RunFolder, wait: float) -> record.RunRecord:
    """Ask a run's launcher to stop it, and wait until it has."""
    now = record.load(folder)
    launcher = now.launcher
    if now.state in record.ENDED or launcher is None:
        return now
    if not identity.is_here(launcher):
        raise NotReadyError(f"{folder.run_id} was launched on {launcher['host']}. Run `mslaunch stop` there.")
    os.kill(launcher["pid"], signal.SIGTERM)
    for _ in _ticks(wait):
        now = record.load(folder)
        if now.state in record.ENDED:
            return now
    raise NotReadyError(f"{folder.run_id} has not stopped after {wait:.0f} s. Its launcher is pid {launcher['pid']}.")


def _ticks(seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(0.05)
