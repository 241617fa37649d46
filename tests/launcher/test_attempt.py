"""The attempt loop, replayed: scripted channels in place of agents, clocks that the test sets, no processes."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mslaunch.errors import ExitCode
from mslaunch.hosts import Host
from mslaunch.launcher.attempt.attempt import Attempt
from mslaunch.launcher.attempt.connections import TICK, Connections
from mslaunch.launcher.attempt.file_transfer import FileTransfer
from mslaunch.launcher.attempt.journal import SAVE_SHARE, Clock, Journal, nothing
from mslaunch.launcher.attempt.notices import Closed, LauncherNotice, Notice, RestartPause, SignalNotice, Tick
from mslaunch.launcher.attempt.run_state import RunState
from mslaunch.launcher.connect import Cluster
from mslaunch.launcher.execute import announce_restart, wait_before_restart
from mslaunch.launcher.restarts import NextAttempt
from mslaunch.plan.make import make_plan
from mslaunch.plan.model import Plan
from mslaunch.plan.next_attempt import next_attempt
from mslaunch.run.paths import RunFolder
from mslaunch.run.record import AttemptSummary, iso
from mslaunch.shared.running_clock import LONGEST_TURN
from mslaunch.signals import SignalSource
from mslaunch.transports.base import Transport
from tests.plan.test_make import facts_of, spec_of

HOUR = 3600.0
NEVER_STOPS = {"timeout": None, "exit_skew": 1e9}


class ScriptedTransport(Transport):
    """Hosts that can be cut off; a test says which of their agents are stopped, and why they are silent."""

    name = "scripted"
    label = "a script"

    def __init__(self) -> None:
        self.stopped: dict[str, int] = {}
        self.reason = ""

    def stopped_agents(self) -> Mapping[str, int]:
        return self.stopped

    def why_silent(self, hosts: Collection[str]) -> str:
        del hosts
        return self.reason


class ScriptedChannel:
    """A channel whose messages a test writes. It is always ready, so that no turn of the loop waits."""

    hint = ""

    def __init__(self, *hosts: str) -> None:
        self.hosts = hosts
        self.is_open = True
        self.is_closed = False
        self.sent: list[Mapping[str, Any]] = []
        self.flushed_after = 0
        self.incoming: deque[list[dict[str, Any]] | None] = deque()
        self._end = os.eventfd(1)

    def fileno(self) -> int:
        return self._end

    def receive(self) -> list[dict[str, Any]] | None:
        return self.incoming.popleft() if self.incoming else []

    def send(self, message: Mapping[str, object]) -> None:
        self.sent.append(message)

    def flush(self) -> None:
        self.flushed_after = len(self.sent)

    def why_it_ended(self) -> str:
        return ""

    def close(self) -> None:
        self.is_closed = True

    def release(self) -> None:
        os.close(self._end)

    def orders(self, do: str) -> list[Mapping[str, Any]]:
        return [message for message in self.sent if message["do"] == do]


@dataclass
class Time:
    """Both clocks, as the test sets them."""

    monotonic: float = 5000.0
    wall: float = 1e9

    def clock(self) -> Clock:
        return Clock(lambda: self.monotonic, lambda: self.wall)

    def pass_by(self, seconds: float) -> None:
        self.monotonic += seconds
        self.wall += seconds


@dataclass
class Replay:
    """One attempt with everything that it sends, records and shows."""

    plan: Plan
    channels: dict[str, ScriptedChannel]
    signals: SignalSource
    folder: Path
    time: Time = field(default_factory=Time)
    recorded: list[Mapping[str, Any]] = field(default_factory=list)
    shown: list[Notice] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.transport = ScriptedTransport()
        cluster = Cluster(self.transport, list(self.channels.values()))
        transfer = FileTransfer(cluster, RunFolder(self.folder), self.plan.run_dir)
        clock = self.time.clock()
        journal = Journal(self.observe, self.recorded.append, ignore_rows, nothing, clock)
        connections = Connections(cluster, self.signals, self.plan.limits.host_lost_after, clock)
        self.attempt = Attempt(self.plan, connections, transfer, journal, self.time.monotonic)

    @property
    def state(self) -> RunState:
        return self.attempt.run_state

    def observe(self, notice: Notice, _: RunState, shown: Callable[[], None]) -> None:
        self.shown.append(notice)
        shown()

    def shown_events(self, name: str) -> list[dict[str, Any]]:
        return [notice for notice in self.shown if isinstance(notice, dict) and notice["ev"] == name]

    def start(self) -> Replay:
        """Start the attempt, and have every rank run."""
        self.attempt.start({})
        for worker in self.plan.workers:
            self.send(worker.host, "started", role="worker", rank=worker.rank, pid=100)
        return self.turns(1)

    def send(self, host: str, name: str, **data: Any) -> None:
        """Have a host's agent send an event, for the next turn."""
        channel = next(channel for channel in self.channels.values() if host in channel.hosts)
        channel.incoming.append([{"ev": name, "host": host, "time": self.time.wall, **data}])

    def turns(self, count: int, seconds: float = 0.0, *, alive: tuple[str, ...] = ()) -> Replay:
        """Turn the loop, each turn taking so many seconds; hosts that are alive answer in each."""
        for _ in range(count):
            self.time.pass_by(seconds)
            for host in alive:
                self.send(host, "pulse", quiet=0.0)
            while any(channel.incoming for channel in self.channels.values() if channel.is_open):
                self.attempt.receive()
            self.attempt.turn()
        return self


