"""What comes over wires: from hosts to the launcher, from ranks to their agent, and what ssh says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from fuzz.mutate import mutate_bytes, mutate_records
from fuzz.requests import ROOT
from fuzz.run import Border, samples
from mslaunch.agent.kernel_kills import KernelKills
from mslaunch.agent.launcher_stream import LauncherStream
from mslaunch.agent.metrics.measuring import AttemptMetrics
from mslaunch.agent.rank_messages import MessagePipe, RankMessages
from mslaunch.agent.ranks import Children, Ranks
from mslaunch.agent.standard_input import StandardInput
from mslaunch.cli.console.console import Console, Screen, headline
from mslaunch.hosts import Host
from mslaunch.launcher.attempt.attempt import Attempt
from mslaunch.launcher.attempt.connections import Connections
from mslaunch.launcher.attempt.event_check import check_event
from mslaunch.launcher.attempt.file_transfer import FileTransfer
from mslaunch.launcher.attempt.journal import Journal, nothing
from mslaunch.launcher.attempt.run_state import RunState
from mslaunch.launcher.connect import Cluster
from mslaunch.launcher.execute import conclude
from mslaunch.metrics.order import metrics_order
from mslaunch.plan.model import Plan, from_json
from mslaunch.run import record
from mslaunch.run.paths import RunFolder
from mslaunch.shared import messages, wire
from mslaunch.signals import SignalSource
from mslaunch.transports.base import Transport
from mslaunch.transports.ssh import channel as failures
from mslaunch.transports.ssh.channel import address_of

HOST = "localhost"
REAL_SSH_EVERY = 100
"""A real ssh costs as much as a hundred cases."""


def _from_host() -> tuple[bytes, ...]:
    """The samples as an agent writes them: after the magic word, each record with its end."""
    return tuple(wire.MAGIC + lines.replace(b"\n", wire.END + b"\n") for lines in samples("wire-from-host"))


class DrivenTransport(Transport):
    """Hosts whose streams are made up."""

    name = "driven"
    label = "a stream"


class DrivenChannel:
    """A channel whose bytes a case writes; decoding is the real one's."""

    hint = ""

    def __init__(self, *hosts: str) -> None:
        self.hosts = hosts
        self.is_open = True
        self.incoming: deque[bytes] = deque()
        self._decoder = wire.Decoder()
        self._end = os.eventfd(1)

    def fileno(self) -> int:
        return self._end

    def receive(self) -> list[dict[str, Any]] | None:
        return self._decoder.feed(self.incoming.popleft()) if self.incoming else None

    def send(self, message: Mapping[str, object]) -> None:
        wire.encode(message)

    def flush(self) -> None:
        """Nothing is queued."""

    def why_it_ended(self) -> str:
        return ""

    def close(self) -> None:
        """The end is closed by `release`."""

    def release(self) -> None:
        os.close(self._end)


class QuietScreen(Screen):
    """A terminal that nobody looks at, without a thread."""

    is_behind = False
    end = -1

    def __init__(self) -> None:
        self.is_terminal = True

    def write(self, text: str, then: Callable[[], object] | None = None) -> None:
        text.encode("utf-8", "backslashreplace")
        if then is not None:
            then()


def _open_host(folder: Path) -> Callable[[bytes], object]:
    plan = from_json((ROOT / "tests" / "golden" / "plan_dynamic.json").read_text())
    run = RunFolder(folder / "r1")
    signals = SignalSource()

    def read(data: bytes) -> None:
        run.path.mkdir(exist_ok=True)
        channel = DrivenChannel(HOST)
        cluster = Cluster(DrivenTransport(), [channel])
        recorded: list[Mapping[str, Any]] = []
        transfer = FileTransfer(cluster, run, plan.run_dir)
        observe = Console(plan, QuietScreen()).observe
        journal = Journal(observe, recorded.append, lambda _rows: None, nothing)
        connections = Connections(cluster, signals, plan.limits.host_lost_after)
        attempt = Attempt(plan, connections, transfer, journal, 0.0)
        try:
            _feed(attempt, channel, data, plan)
            lost = [event["traceback"] for event in recorded if event["ev"] == "console-lost"]
            assert not lost, lost[0]
            json.dumps(recorded)
            _conclude(attempt.run_state, run)
        finally:
            attempt.connections.close()
            channel.release()
        shutil.rmtree(run.path)

    return read


