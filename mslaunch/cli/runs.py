"""Finding the run that a verb is about."""

from __future__ import annotations

import os
from pathlib import Path

from mslaunch.launch.history import find_run
from mslaunch.launch.run_folder import RunFolder


def runs_dir_of(flag: str | None) -> str:
    return flag or os.environ.get("MSLAUNCH_RUNS_DIR") or "mslaunch-runs"


def named_run(name: str | None, runs_dir: str | None) -> RunFolder:
    return find_run(Path(runs_dir_of(runs_dir)), name)
