"""`mslaunch render`: the same job as scripts, to read or to run elsewhere."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from mslaunch.cli.parsing import common, options
from mslaunch.errors import RequestError
from mslaunch.launcher.folder import fill
from mslaunch.launcher.pipeline import plan_only
from mslaunch.plan.model import Plan
from mslaunch.run.paths import RunFolder

METHOD = "kubernetes"
LEFT_OUT = {
    "sync": "copy the data yourself",
    "max_restarts": "they start the job once",
    "timeout": "they have no time limit",
    "stall_timeout": "they do not watch the ranks",
    "stdin": "no rank reads it",
    "on_end": "run it yourself",
    "webhook": "nothing is posted",
    "report": "none is written",
}
"""Settings that scripts cannot honour, and what that means."""

_app = common.new_app()
app = partial(options.call, _app)


@options.launching(_app)
def render(
    context: typer.Context,
    output: Annotated[
        str | None,
        typer.Option(
            "-o", "--output", help="Folder for scripts, code and zip; for kubernetes, a file.", metavar="PATH"
        ),
    ] = None,
    **typed: Any,
) -> None:
    """Write the same job as scripts, to read or to run elsewhere; without -o, print the scripts."""
    if typed["method"] == METHOD:
        typed |= {"transport": METHOD, "method": "dynamic"}
        _render_objects(plan_only(options.request(typed, context.obj)), output)
        return
    target = Path(output).resolve() if output else None
    if target is not None:
        typed |= {"runs_dir": str(target.parent), "run_id": target.name}
    _render_scripts(plan_only(options.request(typed, context.obj), imagined=True), target)


def _render_scripts(plan: Plan, target: Path | None) -> None:
    hosts = {process.argv[-1]: process.host for process in plan.processes if process.role == "script"}
    scripts = {file: hosts.get(f"{plan.run_dir}/{file.path}", "") for file in plan.files if file.path.endswith(".sh")}
    if not scripts:
        raise RequestError(
            f"--method {plan.method} has no script: mslaunch starts it itself. Give msrun, mpirun or rank-table."
        )
    for name, meaning in LEFT_OUT.items():
        if not plan.sources[name].endswith("from default"):
            print(f"mslaunch: the scripts leave out launch.{name}: {meaning}.", file=sys.stderr)
    for note in plan.notes:
        print(f"mslaunch: {note}", file=sys.stderr)
    if target is not None:
        _write_folder(plan, target)
    for file, host in scripts.items():
        if target is None:
            heading = f"# {file.path}, for {host}\n" if len(scripts) > 1 else ""
            print(heading + file.content, end="")
        else:
            where = f"    # on {host}" if len(plan.hosts) > 1 else ""
            print(f"bash {target / file.path}{where}")
    if len(plan.hosts) > 1:
        if plan.device_target == "CPU":
            print("mslaunch: the scripts are for CPU hosts; device_target in the config names others.", file=sys.stderr)
        folder, others = target or "the folder that -o writes", ", ".join(host.name for host in plan.hosts[1:])
        then = f"start the script on {plan.hosts[0].name}, which reaches the other hosts itself"
        if len(scripts) > 1:
            seconds = plan.env.get("MS_TOPO_TIMEOUT", "600")
            then = f"start the {len(scripts)} scripts, each on its host: they wait {seconds} s for each other"
        print(f"mslaunch: share {folder}, or copy it to the same path of {others}; then {then}", file=sys.stderr)


def _write_folder(plan: Plan, target: Path) -> None:
    """Write a folder that runs the job on any machine that has MindSpore."""
    try:
        target.mkdir(parents=True)
    except FileExistsError:
        raise RequestError(f"{target}: exists already. Give -o a new folder.") from None
    except OSError as error:
        raise RequestError(f"{target}: cannot make the folder: {error.strerror}.") from None
    try:
        fill(replace(plan, notes=()), RunFolder(target))
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


def _render_objects(plan: Plan, output: str | None) -> None:
    """Write the objects, with the project's code and a new secret; without a file, print those that hold neither."""
    import yaml

    from mslaunch.transports.kubernetes.manifests import OBJECTS, further_objects, to_yaml

    text = next(file.content for file in plan.files if file.path == OBJECTS)
    if output is None:
        print(f"# Secret and ConfigMap are written with -o only.\n{text}", end="")
        return
    with tempfile.TemporaryDirectory() as own:
        folder = Path(own) / plan.run_id
        folder.mkdir()
        fill(plan, RunFolder(folder))
        objects = list(yaml.safe_load_all(text))
        further = further_objects(folder, next(part for part in objects if part["kind"] == "Job"), {})
    if namespace := objects[0]["metadata"].get("namespace"):
        for part in further:
            part["metadata"]["namespace"] = namespace
    try:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise RequestError(f"{output}: exists already. Give -o a new file.") from None
    except OSError as error:
        raise RequestError(f"{output}: cannot write the file: {error.strerror}.") from None
    with os.fdopen(file, "w") as opened:
        opened.write(to_yaml([*further, *objects]))
    print(shlex.join(("kubectl", "apply", "-f", str(Path(output)))))