def _feed(attempt: Attempt, channel: DrivenChannel, data: bytes, plan: Plan) -> None:
    attempt.start(dict.fromkeys((*plan.carried, *plan.secrets), ""))
    half = len(data) // 2
    channel.incoming.extend((data[:half], data[half:]))
    for _ in range(3):
        if attempt.connections.hosts():
            attempt.receive()
    attempt.timeouts.check(attempt.clock.monotonic(), attempt.clock.wall())


def _conclude(run_state: RunState, run: RunFolder) -> None:
    """Write the record as the launcher does at the end, and read it again."""
    if run_state.ending.failures:
        headline(run_state)
    now = conclude(record.queued(run_state.plan, 1e9), run_state, run, 1.0)
    record.save(run, now)
    record.read(run)


class QuietRanks(Ranks):
    """Ranks that nobody starts or signals: pids come out of the fuzzer."""

    def start_scheduler(self) -> None:
        """Start nothing."""

    def wake_joining(self) -> None:
        assert all(isinstance(child.pid, int) for child in self.children if child.joining and child.pid)


def _open_rank(folder: Path) -> Callable[[bytes], object]:
    _, sink = os.pipe()
    pipe = MessagePipe()

    def planned(role: str, rank: int | None) -> messages.PlannedProcess:
        place = str(folder)
        made: dict[str, Any] = {
            "role": role,
            "rank": rank,
            "host": HOST,
            "device_id": 0,
            "argv": [],
            "env": {},
            "cwd": place,
        }
        return cast(messages.PlannedProcess, {**made, "log": f"{place}/log.txt", "start": "by-script"})

    def read(data: bytes) -> None:
        output = LauncherStream(sink, HOST)
        ranks = QuietRanks(output, pipe, StandardInput(None))
        ranks._kernel_kills = KernelKills()
        ranks.children = Children([planned("worker", 0), planned("worker", 1), planned("scheduler", None)])
        order: Any = {"run_dir": str(folder), "env": {}, "secrets": {}, "processes": [planned("worker", 0)]}
        order["metrics"] = metrics_order((), 1, "CPU")
        ranks.metrics = AttemptMetrics(order, output, ranks.children)
        half = len(data) // 2
        reader = RankMessages()
        for message in (*reader.feed(data[:half]), *reader.feed(data[half:])):
            ranks.handle(message)
        ranks.metrics.finish(0)
        events = wire.Decoder().feed(b"".join(output._queue))
        for event in events:
            assert not event.get("text", "").startswith("metrics are not measured"), event["text"]
            if event["ev"] == "metrics":
                check_event(event, [HOST])
            assert isinstance(event["time"], (int, float)), "a time that is no number"
            assert isinstance(event.get("message"), (str, type(None))), "a message that is no text"
            for name in ("pid", "code", "signal"):
                assert type(event.get(name)) in (int, type(None)), f"a {name} that is no number"

    return read


def _open_ssh(folder: Path) -> Callable[[bytes], object]:
    ssh = shutil.which("ssh")
    config = folder / "config"
    host = Host("n1", "n1", (0,))
    count = 0

    def read(data: bytes) -> None:
        nonlocal count
        count += 1
        _check_address(address_of(host, data))
        said = data.decode(errors="replace").strip()
        sentence = failures.explain(host, said, "root")
        assert "\n" not in sentence
        assert failures.find_rule(said).retries >= 0
        if ssh and count % REAL_SSH_EVERY == 1 and b"Match" in data and b"exec" not in data.lower():
            config.write_bytes(data)
            command = [ssh, "-F", str(config), "-G", "--", host.name]
            done = subprocess.run(command, check=False, capture_output=True, stdin=subprocess.DEVNULL, timeout=60)
            _check_address(address_of(host, done.stdout))

    return read


def _check_address(address: str) -> None:
    assert address
    assert address.isprintable()
    assert not any(sign.isspace() for sign in address)


BORDERS = (
    Border("wire-from-host", _from_host(), mutate_records(wire.END), _open_host),
    Border("wire-from-rank", samples("wire-from-rank"), mutate_records(b"\n"), _open_rank),
    Border("ssh", samples("ssh"), mutate_bytes, _open_ssh),
)
