"""The launcher of a detached run: executes the plan that lies in a run's folder; its output is launcher.log."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mslaunch.cli.console import Console
from mslaunch.cli.screen import Screen
from mslaunch.launch.cluster import for_plan
from mslaunch.launch.launcher import execute
from mslaunch.launch.run_folder import RunFolder
from mslaunch.plan.model import from_json


def main(path: str) -> None:
    folder = RunFolder(Path(path))
    plan = from_json(folder.plan.read_text())
    console = Console(plan, Screen(1))
    console.open()
    final = execute(plan, folder, console.observe, os.environ, for_plan(plan))
    console.close(final)
    sys.exit(final.exit_code if final.exit_code is not None else 1)