def ignore_rows(_rows: object) -> None:
    """Keep no metrics."""


MakeReplay = Callable[..., Replay]


@pytest.fixture
def replay(tmp_path: Path) -> Iterator[MakeReplay]:
    """Make attempts: two hosts with two ranks each, and a channel for each group of hosts."""
    made: list[Replay] = []

    def make(groups: tuple[tuple[str, ...], ...] = (("n1",), ("n2",)), **flags: Any) -> Replay:
        hosts = (Host("n1", "10.0.0.1", (0, 1)), Host("n2", "10.0.0.2", (0, 1)))
        plan = make_plan(spec_of(workers=4, **{**NEVER_STOPS, **flags}), hosts, facts_of(hosts))
        channels = {group[0]: ScriptedChannel(*group) for group in groups}
        made.append(Replay(plan, channels, SignalSource(), tmp_path))
        return made[-1]

    yield make
    for one in made:
        one.attempt.connections.close()
        one.signals.close()
        for channel in one.channels.values():
            channel.release()


def causes(found: Replay) -> list[tuple[str, int]]:
    return [(failure.cause, failure.exit_code) for failure in found.state.ending.failures]


def test_a_host_is_sent_its_own_processes_and_no_others(replay: MakeReplay) -> None:
    """Hosts that are connected, but not in the plan, are sent nothing."""
    found = replay((("n1",), ("n2",), ("spare",)))
    found.attempt.start({})
    for name, expected in (("n1", [None, 0, 1]), ("n2", [2, 3])):
        (order,) = found.channels[name].orders("run")
        assert order["to"] == name
        assert [process["rank"] for process in order["processes"]] == expected
        assert {process["host"] for process in order["processes"]} == {name}
    found.signals.send(signal.SIGINT)
    found.turns(1)
    assert found.channels["n2"].orders("stop")
    assert found.channels["spare"].sent == []


def test_hosts_behind_one_channel_get_an_order_each(replay: MakeReplay) -> None:
    """As under Slurm, where one step reaches all nodes."""
    found = replay((("n1", "n2"),))
    found.attempt.start({})
    assert [order["to"] for order in found.channels["n1"].orders("run")] == ["n1", "n2"]


def test_a_silent_host_is_lost_and_its_channel_closed(replay: MakeReplay) -> None:
    """After launch.host_lost_after, and not before; the others are stopped."""
    found = replay(host_lost_after=10).start()
    found.turns(10, 1.0, alive=("n1",))
    assert found.state.ending.failures == []
    found.turns(1, 1.0, alive=("n1",))
    assert causes(found) == [("host lost", ExitCode.LOST)]
    assert found.state.ending.failures[0].summary == "nothing heard from n2 for 10 s"
    assert (found.channels["n2"].is_open, found.channels["n2"].is_closed) == (False, True)
    assert found.channels["n1"].is_open
    assert len(found.channels["n1"].orders("stop")) == 1
    assert found.state.hosts.busy == {"n1"}


def test_a_channel_stays_open_while_one_of_its_hosts_answers(replay: MakeReplay) -> None:
    """The silent one alone is lost."""
    found = replay((("n1", "n2"),), host_lost_after=10).start()
    found.turns(12, 1.0, alive=("n1",))
    assert found.state.hosts.lost == {"n2"}
    assert found.channels["n1"].is_open


def test_time_in_which_the_loop_did_not_run_does_not_count(replay: MakeReplay) -> None:
    """A suspended launcher finds all hosts silent for an hour, and loses none of them."""
    found = replay(host_lost_after=10).start()
    found.turns(1, HOUR)
    found.turns(int((10 - LONGEST_TURN) / TICK), TICK)
    assert found.state.ending.failures == []
    found.turns(1, TICK)
    assert found.state.hosts.lost == {"n1", "n2"}


