"""Hosts that send what they must not send: they are cut off and named, and nothing of it counts."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mslaunch.errors import ExitCode, HostsNotReady
from mslaunch.hosts import Host
from mslaunch.launcher.check import converse
from mslaunch.launcher.connect import Cluster
from mslaunch.plan.make import make_plan
from mslaunch.plan.model import Plan
from mslaunch.shared import layout
from mslaunch.shared.wire import UnreadableRecord
from mslaunch.signals import SignalSource
from mslaunch.transports.process import ProcessChannel
from mslaunch.transports.slurm import SrunChannel
from tests.launcher.test_attempt import Replay, ScriptedChannel, ScriptedTransport, causes
from tests.plan.test_make import facts_of, spec_of

HOSTS = (Host("n1", "10.0.0.1", (0, 1)), Host("n2", "10.0.0.2", (0, 1)))
EXITED = {"role": "worker", "rank": 2, "pid": 100, "code": 0, "signal": None}


def plan_of(**flags: Any) -> Plan:
    return make_plan(spec_of(workers=4, **flags), HOSTS, facts_of(HOSTS))


@pytest.fixture
def replay(tmp_path: Path) -> Iterator[Replay]:
    """An attempt on n1 (ranks 0 and 1, the scheduler) and n2 (ranks 2 and 3), neither of which shares our folder."""
    made = Replay(plan_of(), {host.name: ScriptedChannel(host.name) for host in HOSTS}, SignalSource(), tmp_path)
    cluster = Cluster(ScriptedTransport(), list(made.channels.values()), frozenset({"n1", "n2"}))
    made.attempt.connections.cluster = made.attempt.transfer.cluster = cluster
    yield made.start()
    made.attempt.connections.close()
    made.signals.close()
    for channel in made.channels.values():
        channel.release()


def piece(path: str, offset: int = 0, data: str = "x", is_text: bool = True) -> dict[str, Any]:
    return {"ev": "file", "path": path, "offset": offset, "data": data, "is_text": is_text}


def send(replay: Replay, event: dict[str, Any]) -> None:
    """Have n2 send a record as it is."""
    replay.channels["n2"].incoming.append([event])
    replay.turns(1)


def assert_cut_off(replay: Replay, *words: str) -> None:
    """n2 is lost for a reason, the reason is recorded, and n1 is told to stop."""
    assert causes(replay) == [("host lost", ExitCode.LOST)]
    assert replay.state.hosts.lost == {"n2"}
    assert not replay.channels["n2"].is_open
    assert replay.channels["n2"].is_closed
    assert replay.channels["n1"].orders("stop")
    (rejected,) = [event for event in replay.recorded if event["ev"] == "rejected"]
    assert rejected["host"] == "n2"
    assert replay.state.ending.failures[0].summary == f"n2 {rejected['why']}"
    assert len(rejected["why"]) < 300
    for word in words:
        assert word in rejected["why"]


@pytest.mark.parametrize(
    "event",
    [
        {"ev": "exited", **EXITED, "rank": 0},
        {"ev": "exited", **EXITED, "rank": 99},
        {"ev": "exited", **EXITED, "rank": None},
        {"ev": "exited", **EXITED, "role": "scheduler", "rank": None, "code": 1},
        {"ev": "exited", **EXITED, "role": "script", "rank": None, "code": 1},
        {"ev": "exited", **EXITED, "role": "captain"},
        {"ev": "started", "role": "worker", "rank": 1, "pid": 5},
        {"ev": "start-failed", "role": "worker", "rank": 7, "why": "no"},
        {"ev": "error", "rank": 0, "message": "ValueError"},
        {"ev": "joined", "rank": 1, "message": None},
        {"ev": "lines", "rank": 0, "lines": ["x"], "bytes": 2},
        {"ev": "stacks", "stacks": {"0": "File x"}},
        {"ev": "stacks", "stacks": {"two": "File x"}},
    ],
)
def test_a_host_speaks_for_its_own_processes_only(replay: Replay, event: dict[str, Any]) -> None:
    """An event of a rank that is another's, or of a process that is not planned, changes nothing."""
    ranks = dict(replay.state.ranks.records)
    send(replay, {"host": "n2", "time": 1.0, **event})
    assert_cut_off(replay, "not its own")
    assert replay.state.ranks.records == ranks
    assert replay.shown_events("lines") == []


