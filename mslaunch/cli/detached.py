"""The launcher of a detached run: executes the plan that lies in a run's folder; its output is launcher.log."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mslaunch.cli.console import Console
from mslaunch.launch.launcher import execute
from mslaunch.launch.run_folder import RunFolder
from mslaunch.plan.model import from_json

if __name__ == "__main__":
    folder = RunFolder(Path(sys.argv[1]))
    plan = from_json(folder.plan.read_text())
    console = Console(plan, sys.stdout)
    console.open()
    final = execute(plan, folder, console.observe, os.environ)
    console.close(final)
    sys.exit(final.exit_code)
