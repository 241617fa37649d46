"""What very large jobs cost the launcher: its real code, with simulated agents that answer at once."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from bench.measure import MSLAUNCH, Row
from mslaunch.hosts import Host
from mslaunch.launcher.connect import Cluster, Site
from mslaunch.launcher.execute import execute
from mslaunch.launcher.pipeline import Launch
from mslaunch.plan.make import make_plan
from mslaunch.plan.methods import METHODS
from mslaunch.plan.model import Facts, HostFacts, Plan, to_json
from mslaunch.plan.program import Program
from mslaunch.plan.spec import JobSpec
from mslaunch.run import record
from mslaunch.run.paths import RunFolder
from mslaunch.settings.resolve import resolve
from mslaunch.settings.yaml_config import parse_config
from mslaunch.shared import wire
from mslaunch.transports.base import Transport

FAILS = 4321
"""The rank that fails, where one does."""
LINES_SECONDS = 30.0


class SimulatedTransport(Transport):
    """Hosts that exist in this process only."""

    name = "simulated"
    label = "a simulation"


class SimulatedChannel:
    """One host's agent: what it is sent is encoded, what it answers is decoded, and it answers at once."""

    def __init__(self, host: str, does: str) -> None:
        self.hosts: tuple[str, ...] = (host,)
        self.hint = ""
        self.is_open = True
        self.stopped_at: float | None = None
        self._does = does
        self._ranks: list[int] = []
        self._ready = os.eventfd(0, os.EFD_NONBLOCK)
        self._decoder = wire.Decoder()
        self._answers = bytearray(wire.MAGIC)
        self._lock = threading.Lock()

    def fileno(self) -> int:
        return self._ready

    def send(self, message: Mapping[str, object]) -> None:
        wire.encode(message)  # what sending costs
        if message["do"] == "run":
            processes: Any = message["processes"]
            self._ranks = [process["rank"] for process in processes if process["role"] == "worker"]
            for rank in self._ranks:
                self._answer("started", role="worker", rank=rank, pid=1000 + rank)
            for rank in self._ranks if self._does == "end" else ():
                for name in ("import", "joining", "joined", "done"):
                    self._answer(name, rank=rank, message=None)
                self._answer("exited", role="worker", rank=rank, pid=1000 + rank, code=0, signal=None)
            if self._does == "fail" and FAILS in self._ranks:
                self._answer("error", rank=FAILS, message="ValueError: NaN")
        elif message["do"] in ("stop", "finish"):
            self.stopped_at = time.process_time()
            for rank in self._ranks if message["do"] == "stop" else ():
                self._answer("exited", role="worker", rank=rank, pid=1000 + rank, code=None, signal=15)
            self._answer("idle")
        elif message["do"] == "ping":
            self._answer("pulse", quiet=0.0)

    def _answer(self, name: str, **data: Any) -> None:
        event = {"ev": name, "host": self.hosts[0], "time": time.time(), **data}
        with self._lock:
            self._answers += wire.encode(event)
        os.eventfd_write(self._ready, 1)

    def receive(self) -> list[dict[str, Any]] | None:
        os.eventfd_read(self._ready)
        with self._lock:
            data, self._answers = bytes(self._answers), bytearray()
        return self._decoder.feed(data)

    def flush(self) -> None:
        """Nothing waits."""

    def why_it_ended(self) -> str:
        return ""

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            os.close(self._ready)

    def end(self) -> None:
        """Let the job end: every rank exits well."""
        for rank in self._ranks:
            self._answer("exited", role="worker", rank=rank, pid=1000 + rank, code=0, signal=None)


def end_all(channels: list[SimulatedChannel]) -> None:
    for channel in channels:
        channel.end()