def test_hosts_that_are_silent_for_a_reason_are_not_lost(replay: MakeReplay) -> None:
    """The reason is reported once; without it the hosts are lost, after launch.host_lost_after again."""
    found = replay(host_lost_after=10).start()
    found.transport.reason = "the queue has suspended the job"
    found.turns(100, 1.0)
    assert found.state.ending.failures == []
    assert notes(found) == ["the queue has suspended the job; the job waits until it goes on"]
    found.transport.reason = ""
    found.turns(12, 1.0)
    assert found.state.hosts.lost == {"n1", "n2"}


def test_a_stopped_agent_is_reported_and_lost_after_a_while(replay: MakeReplay) -> None:
    """Within seconds, with the command that continues it; one that is continued in time is not lost."""
    found = replay(host_lost_after=10).start()
    found.transport.stopped = {"n2": 7001}
    found.turns(3, 1.0, alive=("n1", "n2"))
    (note,) = notes(found)
    assert note.startswith("the agent on n2, process 7001, was stopped by a signal: `kill -CONT 7001` continues it")
    found.transport.stopped = {}
    found.turns(20, 1.0, alive=("n1", "n2"))
    found.transport.stopped = {"n2": 7001}
    found.turns(9, 1.0, alive=("n1", "n2"))
    assert found.state.ending.failures == []
    found.turns(3, 1.0, alive=("n1", "n2"))
    assert [failure.summary for failure in found.state.ending.failures] == [
        "the agent on n2 was stopped by a signal for 10 s"
    ]
    assert found.channels["n2"].is_closed


def notes(found: Replay) -> list[str]:
    return [notice["text"] for notice in found.recorded if notice["ev"] == "note"]


def test_a_signal_stops_the_ranks_of_every_channel(replay: MakeReplay) -> None:
    """It is recorded and shown; the second one does not wait."""
    found = replay(grace=7).start()
    for _ in range(2):
        found.signals.send(signal.SIGINT)
        found.turns(1)
    for channel in found.channels.values():
        assert channel.orders("stop") == [{"to": "*", "do": "stop", "grace": grace} for grace in (7.0, 0.0)]
    noted = [notice for notice in found.recorded if notice["ev"] == "signal"]
    assert noted == [{"ev": "signal", "signal": signal.SIGINT, "time": found.time.wall}] * 2
    assert [notice.record() for notice in found.shown if isinstance(notice, SignalNotice)] == noted


def test_a_channel_that_closes_before_its_host_is_idle_is_a_lost_host(replay: MakeReplay) -> None:
    """Afterwards it is not read any more."""
    found = replay().start()
    found.channels["n2"].incoming.append(None)
    found.turns(3, alive=("n1",))
    assert causes(found) == [("host lost", ExitCode.LOST)]
    assert found.state.hosts.lost == {"n2"}
    assert [notice.host for notice in found.shown if isinstance(notice, Closed)] == ["n2"]
    assert len(found.channels["n1"].orders("stop")) == 1


def test_a_channel_that_closes_when_its_host_is_idle_is_none(replay: MakeReplay) -> None:
    """Nothing of the run was left there."""
    found = replay().start()
    found.send("n2", "idle")
    found.channels["n2"].incoming.append(None)
    found.turns(1)
    assert found.state.ending.failures == []
    assert found.state.hosts.busy == {"n1"}


def test_a_restart_is_recorded_and_shown(replay: MakeReplay) -> None:
    """With the number of the attempt to come, and with how long it will be; a signal ends the wait."""
    found = replay().start()
    summary = AttemptSummary(0, None, 1, None, None)
    again = NextAttempt(next_attempt(found.plan, 9000), 30.0, "attempt 2 of 3", summary)
    found.signals.send(signal.SIGTERM)
    announce_restart(again, found.attempt)
    assert wait_before_restart(again, found.attempt) == signal.SIGTERM
    assert found.recorded[-1] == {"ev": "restart", "attempt": 1, "time": found.time.wall}
    assert found.recorded[-2] == {"ev": "note", "text": "attempt 2 of 3", "time": found.time.wall}
    shown = [notice.record() for notice in found.shown[-2:] if isinstance(notice, LauncherNotice)]
    assert shown == found.recorded[-2:]


