"""The transport that a job takes: implied or named, made for that job alone, and nothing else imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from mslaunch.hosts import parse_hosts
from mslaunch.plan.methods import find_method
from mslaunch.plan.spec import JobSpec
from mslaunch.settings.launch import SETTINGS
from mslaunch.settings.resolve import resolve
from mslaunch.settings.yaml_config import JobConfig
from mslaunch.transports.base import JobContext
from mslaunch.transports.registry import BUILT_IN, choose, implied, make

SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}
PODS = {"VC_TASK_INDEX": "1", "VC_WORKER_HOSTS": "pod-0,pod-1", "VC_WORKER_NUM": "2"}
TORCHRUN = {"PET_NODE_RANK": "0", "PET_NNODES": "1"}

Row = tuple[dict[str, Any], dict[str, str], str]
IMPLIED: tuple[Row, ...] = (
    ({}, {}, "local"),
    ({"workers": 8}, {}, "local"),
    ({"hosts": "localhost:2"}, {}, "local"),
    ({"hosts": "localhost:2"}, SLURM, "local"),
    ({"nnodes": (1, 1)}, {}, "local"),
    ({"nnodes": (1, 1)}, PODS, "local"),
    ({"workers": 4, "workers_per_node": 4}, {}, "local"),
    ({"workers": 4, "master": "n0:29400"}, {}, "local"),
    ({}, TORCHRUN, "local"),
    ({}, {"NODE_RANK": "1", "NNODES": "2"}, "local"),
    ({}, PODS | {"MSLAUNCH_RUN_DIR": "/runs/r"}, "local"),
    ({}, {"SLURM_JOB_ID": "7"}, "local"),
    ({"image": "i", "nodes": 2}, {}, "local"),
    ({"hosts": "n1:8,n2:8"}, {}, "ssh"),
    ({"hosts": "n1:8,n2:8"}, SLURM, "ssh"),
    ({"hosts": "n1:8,n2:8"}, PODS, "ssh"),
    ({"hosts": "n1:8", "master": "n1"}, {}, "ssh"),
    ({}, SLURM, "slurm"),
    ({"nnodes": (1, 1)}, SLURM, "slurm"),
    ({}, PODS, "join"),
    ({}, SLURM | PODS, "join"),
    ({"nnodes": (2, 2)}, {}, "join"),
    ({"nnodes": (2, 2)}, SLURM, "join"),
    ({"nnodes": (1, 4), "hosts": "n1:8"}, {}, "join"),
    ({"node_rank": 1}, {}, "join"),
    ({"launcher_only": True}, {}, "join"),
    ({"workers": 8, "workers_per_node": 4}, {}, "join"),
    ({"master": "n0:29400"}, {}, "join"),
)


def job(flags: dict[str, Any], environment: dict[str, str]) -> JobContext:
    settings = resolve(flags, {}, JobConfig())
    spec = JobSpec(settings.values, settings.sources, JobConfig(), find_method(settings))
    hosts = parse_hosts(flags["hosts"]) if "hosts" in flags else ()
    return JobContext(spec, hosts, environment)


def test_the_transport_of_a_job_that_names_none_is_implied() -> None:
    """Settings of joining nodes imply join, hosts ssh, an allocation without hosts slurm, in this order; else local."""
    wrong = []
    for flags, environment, transport in IMPLIED:
        context = job(flags, environment)
        answer = implied(context.spec.launch, context.hosts, environment)
        if answer != transport:
            wrong.append((flags, environment, transport, answer))
    assert wrong == []


def test_a_named_transport_overrides_the_implied_one() -> None:
    """--transport decides, whatever the settings, hosts and variables imply; kubernetes is only taken by name."""
    rows: tuple[tuple[str, dict[str, Any], dict[str, str]], ...] = (
        ("local", {}, SLURM),
        ("slurm", {}, {}),
        ("kubernetes", {"image": "i"}, SLURM),
        ("join", {"nnodes": (1, 1), "master": "n0"}, {}),
        ("ssh", {"hosts": "localhost:1"}, {}),
    )
    chosen = [choose(job({**flags, "transport": name}, environment)).name for name, flags, environment in rows]
    assert chosen == [name for name, _, _ in rows]
    assert {name for name, _, _ in rows} == set(BUILT_IN)


def test_two_jobs_share_no_transport() -> None:
    """Each job of a program has a transport of its own, which reports to its own caller."""
    first: list[str] = []
    second: list[str] = []
    transports = [choose(job({}, {}), first.append), choose(job({}, {}), second.append)]
    assert transports[0] is not transports[1]
    transports[0].tell("waiting")
    assert (first, second) == (["waiting"], [])


def test_a_transport_has_the_name_of_its_row() -> None:
    """The table and the classes agree on the names, and every setting of a row exists."""
    settings = set(SETTINGS)
    for name, row in BUILT_IN.items():
        assert make(name).name == name
        assert set(row.own_settings) <= settings


def test_a_local_job_imports_no_other_transport(tmp_path: Path) -> None:
    """Only the package of the chosen transport is loaded."""
    (tmp_path / "train.py").write_text("")
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(*sys.modules, file=open('modules', 'w')))\n"
        "from mslaunch.cli import run\n"
        "run(['train', '-n', '2', 'train.py'])\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)
    modules = (tmp_path / "modules").read_text().split()
    packages = {name.split(".")[2] for name in modules if name.startswith("mslaunch.transports.")}
    assert "local" in packages
    assert packages & set(BUILT_IN) == {"local"}