def large_plan(run_dir: Path, hosts: int, each: int) -> Plan:
    """A plan for so many hosts with so many ranks each, none of which is shown."""
    named = tuple(
        Host(f"n{i}", f"10.{i // 62500}.{i // 250 % 250}.{i % 250}", tuple(range(each))) for i in range(hosts)
    )
    config = parse_config("seed: 1\n", "cfg.yaml")
    settings = resolve({"workers": hosts * each, "tail": "none"}, {}, config)
    spec = JobSpec(settings.values, settings.sources, config, METHODS["dynamic"])
    facts = Facts(
        run_id=run_dir.name,
        run_dir=str(run_dir),
        submit_dir="/job",
        job_dir="/job",
        program=Program("script", "train.py"),
        port=25000,
        device_target="CPU",
        hosts={host.name: HostFacts("/usr/bin/python3", (0,)) for host in named},
        environment={},
    )
    return make_plan(spec, named, facts)


def run_here(does: str, hosts: int, each: int) -> dict[str, float]:
    """Carry out one job with simulated agents in this process; return what it cost."""
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place) / "bench")
        folder.path.mkdir()
        plan = large_plan(folder.path, hosts, each)
        channels = [SimulatedChannel(host.name, does) for host in plan.hosts]
        before = time.process_time()
        folder.plan.write_text(to_json(plan))
        if does == "lines":
            threading.Timer(LINES_SECONDS, end_all, [channels]).start()
        began = time.perf_counter()
        transport, unused = SimulatedTransport(), cast(Any, None)
        site = Site(unused, transport, unused, plan.hosts, unused)
        final = execute(Launch(plan, folder, site, {}), Cluster(transport, channels), lambda *_: None)
        assert final.state == ("failed" if does == "fail" else "succeeded"), final
        stopped = max((channel.stopped_at or 0.0) for channel in channels)
        return {
            "cpu": time.process_time() - before,
            "wall": time.perf_counter() - began,
            "until_stopped": stopped - before,
            "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }


def _measure(does: str, hosts: int, each: int) -> dict[str, float]:
    """The same in a process of its own, so that memory and time are those of one job."""
    code = f"import json; from bench.scale import run_here; print(json.dumps(run_here({does!r}, {hosts}, {each})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def many_hosts() -> Iterator[Row]:
    """Agents are simulated behind the transport protocol: they answer at once."""
    print("agents are simulated: they answer at once, in the launcher's own process")
    costs = {(hosts, each): _measure("end", hosts, each) for hosts, each in ((100, 8), (1250, 8), (10000, 1))}
    main = costs[1250, 8]
    small = costs[100, 8]["cpu"]
    yield Row("1,250 hosts x 8 ranks, CPU", f"{main['cpu']:.2f} s", f"100 hosts {small:.2f} s", main["cpu"], 2.5, "s")
    yield Row("1,250 hosts x 8 ranks, memory", f"{main['memory']:.0f} MB", "", main["memory"], 200, "MB")
    large = costs[10000, 1]
    ratio = (large["cpu"] / 10000) / (main["cpu"] / 1250)
    yield Row("10,000 hosts x 1, CPU a host", f"{large['cpu']:.2f} s", "that at 1,250 hosts", ratio, 1.5)
    failed = _measure("fail", 1250, 8)
    started = main["cpu"]
    yield Row(
        "one rank of 10,000 fails, all told to stop",
        f"{failed['until_stopped']:.2f} s",
        f"whole job {started:.2f} s",
        failed["until_stopped"],
        1.0,
        "s CPU",
    )
    lines = _measure("lines", 1250, 8)
    share = 100 * lines["cpu"] / lines["wall"]
    yield Row("10,000 ranks for 30 s, --tail none", f"{share:.1f} %", "of one core", share, 20, "%")


def status_of_many() -> Iterator[Row]:
    """`status` and `ps` of a run with 10,000 ranks."""
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place) / "runs" / "bench")
        folder.path.mkdir(parents=True)
        plan = large_plan(folder.path, 1250, 8)
        folder.plan.write_text(to_json(plan))
        record.save(folder, record.queued(plan, time.time()))
        for verb in ("status", "ps"):
            start = time.perf_counter()
            subprocess.run([MSLAUNCH, verb, "--runs-dir", str(folder.path.parent)], capture_output=True, check=True)
            took = time.perf_counter() - start
            yield Row(f"{verb} of a run with 10,000 ranks", f"{took:.2f} s", "", took, 0.5, "s")
