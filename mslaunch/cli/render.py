"""`mslaunch render`: the same job as scripts, to read or to run elsewhere."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from mslaunch import api
from mslaunch.cli import arguments, basics, options
from mslaunch.cli.render_objects import METHOD, render_objects
from mslaunch.errors import RequestError

Nodes = Annotated[int | None, options.option("nodes")]
Image = Annotated[str | None, options.option("image")]
Namespace = Annotated[str | None, options.option("namespace")]
Volcano = Annotated[bool | None, options.option("volcano")]

_app = basics.new_app()
app = partial(arguments.call, _app)


@_app.command(epilog=arguments.EPILOG, options_metavar=arguments.USAGE)
def render(
    context: typer.Context,
    is_module: options.Module = False,
    method: options.Method = None,
    output: Annotated[
        str | None,
        typer.Option(
            "-o", "--output", help="Folder for scripts, code and zip; for kubernetes, a file.", metavar="PATH"
        ),
    ] = None,
    workers: options.Workers = None,
    config: options.ConfigFile = None,
    script: options.Script = None,
    devices: options.Devices = None,
    rank_table: options.RankTable = None,
    env: options.Env = None,
    assignments: options.Set = None,
    master_port: options.MasterPort = None,
    bind_cores: options.BindCores = None,
    nodes: Nodes = None,
    image: Image = None,
    namespace: Namespace = None,
    volcano: Volcano = None,
) -> None:
    """Write the same job as scripts, to read or to run elsewhere; without -o, print the script."""
    target = Path(output).resolve() if output else None
    flags = arguments.given(
        workers=workers,
        script=script,
        devices=devices,
        method=method,
        rank_table=rank_table,
        env=options.variables(env),
        master_port=master_port,
        bind_cores=bind_cores,
        nodes=nodes,
        image=image,
        namespace=namespace,
        volcano=volcano,
    )
    if method == METHOD:
        flags = {**flags, "transport": METHOD, "method": "dynamic"}
        render_objects(options.request(config, tuple(assignments or ()), flags, context.obj, is_module), output)
        return
    flags |= arguments.given(
        runs_dir=str(target.parent) if target else None,
        run_id=target.name if target else None,
    )
    request = options.request(config, tuple(assignments or ()), flags, context.obj, is_module)
    _render_scripts(api.plan_request(request, elsewhere=True), target)


def _render_scripts(plan: api.Plan, target: Path | None) -> None:
    """Write the scripts with all they need into a new folder, or print them."""
    scripts = [file for file in plan.files if file.path.endswith(".sh")]
    if not scripts:
        raise RequestError(
            f"--method {plan.method} has no script: mslaunch starts it itself. Give msrun, mpirun or rank-table."
        )
    if plan.sync is not None:
        print("mslaunch: the scripts leave out launch.sync: copy the data yourself.", file=sys.stderr)
    if target is None:
        print("".join(file.content for file in scripts), end="")
        return
    write(plan, target)
    for file in scripts:
        print(f"bash {target / file.path}")


def write(plan: api.Plan, target: Path) -> None:
    """Write a folder that runs the job on any machine that has MindSpore."""
    try:
        target.mkdir(parents=True)
    except FileExistsError:
        raise RequestError(f"{target}: exists already. Give -o a new folder.") from None
    except OSError as error:
        raise RequestError(f"{target}: cannot make the folder: {error.strerror}.") from None
    try:
        api.write_scripts(replace(plan, notes=()), target)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
