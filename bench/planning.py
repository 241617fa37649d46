"""How long it takes to plan a very large job."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.measure import Row, medians
from mslaunch.hosts import Host
from mslaunch.plan.make import make_plan
from mslaunch.plan.methods import METHODS
from mslaunch.plan.model import Facts, HostFacts, to_json
from mslaunch.plan.program import Program
from mslaunch.plan.spec import JobSpec, agree_on_workers
from mslaunch.settings.resolve import resolve
from mslaunch.settings.yaml_config import parse_config


def ten_thousand_ranks() -> Iterator[Row]:
    """10,000 ranks on 1,250 hosts, planned and written as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        took = medians({"mslaunch": lambda: _plan(Path(folder) / "plan.json")})["mslaunch"]
    yield Row("plan of 10,000 ranks on 1,250 hosts, written", f"{took:.2f} s", "", took, 2.0, "s")


def _plan(path: Path) -> float:
    start = time.perf_counter()
    hosts = tuple(Host(f"n{i}", f"10.{i // 250}.{i % 250}.1", tuple(range(8))) for i in range(1250))
    config = parse_config("seed: 1\ndevice_num: 10000\n", "cfg.yaml")
    settings = resolve({"workers": 10000}, {}, config)
    spec = JobSpec(settings.values, settings.sources, config, METHODS["dynamic"])
    agree_on_workers(spec, (), hosts)
    facts = Facts(
        run_id="bench",
        run_dir="/runs/bench",
        submit_dir="/job",
        job_dir="/job",
        program=Program("script", "train.py"),
        port=8118,
        device_target="Ascend",
        hosts={host.name: HostFacts("/usr/bin/python3", tuple(range(192))) for host in hosts},
        environment={},
    )
    path.write_text(to_json(make_plan(spec, hosts, facts)))
    return time.perf_counter() - start
