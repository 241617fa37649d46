"""`mslaunch check`: are the hosts ready? The same questions that train asks before it starts anything."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from typing import Annotated

import typer

from mslaunch.cli import basics, job, options
from mslaunch.cli.basics import columns
from mslaunch.errors import RequestError
from mslaunch.launch.check import Checked, Report
from mslaunch.launch.cluster import Access, connect
from mslaunch.launch.slurm_jobs import in_allocation

app = basics.new_app()

ScriptFile = Annotated[
    str | None, typer.Option("--script", help="Compare this file where it is shared.", metavar="FILE")
]


@app.command()
def check(
    hosts: options.Hosts = None,
    hostfile: options.Hostfile = None,
    config: options.ConfigFile = None,
    script: ScriptFile = None,
    accept_new_host_keys: options.AcceptNewHostKeys = None,
    master_port: options.MasterPort = None,
    runs_dir: options.RunsDir = None,
    as_json: basics.Json = False,
) -> None:
    """Check all hosts at once, starting nothing; exit code 3 if one is not ready."""
    flags = job.given(
        hosts=hosts,
        hostfile=hostfile,
        accept_new_host_keys=accept_new_host_keys,
        master_port=master_port,
        runs_dir=runs_dir,
    )
    spec, named = job.hosts_of(job.Request(config, (), flags))
    transport = "ssh"
    if not named and in_allocation(os.environ):
        from mslaunch.launch.slurm import allotted_nodes

        transport, named = "slurm", allotted_nodes(os.environ, spec.launch.nodes)
    if not named:
        raise RequestError('which hosts? Name them with --hosts "n1:8,n2:8", --hostfile FILE or launch.hosts.')
    python = spec.launch.python or sys.executable
    named = tuple(replace(host, python=host.python or python) for host in named)
    wanted = job.wanted_of(spec, script or "")
    cluster, checked = connect(transport, named, Access(python, spec.launch.accept_new_host_keys), wanted)
    cluster.close()
    print(json.dumps(_plain(checked), indent=1) if as_json else _table(checked), end="\n" if as_json else "")
    for trouble in checked.troubles:
        print(f"mslaunch: {trouble}", file=sys.stderr)
    raise typer.Exit(3 if checked.troubles else 0)


def _table(checked: Checked) -> str:
    rows = [("HOST", "READY", "PYTHON", "MINDSPORE", "DEVICES", "CORES", "FREE", "FOLDER", "CLOCK")]
    for name, report in checked.reports.items():
        facts = report.facts
        rows.append(
            (
                name,
                "no" if report.troubles else "yes",
                facts["version"],
                facts["mindspore"] or "none",
                _devices(report),
                str(len(facts["cores"])),
                f"{facts['free'] / 1e9:.0f} GB",
                "shared" if report.shared else "own",
                f"{report.skew:+.1f} s",
            )
        )
    return columns(rows)


def _devices(report: Report) -> str:
    found = {target: devices for target, devices in report.facts["devices"].items() if devices}
    return ", ".join(f"{len(devices)} {target}" for target, devices in found.items()) or "CPU"


def _plain(checked: Checked) -> list[dict[str, object]]:
    return [
        {"host": name, "ready": not report.troubles, "troubles": report.troubles, "skew": report.skew, **report.facts}
        for name, report in checked.reports.items()
    ]