@pytest.mark.parametrize(
    "path",
    [
        "mslaunch_rank.py",
        "plan.json",
        "rank_1/log.txt",
        "rank_99/log.txt",
        "rank_2/../rank_1/log.txt",
        "../rank_2/log.txt",
        "/etc/rank_2/log.txt",
        "rank_2/weights.bin",
        "rank_2/sub/log.txt",
        "rank_2/plog/../../x.log",
        "rank_2//log.txt",
        "rank_2/plog/\0",
        "rank_2/plog/\ud800",
        "rank_2/plog/" + "a/" * 40 + "x",
        "scheduler/log.txt",
        "scripts/msrun.log",
        "scripts/setup.log",
        "msrun/worker_0.log",
        "",
    ],
)
def test_a_host_writes_into_the_folders_of_its_own_ranks_only(replay: Replay, path: str, tmp_path: Path) -> None:
    """Any other name is refused, and nothing is written."""
    send(replay, {"host": "n2", "time": 1.0, **piece(path)})
    assert_cut_off(replay, "not its own")
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize(
    "path", ["rank_2/log.txt", "rank_3/log.0.txt", "rank_2/plog/debug/plog/a.log", "rank_3/env.log"]
)
def test_what_collection_is_about_is_written(replay: Replay, path: str, tmp_path: Path) -> None:
    """Piece by piece, and each is acknowledged with its length."""
    for offset, data in ((0, "ab"), (2, "cd")):
        send(replay, {"host": "n2", "time": 1.0, **piece(path, offset, data)})
    assert replay.state.ending.failures == []
    assert (tmp_path / path).read_text() == "abcd"
    assert replay.channels["n2"].orders("written") == [{"to": "n2", "do": "written", "bytes": 2}] * 2


def test_the_first_host_writes_the_log_of_its_scheduler(replay: Replay, tmp_path: Path) -> None:
    replay.channels["n1"].incoming.append([{"host": "n1", "time": 1.0, **piece("scheduler/log.txt")}])
    replay.turns(1)
    assert replay.state.ending.failures == []
    assert (tmp_path / "scheduler/log.txt").read_text() == "x"


@pytest.mark.parametrize("offset", [1, 1 << 62, 2**63 - 1])
def test_a_piece_comes_after_the_one_before(replay: Replay, offset: int, tmp_path: Path) -> None:
    """An offset far behind the end would make a file of exabytes."""
    send(replay, {"host": "n2", "time": 1.0, **piece("rank_2/log.txt", offset)})
    assert_cut_off(replay, "where none was to come")
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize(("data", "is_text"), [("a", False), ("\ud800", True)])
def test_a_piece_that_cannot_be_decoded_is_refused(replay: Replay, data: str, is_text: bool) -> None:
    send(replay, {"host": "n2", "time": 1.0, **piece("rank_2/log.txt", data=data, is_text=is_text)})
    assert_cut_off(replay, "cannot be decoded")


@pytest.mark.parametrize("link", ["rank_2", "rank_2/plog", "rank_2/plog/x.log"])
def test_no_link_is_followed_when_a_file_is_written(replay: Replay, link: str, tmp_path: Path) -> None:
    """A rank on this machine may have put one there; the log then stays on its host, and that is said."""
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "plog").mkdir(parents=True)
    for path in (elsewhere / "x.log", elsewhere / "plog/x.log"):
        path.write_text("untouched")
    (tmp_path / link).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / link).symlink_to(elsewhere / "x.log" if link.endswith(".log") else elsewhere)
    send(replay, {"host": "n2", "time": 1.0, **piece("rank_2/plog/x.log")})
    assert replay.state.ending.failures == []
    assert {path.read_text() for path in elsewhere.rglob("*.log")} == {"untouched"}
    replay.attempt.transfer.request({"n1", "n2"}, tidy=True)
    assert [channel.orders("collect")[-1]["tidy"] for channel in replay.channels.values()] == [True, False]
    assert "n2 keeps its logs: rank_2/plog/x.log cannot be written here" in replay.attempt.transfer.notes()[0]


def test_a_pipe_in_the_place_of_a_log_is_not_written_to(replay: Replay, tmp_path: Path) -> None:
    """Opening it would wait for a reader."""
    (tmp_path / "rank_2").mkdir()
    os.mkfifo(tmp_path / "rank_2/log.txt")
    send(replay, {"host": "n2", "time": 1.0, **piece("rank_2/log.txt")})
    assert replay.state.ending.failures == []