def test_the_wait_before_a_restart_goes_by_the_clock_that_only_runs_forward(replay: MakeReplay) -> None:
    """A wall clock that is set meanwhile neither shortens nor lengthens it."""
    found = replay().start()
    summary = AttemptSummary(0, None, 1, None, None)
    again = NextAttempt(next_attempt(found.plan, 9000), 3.0, "", summary)
    found.signals.send(signal.SIGUSR1)  # asks for nothing here, and lets the first poll return

    def observe(notice: Notice, _: RunState, shown: Callable[[], None]) -> None:
        del shown
        found.shown.append(notice)
        found.time.wall += HOUR
        found.time.monotonic += 2.0 if isinstance(notice, RestartPause) else 0.0

    found.attempt.journal.show = observe
    assert wait_before_restart(again, found.attempt) is None
    assert [notice.seconds for notice in found.shown if isinstance(notice, RestartPause)] == [3.0, 1.0]


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_the_time_limit_does_not_follow_the_wall_clock(replay: MakeReplay, jump: float) -> None:
    """Set an hour forward or back, it changes nothing; the time that has really passed does."""
    found = replay(timeout=60.0).start()
    found.time.wall += jump
    found.turns(59, 1.0, alive=("n1", "n2"))
    assert found.state.ending.failures == []
    found.time.wall -= 2 * jump
    found.turns(1, 1.0, alive=("n1", "n2"))
    assert len(found.channels["n1"].orders("stacks")) == 1
    found.turns(10, 1.0, alive=("n1", "n2"))
    assert causes(found) == [("timeout", ExitCode.TIME_IS_UP)]
    assert found.state.ending.failures[0].time == found.time.wall


def test_a_wall_clock_before_1970_ends_no_job(replay: MakeReplay) -> None:
    """Events of such a time are taken as they are."""
    found = replay()
    found.time.wall = -2e9
    found.start()
    assert found.state.ending.failures == []
    assert found.state.ranks.records[0].started == iso(-2e9)


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_exit_skew_does_not_follow_the_wall_clock(replay: MakeReplay, jump: float) -> None:
    """Ranks may be silent and idle for so many seconds after one has ended, as their agents measure it."""
    found = replay(exit_skew=30.0).start()
    found.send("n1", "exited", role="worker", rank=0, pid=100, code=0, signal=None)
    found.turns(1)
    found.time.wall += jump
    found.turns(29, 1.0, alive=("n1", "n2"))
    running = {str(rank): 29.0 for rank in found.state.ranks.running}
    found.send("n2", "activity", silent=running, idle=running)
    found.turns(1, alive=("n1", "n2"))
    assert found.state.ending.failures == []
    found.time.wall -= 2 * jump
    running = dict.fromkeys(running, 30.0)
    found.send("n2", "activity", silent=running, idle=running)
    found.turns(1, 1.0, alive=("n1", "n2"))
    assert causes(found) == [("exit skew", ExitCode.TIME_IS_UP)]


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_hang_does_not_follow_the_wall_clock(replay: MakeReplay, jump: float) -> None:
    """What counts is for how long the agents have seen no output."""
    found = replay(stall_timeout=30.0).start()
    found.time.wall += jump
    for quiet in range(1, 30):
        found.time.pass_by(1.0)
        for host in ("n1", "n2"):
            found.send(host, "pulse", quiet=float(quiet))
        found.turns(1)
    assert found.channels["n1"].orders("stacks") == []
    found.time.wall -= 2 * jump
    found.time.pass_by(1.0)
    for host in ("n1", "n2"):
        found.send(host, "pulse", quiet=30.0)
    found.turns(1)
    assert [len(channel.orders("stacks")) for channel in found.channels.values()] == [1, 1]
    for host in ("n1", "n2"):
        found.send(host, "stacks", stacks={})
    found.turns(1)
    assert causes(found) == [("stalled", ExitCode.TIME_IS_UP)]
    assert found.recorded[-1] == {"ev": "stacks-taken", "groups": []}


def test_a_console_that_fails_is_recorded_and_the_job_goes_on(replay: MakeReplay) -> None:
    """Once; the agents are still told that lines have been shown, or they would send no more."""
    found = replay().start()
    calls: list[Notice] = []

    def broken(notice: Notice, _state: RunState, _shown: Callable[[], None]) -> None:
        calls.append(notice)
        raise UnicodeEncodeError("ascii", "é", 0, 1, "no")

    found.attempt.journal.show = broken
    found.turns(1)
    found.send("n1", "lines", rank=0, lines=["a"], bytes=2)
    found.turns(2)
    assert calls == [Tick(found.time.wall)]
    lost = [notice for notice in found.recorded if notice["ev"] == "console-lost"]
    assert len(lost) == 1
    assert "UnicodeEncodeError" in lost[0]["traceback"]
    assert found.channels["n1"].orders("shown") == [{"to": "n1", "do": "shown", "bytes": 2}]
    assert found.state.ending.failures == []


