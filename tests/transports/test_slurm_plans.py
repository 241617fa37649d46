"""Slurm in plans: how ranks are spread over nodes, and the script that is submitted."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mslaunch.errors import NotReadyError, RequestError
from mslaunch.hosts import Host
from mslaunch.plan.methods import METHODS
from mslaunch.plan.spec import JobSpec
from mslaunch.settings.resolve import resolve
from mslaunch.settings.yaml_config import JobConfig
from mslaunch.transports import registry
from mslaunch.transports.base import Command, JobContext
from mslaunch.transports.slurm.batch_script import (
    JOB,
    JOB_CONFIG,
    Allotment,
    array_script,
    job_files,
    parse_gres,
    parse_tasks,
    place,
    planned_hosts,
    spread,
)
from tests.plan.test_make import compare

ALLOCATION = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}
NODES = (Host("n1", "10.0.0.1", ()), Host("n2", "10.0.0.2", ()))


def spec(**flags: object) -> JobSpec:
    settings = resolve(flags, {}, JobConfig())
    return JobSpec(settings.values, settings.sources, JobConfig(), METHODS["dynamic"])


def devices(hosts: tuple[Host, ...]) -> list[tuple[int, ...]]:
    return [host.devices for host in hosts]


@pytest.mark.parametrize(
    ("text", "counts"), [("4", (4,)), ("4(x2)", (4, 4)), ("4(x2),3", (4, 4, 3)), ("", ()), ("2,1(x3)", (2, 1, 1, 1))]
)
def test_tasks_per_node_as_slurm_writes_them(text: str, counts: tuple[int, ...]) -> None:
    assert parse_tasks(text) == counts


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("npu:1(IDX:0)", (0,)),
        ("lic:1,npu:3(IDX:1,4-5)", (1, 4, 5)),
        ("gpu:a100:2(IDX:2-3)", (2, 3)),
        ("npu:2", ()),
        ("(null)", ()),
    ],
)
def test_granted_devices_as_slurm_writes_them(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_gres(text) == numbers


@given(st.integers(1, 10_000), st.integers(1, 1_000))
def test_ranks_are_spread_evenly(ranks: int, nodes: int) -> None:
    counts = spread(ranks, nodes)
    assert sum(counts) == ranks
    assert len(counts) == nodes
    assert max(counts) - min(counts) <= 1


def test_devices_are_used_as_given() -> None:
    given_devices = Allotment(devices={"n1": (2, 5), "n2": (0, 7)})
    assert devices(place(spec(), NODES, given_devices, "GPU")) == [(2, 5), (0, 7)]
    assert devices(place(spec(workers=2), NODES, given_devices, "GPU")) == [(2,), (0,)]


def test_unequal_nodes_keep_what_each_was_given() -> None:
    given_devices = Allotment(devices={"n1": (0, 1, 2), "n2": (0,)})
    assert devices(place(spec(workers=4), NODES, given_devices, "GPU")) == [(0, 1, 2), (0,)]
    assert devices(place(spec(), NODES, Allotment(tasks=(3, 1)), "CPU")) == [(0, 1, 2), (0,)]


def test_more_ranks_than_devices_is_told_with_the_node() -> None:
    with pytest.raises(NotReadyError, match=r"n1: Slurm gives 1 device there, and 2 ranks"):
        place(spec(workers=4), NODES, Allotment(devices={"n1": (0,), "n2": (0,)}), "GPU")


def test_nodes_without_ranks_are_refused() -> None:
    with pytest.raises(RequestError, match="Slurm has given 2 nodes, and there is only 1 rank"):
        place(spec(workers=1), NODES, Allotment(), "CPU")
    with pytest.raises(RequestError, match="4 nodes"):
        planned_hosts(spec(workers=2, nodes=4))


@pytest.mark.parametrize(
    ("flags", "inside", "transport"),
    [
        ({}, False, "local"),
        ({}, True, "slurm"),
        ({"transport": "slurm"}, False, "slurm"),
        ({"transport": "local"}, True, "local"),
    ],
)
def test_transport_by_what_was_said_and_where_we_are(flags: dict[str, str], inside: bool, transport: str) -> None:
    environment = ALLOCATION if inside else {}
    assert registry.choose(JobContext(spec(**flags), (), environment)).name == transport
    assert registry.choose(JobContext(spec(hosts="n1,n2"), NODES, environment)).name == "ssh"


@pytest.mark.parametrize(
    ("flags", "hosts", "words"),
    [
        ({"transport": "slurm", "hosts": "n1,n2"}, NODES, "Slurm chooses the hosts. Leave --hosts out"),
        ({"transport": "ssh"}, (), "which hosts"),
        ({"transport": "local", "hosts": "n1,n2"}, NODES, "--hosts names other hosts"),
        ({"nodes": 2}, (), "--nodes is for Slurm. Add --transport slurm"),
        ({"sbatch_args": ["--hold"]}, (), "--sbatch-arg is for Slurm"),
    ],
)
def test_contradictions_are_told(flags: dict[str, object], hosts: tuple[Host, ...], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        registry.choose(JobContext(spec(**flags), hosts, {}))


def test_job_script_is_the_golden_one() -> None:
    """Everything that was typed, spelled for Slurm; no value of a variable on the command line."""
    flags = {
        "workers": 8,
        "transport": "slurm",
        "nodes": 2,
        "partition": "npu",
        "time": "1:00:00",
        "account": "proj 7",
        "requeue": True,
        "sbatch_args": ["--gres=gpu:4", "--comment 'two words'"],
        "env": {"MODE": "it's fast", "TOKEN": None},
        "max_restarts": 1,
        "bind_cores": False,
        "run_id": "r1",
    }
    asked = spec(**flags)
    command = Command(
        program=("/opt/env/bin/mslaunch",),
        verb="train",
        own=(),
        flags=flags,
        assignments=("lr=0.1",),
        config="epochs: 3\n",
        named=("--script=/home/u/job/train.py",),
        rank_table=None,
        script_args=("--data", "/a b"),
    )
    files = job_files(asked.launch, planned_hosts(asked), "/home/u/runs/r1", command, "/home/u/job")
    assert [(file.path, file.mode) for file in files] == [(JOB, 0o700), (JOB_CONFIG, 0o600)]
    compare("job.sbatch", files[0].content)
    scripts = {index: Path(f"/home/u/runs/my sweep/{index + 1}/{JOB}") for index in (0, 1, 4)}
    compare("array.sbatch", array_script("/home/u/runs/my sweep", scripts, [files[0].content] * 3, 2))
