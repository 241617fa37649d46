"""`mslaunch check`: are the hosts ready? The same questions that train asks before it starts anything."""

from __future__ import annotations

from typing import Annotated

import typer

from mslaunch.cli.console.tables import columns
from mslaunch.cli.parsing import common, options
from mslaunch.errors import ExitCode
from mslaunch.launcher.check import Checked
from mslaunch.launcher.connect import check_ready
from mslaunch.launcher.read import Request

app = common.new_app()


@app.command()
def check(
    hosts: Annotated[str | None, options.option("hosts")] = None,
    hostfile: Annotated[str | None, options.option("hostfile")] = None,
    transport: Annotated[str | None, options.option("transport")] = None,
    config: options.ConfigFile = None,
    script: Annotated[
        str, typer.Option("--script", help="Compare this file where it is shared.", metavar="FILE", show_default=False)
    ] = "",
    accept_new_host_keys: Annotated[bool | None, options.option("accept_new_host_keys")] = None,
    master_port: Annotated[int | None, options.option("master_port")] = None,
    runs_dir: common.RunsDir = None,
    as_json: common.Json = False,
) -> None:
    """Check all hosts at once, or this machine, starting nothing; exit code 3 if one is not ready."""
    typed = {
        "hosts": hosts,
        "hostfile": hostfile,
        "transport": transport,
        "accept_new_host_keys": accept_new_host_keys,
        "master_port": master_port,
        "runs_dir": runs_dir,
    }
    flags = {name: value for name, value in typed.items() if value is not None}
    checked = check_ready(Request(config, (), flags), script, common.say_aside)
    if as_json:
        documents: list[dict[str, object]] = []
        for name, report in checked.reports.items():
            about = {"host": name, "ready": not report.problems, "troubles": report.problems, "skew": report.skew}
            documents.append({**about, **report.facts})
        common.print_json(documents)
    else:
        print(_table(checked), end="")
    for problem in checked.problems:
        common.say_aside(problem)
    raise typer.Exit(ExitCode.NOT_READY if checked.problems else 0)


def _table(checked: Checked) -> str:
    rows = [("HOST", "READY", "PYTHON", "MINDSPORE", "DEVICES", "CORES", "FREE", "FOLDER", "CLOCK")]
    for name, report in checked.reports.items():
        facts, devices = report.facts, []
        for target, numbers in facts["devices"].items():
            if numbers or target in facts["limits"]:  # what ranks would see there, and what hides the others
                devices.append(report.device_limit(target) or f"{len(numbers)} {target}")
        rows.append(
            (
                name,
                "no" if report.problems else "yes",
                facts["version"],
                facts["mindspore"] or "none",
                ", ".join(devices) or "CPU",
                str(len(facts["cores"])),
                f"{facts['free'] / 1e9:.0f} GB",
                "shared" if report.shared else "own",
                f"{report.skew:+.1f} s",
            )
        )
    return columns(rows)