def test_an_event_that_this_version_does_not_know_is_recorded_and_ignored(replay: MakeReplay) -> None:
    """As `unknown`, with its name and host; its other fields are not looked at."""
    found = replay().start()
    before = len(found.recorded)
    found.send("n2", "teleported", where=["far"])
    found.turns(1)
    assert found.recorded[before:] == [{"ev": "unknown", "host": "n2", "name": "teleported"}]
    assert found.shown_events("teleported") == []
    assert found.state.ending.failures == []


def test_pulses_and_lines_are_not_recorded(replay: MakeReplay) -> None:
    """They are too many, and the lines are in the logs."""
    found = replay().start()
    before = len(found.recorded)
    found.send("n1", "lines", rank=0, lines=["a"], bytes=2)
    found.turns(1, alive=("n1", "n2"))
    assert found.recorded[before:] == []


@pytest.mark.parametrize(("saving", "least"), [(0.0, TICK), (0.2, SAVE_SHARE * 0.2)])
def test_the_record_is_saved_at_most_every_tick(replay: MakeReplay, saving: float, least: float) -> None:
    """And less often where that takes long; what changes meanwhile is not forgotten."""
    found = replay()
    saved: list[float] = []

    def save() -> None:
        saved.append(found.time.monotonic)
        found.time.pass_by(saving)

    found.attempt.journal.save = save
    found.start()
    for _ in range(200):
        found.send("n1", "import", rank=0, message=None)
        found.turns(1, 0.05, alive=("n2",))
    gaps = [after - before for before, after in pairwise(saved)]
    assert gaps
    assert min(gaps) >= least - 1e-6
    assert max(gaps) <= least + saving + 0.06
    found.turns(int(least / 0.5) + 2, 0.5, alive=("n1", "n2"))
    count = len(saved)
    found.turns(int(least / 0.5) + 2, 0.5, alive=("n1", "n2"))
    assert len(saved) == count, "nothing has changed, so nothing is saved"


def test_ctrl_z_pauses_the_agents_patience_before_the_launcher_stops(
    replay: MakeReplay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order is on its way before the launcher stops, and is taken back when it continues."""
    found = replay().start()
    told: list[tuple[int, list[str], bool]] = []

    def stop(pid: int, number: int) -> None:
        assert pid == os.getpid()
        for channel in found.channels.values():
            told.append((number, [str(one["do"]) for one in channel.sent[1:]], channel.flushed_after == 2))

    monkeypatch.setattr("mslaunch.launcher.attempt.connections.os.kill", stop)
    found.signals.send(signal.SIGTSTP)
    found.turns(1)
    assert told == [(signal.SIGSTOP, ["pause"], True)] * 2
    for channel in found.channels.values():
        assert [one["do"] for one in channel.sent[1:]] == ["pause", "resume"]
    assert "signal" not in {notice["ev"] for notice in found.recorded}
    assert not found.state.ending.stopping


def test_an_attempt_ends_when_nothing_is_left_on_any_host(replay: MakeReplay) -> None:
    """The whole way: all ranks end, the agents are told to finish, both are idle."""
    found = replay()
    for worker in found.plan.workers:
        found.send(worker.host, "started", role="worker", rank=worker.rank, pid=100)
        found.send(worker.host, "exited", role="worker", rank=worker.rank, pid=100, code=0, signal=None)
    for host in ("n1", "n2"):
        found.send(host, "idle")
    state = found.attempt.run({})
    assert not state.hosts.busy
    assert [record.exit_code for record in state.ranks.records.values()] == [0, 0, 0, 0]
    for channel in found.channels.values():
        assert [one["do"] for one in channel.sent] == ["run", "finish"]


def test_a_host_that_speaks_for_another_is_cut_off(replay: MakeReplay) -> None:
    """Its event changes nothing; it is counted as lost, and the others are stopped."""
    found = replay().start()
    forged = {"ev": "exited", "host": "n1", "time": 1.0, "role": "worker", "rank": 0, "code": 0, "signal": None}
    found.channels["n2"].incoming.append([{**forged, "pid": 100}])
    found.turns(1)
    assert found.state.ranks.records[0].exit_code is None
    assert causes(found) == [("host lost", 125)]
    assert found.state.ending.failures[0].summary == "n2 sent an event of 'n1', for which it may not speak"
    assert not found.channels["n2"].is_open
    assert found.channels["n1"].orders("stop")