def test_a_host_that_shares_the_folder_sends_no_files(replay: Replay) -> None:
    cluster = Cluster(ScriptedTransport(), list(replay.channels.values()), frozenset({"n1"}))
    replay.attempt.connections.cluster = replay.attempt.transfer.cluster = cluster
    send(replay, {"host": "n2", "time": 1.0, **piece("rank_2/log.txt")})
    assert_cut_off(replay, "shares the run's folder")


WRONG = [
    {},
    {"ev": "exited"},
    {"ev": 7, "host": "n2"},
    {"ev": ["exited"], "host": "n2"},
    {"ev": "x" * 1000, "host": "n2"},
    {"ev": "idle", "host": None, "time": 1.0},
    {"ev": "idle", "host": {"n2": 1}, "time": 1.0},
    {"ev": "idle", "host": "n2"},
    {"ev": "idle", "host": "n2", "time": "now"},
    {"ev": "idle", "host": "n2", "time": True},
    {"ev": "idle", "host": "n2", "time": math.nan},
    {"ev": "idle", "host": "n2", "time": math.inf},
    {"ev": "idle", "host": "n2", "time": -1e11},
    {"ev": "idle", "host": "n2", "time": 1e300},
    {"ev": "idle", "host": "n2", "time": 10**400},
    {"ev": "exited", "host": "n2", "time": 1.0, **EXITED, "rank": "2"},
    {"ev": "exited", "host": "n2", "time": 1.0, **EXITED, "rank": [2]},
    {"ev": "exited", "host": "n2", "time": 1.0, **EXITED, "code": 1 << 40},
    {"ev": "exited", "host": "n2", "time": 1.0, **EXITED, "code": -1},
    {"ev": "exited", "host": "n2", "time": 1.0, **EXITED, "signal": 1e9},
    {"ev": "exited", "host": "n2", "time": 1.0, **EXITED, "crashed": "no"},
    {"ev": "started", "host": "n2", "time": 1.0, "role": "worker", "rank": 2},
    {"ev": "pulse", "host": "n2", "time": 1.0, "quiet": None},
    {"ev": "lines", "host": "n2", "time": 1.0, "rank": 2, "lines": "text", "bytes": 1},
    {"ev": "lines", "host": "n2", "time": 1.0, "rank": 2, "lines": [1], "bytes": 1},
    {"ev": "bar", "host": "n2", "time": 1.0, "rank": 2, "text": ["x"]},
    {"ev": "lines", "host": "n2", "time": 1.0, "rank": 2, "lines": [["x"]], "bytes": -1},
    {"ev": "stacks", "host": "n2", "time": 1.0, "stacks": {"2": ["x"]}},
    {"ev": "stuck", "host": "n2", "time": 1.0, "processes": [{}]},
    {"ev": "collected", "host": "n2", "time": 1.0, "kept": [None], "count": 1, "turn": 1},
    {"ev": "facts", "host": "n2", "time": 1.0, "facts": {"python": 1}},
    UnreadableRecord("a record that is not JSON"),
]


@pytest.mark.parametrize("event", WRONG, ids=range(len(WRONG)))
def test_a_wrong_record_ends_its_host_and_not_the_launcher(replay: Replay, event: dict[str, Any]) -> None:
    """Whatever is wrong with it, the reason is one short sentence."""
    send(replay, event)
    assert_cut_off(replay, "sent ")


def test_what_a_later_version_adds_to_an_event_is_left_out(replay: Replay) -> None:
    send(replay, {"ev": "joined", "host": "n2", "time": 1.0, "rank": 2, "message": None, "colour": [math.nan]})
    assert replay.state.joining.joined == {2}
    assert "colour" not in replay.recorded[-1]


def test_a_clock_that_is_far_off_breaks_no_date(replay: Replay) -> None:
    """A host's clock is corrected by what it said itself, which may be nonsense."""
    cluster = Cluster(ScriptedTransport(), list(replay.channels.values()), frozenset(), {"n2": 9e10})
    replay.attempt.connections.cluster = cluster
    send(replay, {"ev": "exited", "host": "n2", "time": 1.0, **EXITED})
    assert replay.state.ranks.records[2].ended is not None


