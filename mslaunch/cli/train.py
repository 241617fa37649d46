"""`mslaunch train`: plan a job, start it, follow it to its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from functools import partial
from typing import Annotated

import typer

from mslaunch.cli import basics, job, options
from mslaunch.cli.console import Console
from mslaunch.cli.describe import describe_plan
from mslaunch.cli.screen import Screen
from mslaunch.errors import NotReadyError
from mslaunch.launch import record
from mslaunch.launch.launcher import execute
from mslaunch.launch.run_folder import RunFolder, create
from mslaunch.plan.model import Plan, to_json

_app = basics.new_app()
_DETACHED = "from mslaunch.cli.detached import main; main(sys.argv[1])"
app = partial(job.call, _app)


@_app.command(epilog="Arguments for the script stand after --.")
def train(
    context: typer.Context,
    script_argument: options.ScriptArgument = None,
    workers: options.Workers = None,
    local_workers: options.LocalWorkers = None,
    config: options.ConfigFile = None,
    script: options.Script = None,
    devices: options.Devices = None,
    method: options.Method = None,
    rank_table: options.RankTable = None,
    env: options.Env = None,
    assignments: options.Set = None,
    master_port: options.MasterPort = None,
    bind_cores: options.BindCores = None,
    tail: options.Tail = None,
    runs_dir: options.RunsDir = None,
    run_id: options.RunId = None,
    timeout: options.Timeout = None,
    stall_timeout: options.StallTimeout = None,
    max_restarts: options.MaxRestarts = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return at once; the job goes on by itself.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and where each setting came from.")] = False,
    as_json: basics.Json = False,
) -> None:
    """Start a distributed job and follow it to its end."""
    flags = job.given(
        workers=job.agreed_workers(workers, local_workers),
        script=job.one_script(script, script_argument),
        devices=devices,
        method=method,
        rank_table=rank_table,
        env=options.variables(env),
        master_port=master_port,
        bind_cores=bind_cores,
        tail=tail,
        runs_dir=runs_dir,
        run_id=run_id,
        timeout=timeout,
        stall_timeout=stall_timeout,
        max_restarts=max_restarts,
    )
    plan = job.plan_job(job.Request(config, tuple(assignments or ()), flags, context.obj))
    if dry_run:
        print(to_json(plan) if as_json else describe_plan(plan), end="")
        return
    folder = create(plan)
    record.save(folder, record.queued(plan, time.time()))
    raise typer.Exit(start_detached(plan, folder, as_json) if detach else follow(plan, folder, as_json))


def follow(plan: Plan, folder: RunFolder, as_json: bool) -> int:
    """Run the job here and show what happens."""
    console = Console(plan, Screen(2 if as_json else 1))
    console.open()
    final = execute(plan, folder, console.observe, os.environ)
    console.close(final)
    if as_json:
        print(json.dumps(final.to_dict(), indent=1))
    return final.exit_code if final.exit_code is not None else 1


def start_detached(plan: Plan, folder: RunFolder, as_json: bool) -> int:
    """Hand the run to a launcher of its own, which needs neither this process nor its terminal."""
    with folder.launcher_log.open("ab") as log:
        launcher = subprocess.Popen(
            # Not `-m`, which would import from the current folder before all others.
            [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {_DETACHED}", str(folder.path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    while (now := record.load(folder)).state == "queued" and launcher.poll() is None:
        time.sleep(0.01)
    if now.state == "queued":
        raise NotReadyError(f"the launcher could not start; {folder.launcher_log} says why. Or leave --detach out.")
    if as_json:
        print(json.dumps({"run_id": plan.run_id, "run_dir": plan.run_dir, "launcher": launcher.pid}))
    else:
        print(f"{plan.run_id} goes on by itself. Follow it with: mslaunch logs -f {plan.run_id}")
    return 0
