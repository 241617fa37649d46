"""What a person writes and `mslaunch` reads before a launch: YAML, hosts, rank tables, failure patterns."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random

from fuzz.mutate import mutate_bytes, mutate_json
from fuzz.run import Border, samples
from mslaunch.cli import rank_table as rank_table_verb
from mslaunch.diagnose.patterns.pattern import checked_pattern
from mslaunch.documents.row_table import parse_rows
from mslaunch.hosts import Host, parse_hosts
from mslaunch.launcher import read as reading
from mslaunch.launcher.program import find_program
from mslaunch.launcher.read import ReadJob, Request
from mslaunch.plan.make import make_plan
from mslaunch.plan.model import Facts, HostFacts, Plan, from_json, to_json
from mslaunch.plan.program import Program
from mslaunch.plan.spec import agree_on_workers, local_host
from mslaunch.ranktable import generate, repair
from mslaunch.ranktable.repair import differences
from mslaunch.ranktable.rules import TableUnreadable, read_json
from mslaunch.ranktable.servers import merge
from mslaunch.ranktable.versions import VERSIONS, read_table, validate, write_table

ROOT = Path(__file__).parent.parent
MOST_PLANNED = 64
"""A plan of more ranks takes longer than a case may."""


def _open_config(folder: Path) -> Callable[[bytes], object]:
    path = folder / "cfg.yaml"
    (folder / "train.py").touch()

    def read(data: bytes) -> None:
        path.write_bytes(data)
        job = reading.read(Request(config=str(path)))
        find_program(job.spec, path)
        plan = _plan(job)
        if plan is not None:
            check_written(plan)
            _check_started(plan)

    return read


def _plan(job: ReadJob) -> Plan | None:
    if job.spec.launch.method not in ("dynamic", "msrun", "mpirun", "rank-table"):
        return None
    workers = agree_on_workers(job.spec, (), job.named)
    hosts: tuple[Host, ...] = job.named or (local_host(job.spec, workers, (), "CPU"),)
    if sum(len(host.devices) for host in hosts) > MOST_PLANNED:
        return None
    facts = Facts(
        run_id="r1",
        run_dir="/runs/r1",
        submit_dir="/job",
        job_dir="/job",
        program=Program("script", "train.py"),
        port=8118,
        device_target="CPU",
        hosts={host.name: HostFacts("/bin/python", (0, 1, 2, 3)) for host in hosts},
        environment={"PATH": "/bin"},
        rank_table=job.rank_table,
    )
    return make_plan(job.spec, hosts, facts)


def check_written(plan: Plan) -> None:
    """Check that a plan can be written and read again."""
    text = to_json(plan)
    text.encode("utf-8", "surrogateescape")
    assert to_json(from_json(text)) == text
    for file in plan.files:
        file.content.encode("utf-8", "surrogateescape")


def _check_started(plan: Plan) -> None:
    """Check that the system takes every word that its processes are started with."""
    for process in plan.processes:
        words = [*process.argv, *plan.env, *plan.env.values(), *process.env, *process.env.values(), process.cwd]
        assert "\0" not in "".join(words), "a NUL where the system takes none"
        "".join(words).encode("utf-8", "surrogateescape")


def _open_hosts(folder: Path) -> Callable[[bytes], object]:
    path = folder / "hostfile"

    def read(data: bytes) -> None:
        if b"\n" in data:
            path.write_bytes(data)
            reading.read(Request(flags={"hostfile": str(path)}))
        else:
            parse_hosts(data.decode("utf-8", "surrogateescape"))

    return read


def _open_cluster(folder: Path) -> Callable[[bytes], object]:
    path = folder / "cluster.yaml"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        table = generate.from_cluster(rank_table_verb.read_yaml(str(path)), str(path))
        json.loads(write_table(table))

    return read


def _open_patterns(folder: Path) -> Callable[[bytes], object]:
    del folder

    def read(data: bytes) -> None:
        _, problems = parse_rows(data.decode("utf-8", "replace"), "mine.yaml", "patterns", checked_pattern)
        assert all("\n" not in problem for problem in problems)

    return read


def _open_rank_table(folder: Path) -> Callable[[bytes], object]:
    del folder

    def read(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        findings = validate(text, "910a", 8, "table.json")
        assert all(finding.words("table.json") for finding in findings)
        try:
            json.dumps(repair.repair(read_json(text))[0])
        except TableUnreadable:
            assert findings
        table = read_table(text, "table.json")
        assert not list(differences(table, table))
        merge([table])
        for version in VERSIONS:
            if version != "1.2" or table.version == "1.2":
                write_table(table, version)

    return read


def _mutate_config(random: Random, data: bytes, samples: tuple[bytes, ...]) -> bytes:
    return (mutate_json if data.startswith(b"{") else mutate_bytes)(random, data, samples)


TABLES = ("v1.0_1x2", "v1.2_2x8", "v2.0_1x8", "standard_1x8")

BORDERS = (
    Border("config", samples("config"), _mutate_config, _open_config),
    Border("hosts", samples("hosts"), mutate_bytes, _open_hosts),
    Border("cluster", samples("cluster"), mutate_bytes, _open_cluster),
    Border("patterns", samples("patterns"), mutate_bytes, _open_patterns),
    Border(
        "rank-table",
        tuple((ROOT / "rank_tables" / f"{name}.json").read_bytes() for name in TABLES),
        mutate_json,
        _open_rank_table,
    ),
)