def test_a_host_that_lies_after_the_job_has_ended_changes_nothing_about_it(replay: Replay) -> None:
    """The run has succeeded; the host is cut off and named."""
    for worker in replay.plan.workers:
        replay.send(worker.host, "exited", role="worker", rank=worker.rank, pid=100, code=0, signal=None)
    for host in ("n1", "n2"):
        replay.send(host, "idle")
    replay.turns(1)
    assert not replay.state.hosts.busy
    replay.channels["n1"].incoming.append(
        [
            {
                "ev": "collected",
                "host": "n1",
                "time": 1.0,
                "kept": [],
                "count": 0,
                "turn": replay.attempt.transfer._turn + 1,
            }
        ]
    )
    replay.channels["n2"].incoming.append([{"host": "n2", "time": 1.0, **piece("plan.json")}])
    replay.attempt.collect_logs(tidy=True)
    assert replay.state.ending.failures == []
    told = [event["text"] for event in replay.recorded if event["ev"] == "note"] + replay.state.pop_notes()
    assert "n2 sent the file 'plan.json', which is not its own" in told[0]


LIAR = """
import sys, time
sys.stdout.buffer.write(b"mslaunch-1\\x1e" + {record!r} + b"\\x1e")
sys.stdout.buffer.flush()
time.sleep(60)
"""


@pytest.fixture
def channels() -> Iterator[list[ProcessChannel]]:
    made: list[ProcessChannel] = []
    yield made
    for channel in made:
        channel.abort()


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (b'{"ev":"facts","host":"h1","time":1,"facts":{}}', "h2: it sent an event of 'h1', for which it may not speak"),
        (b'{"ev":"facts","host":"h2","time":1,"facts":{"python":1}}', "h2: it sent a wrong event: facts of facts is"),
        (b'{"ev":"facts","host":"h2","time":1}', "h2: it sent a wrong event: facts of facts is missing"),
        (b"\xff\xfe", "h2: it sent a record that is not JSON"),
    ],
)
def test_a_host_that_lies_before_the_start_is_not_ready(
    channels: list[ProcessChannel], record: bytes, words: str
) -> None:
    """It is named with the reason, in one sentence."""
    channels.append(ProcessChannel.start("h2", [sys.executable, "-c", LIAR.format(record=record)]))
    with pytest.raises(HostsNotReady) as raised:
        converse(channels, {"h2": {"do": "probe"}}, "facts", 60.0)
    assert words in str(raised.value)


def test_an_answer_of_another_host_does_not_count(channels: list[ProcessChannel]) -> None:
    """The host that was spoken for is still waited for."""
    script = LIAR.format(record=b'{"ev":"facts","host":"h1","time":1,"facts":{}}')
    for host, program in (("h1", "import time; time.sleep(60)"), ("h2", script)):
        channels.append(ProcessChannel.start(host, [sys.executable, "-c", program]))
    hosts = [Host("h1", "127.0.0.1", ()), Host("h2", "127.0.0.1", ())]
    with pytest.raises(HostsNotReady) as raised:
        converse(channels, {host.name: {"do": "probe"} for host in hosts}, "facts", 3.0)
    assert "h1: no answer within 3 s" in str(raised.value)
    assert "h2: it sent an event of 'h1'" in str(raised.value)


def test_behind_one_srun_each_agent_speaks_for_its_own_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The label that srun puts before its lines tells them apart, whatever host they name."""
    lines = "0: mslaunch-1\\x1e", *(f'0: {{"ev":"idle","host":"{host}"}}\\x1e' for host in ("n1", "n2", "n1"))
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/bash\n" + "".join(f"printf '%b\\n' '{line}'\n" for line in lines) + "cat >/dev/null\n")
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    channel = SrunChannel(HOSTS, sys.executable)
    received: list[dict[str, Any]] = []
    while len(received) < 2:
        received += channel.receive() or []
    channel.close()
    assert received[:2] == [{"ev": "idle", "host": "n1"}, {}]
    assert isinstance(received[1], UnreadableRecord)
    assert received[1].why == "an event of 'n2' from 'n1'"


def test_a_host_does_not_choose_the_file_that_explains_a_failure(replay: Replay) -> None:
    """The log of launch.setup is where the plan has it, whatever a host says."""
    send(replay, {"ev": "setup-failed", "host": "n2", "time": 1.0, "code": 1, "log": "/etc/passwd"})
    assert [failure.log for failure in replay.state.ending.failures] == [f"{replay.plan.run_dir}/{layout.SETUP_LOG}"]
