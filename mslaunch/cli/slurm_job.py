"""What a Slurm job adds to the steps from a command line to a plan; loaded only for one."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mslaunch.launch import slurm
from mslaunch.launch.check import Checked, check_devices
from mslaunch.plan import slurm as planning
from mslaunch.plan.model import Host, Plan
from mslaunch.plan.spec import JobSpec

if TYPE_CHECKING:
    from mslaunch.cli.job import Request


def placed(spec: JobSpec, checked: Checked, target: str) -> tuple[Host, ...]:
    """The nodes with their ranks and devices, now that they have told what they were given."""
    nodes = tuple(report.host for report in checked.reports.values())
    told = {name: report.facts for name, report in checked.reports.items()}
    hosts = planning.place(spec, nodes, slurm.allotment(os.environ, told, target), target)
    check_devices(hosts, checked, target)
    return hosts


def with_script(request: Request, spec: JobSpec, plan: Plan, script: str) -> Plan:
    """Add what sbatch is given: the script, and the config as it is now."""
    planning.check_options(spec, plan.run_dir)
    command = planning.Command(
        program=_own_program(),
        verb=request.verb,
        own=request.verb_options,
        flags=request.flags,
        assignments=request.assignments,
        config=spec.config.text,
        script=script,
        rank_table=str(Path(spec.rank_table.name).absolute()) if spec.rank_table else None,
        script_args=request.script_args,
    )
    files = planning.job_files(spec.launch, plan.hosts, plan.run_dir, command, plan.submit_dir)
    return replace(plan, files=(*plan.files, *files))


def _own_program() -> tuple[str, ...]:
    beside = Path(sys.executable).with_name("mslaunch")
    if beside.is_file():
        return (str(beside),)
    return (sys.executable, "-c", "from mslaunch.cli import main; main()")
