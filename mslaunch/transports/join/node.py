"""A node that has joined: runs the agent, passes its stream on, and learns how the run ended."""

from __future__ import annotations

import json
import os
import select
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

from mslaunch.errors import ExitCode, signal_code
from mslaunch.plan.variables import inherited_launch_variables
from mslaunch.shared import wire
from mslaunch.signals import SignalSource
from mslaunch.text import first_line, named_ranks
from mslaunch.transports import prestart
from mslaunch.transports.join.find_launcher import Accepted
from mslaunch.transports.join.tls_stream import AGENT, END, PIECE, RECORD, BrokenStream, frame, is_cut_off, read_record

_SHOWN = tuple(
    f'{{"ev":"{name}",'.encode()
    for name in ("hello", "started", "error", "exited", "start-failed", "setup-failed", "sync-failed", "agent-note")
)
_LONGEST = 1 << 16


class RankNotes:
    """Reads an agent's stream as it passes; whatever is long, such as pieces of files, is not looked at."""

    def __init__(self) -> None:
        self.agent_pid: int | None = None
        self._left = b""

    def feed(self, data: bytes) -> list[str]:
        """Return the notes in what has passed."""
        *records, self._left = (self._left + data).split(wire.END)
        self._left = self._left[:_LONGEST]
        notes: list[str] = []
        started: list[int] = []
        for record in records:
            if len(record) < _LONGEST and record.lstrip().startswith(_SHOWN):
                event = json.loads(record)
                if event["ev"] == "started" and event["role"] == "worker":
                    started.append(event["rank"])
                elif event["ev"] == "hello":
                    self.agent_pid = event["pid"]
                elif note := _words(event):
                    notes.append(note)
        return [*([f"{named_ranks(started)} started here"] if started else []), *notes]


def _words(event: dict[str, Any]) -> str:
    kind, rank = event["ev"], event.get("rank")
    if kind == "error":
        return f"rank {rank}: {first_line(event['message'])}"
    if kind == "exited" and event["role"] == "worker" and not event.get("asked") and event["code"] != 0:
        how = f"was killed by signal {event['signal']}" if event["signal"] else f"exited with code {event['code']}"
        return f"rank {rank} {how}"
    if kind == "start-failed":
        return f"{event['role']} could not be started: {event['why']}"
    if kind == "setup-failed":
        return "launch.setup failed"
    if kind == "sync-failed":
        return f"launch.sync failed: {first_line(event['why'])}"
    return str(event["text"]) if kind == "agent-note" else ""


ROOM = 1 << 20
"""Bytes that may wait for the agent or for the network before no more is read."""
_TURN_MS = 1000


@dataclass(frozen=True, slots=True)
class RunEnding:
    """How the run ended, as far as this node knows."""

    exit_code: int
    record: Mapping[str, Any] | None = None
    """The run's record, without most of its ranks."""
    text: str = ""
    """What the launcher, or this node, has to say instead."""


class EarlyAgent:
    """This node's agent, started while the launcher is waited for; an unused one exits by itself."""

    def __init__(self) -> None:
        self._others = inherited_launch_variables(os.environ)  # what the system has set for another launcher
        self._agent = prestart.start_nameless(self._others)

    def take(self, accepted: Accepted) -> subprocess.Popen[bytes]:
        """Return the agent, with the name that the launcher gave this node; another where it is to have its Python."""
        if accepted.python in (None, sys.executable) and self._agent.poll() is None:
            prestart.name(self._agent, accepted.name)
            return self._agent
        self.close()
        return prestart.start(accepted.name, accepted.python, reads_stdin=False, without=self._others)

    def close(self) -> None:
        for end in (self._agent.stdin, self._agent.stdout):
            if end is not None:
                end.close()
        self._agent.wait()


def take_part(accepted: Accepted, early: EarlyAgent, signals: SignalSource, tell: Callable[[str], None]) -> RunEnding:
    """Lend this node to the launcher until the run has ended."""
    try:
        agent = early.take(accepted)
    except OSError as error:  # no such Python, or a limit of this machine
        accepted.stream.close()
        return RunEnding(ExitCode.LOST, text=f"the agent could not be started: {error}")
    relay = _Relay(accepted, agent, signals, tell)
    try:
        return relay.run()
    finally:
        relay.close()


class _Relay:
    """One loop over the network, the agent and the signals; nothing in it waits for one of them alone."""

    def __init__(
        self,
        accepted: Accepted,
        agent: subprocess.Popen[bytes],
        signals: SignalSource,
        tell: Callable[[str], None],
    ) -> None:
        assert agent.stdin is not None
        assert agent.stdout is not None
        self._stream = accepted.stream
        self._stream.sock.setblocking(False)
        self._agent = agent
        self._orders: IO[bytes] | None = agent.stdin
        self._events: IO[bytes] | None = agent.stdout
        for end in (agent.stdin, agent.stdout):
            os.set_blocking(end.fileno(), False)
        self._signals = signals
        self._tell = tell
        self._notes = RankNotes()
        self._to_agent, self._to_network = bytearray(), bytearray()
        self._is_connected, self._agent_may_end = True, False
        self._ending: RunEnding | None = None
        self._signal: int | None = None
        self._lost_after = accepted.lost_after
        self._handle(accepted.more)

    def run(self) -> RunEnding:
        while not self._is_over():
            self._turn()
        if self._signal is not None:
            return RunEnding(signal_code(self._signal), text="this node was told to end")
        return self._ending or RunEnding(ExitCode.LOST, text="the launcher is gone, and so are the ranks of this node")

    def _is_over(self) -> bool:
        if self._events is not None or self._agent.poll() is None:
            return False
        if self._signal is not None:
            return not self._to_network or not self._is_connected
        return self._ending is not None or not self._is_connected

    def _turn(self) -> None:
        poll = select.poll()
        poll.register(self._signals.fileno(), select.POLLIN)
        if self._is_connected:
            wanted = select.POLLIN if len(self._to_agent) < ROOM else 0
            poll.register(self._stream.fileno(), wanted | (select.POLLOUT if self._to_network else 0))
        if self._events is not None and len(self._to_network) < ROOM:
            poll.register(self._events.fileno(), select.POLLIN)
        if self._orders is not None and self._to_agent:
            poll.register(self._orders.fileno(), select.POLLOUT)
        ending = self._events is None and self._agent.poll() is None
        ready = {end for end, _ in poll.poll(20 if ending else _TURN_MS)}
        if self._signals.fileno() in ready:
            self._handle_signals()
        if self._is_connected and self._stream.fileno() in ready:
            self._receive()
        if self._is_connected and is_cut_off(self._stream.sock, self._lost_after):
            self._lose_launcher()
        if self._events is not None and self._events.fileno() in ready:
            self._read_events()
        self._write()

    def _handle_signals(self) -> None:
        for number in self._signals.read():
            if number not in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                continue
            if self._signal is not None or self._notes.agent_pid is None:
                self._end_agent()
            elif self._notes.agent_pid is not None:
                self._tell("told to end: stopping the ranks of this node")
                with suppress(ProcessLookupError):
                    os.kill(self._notes.agent_pid, signal.SIGTERM)  # it tells the launcher, and gives the ranks time
            self._signal = number

    def _receive(self) -> None:
        try:
            frames = self._stream.receive()
        except (BrokenStream, ssl.SSLError):
            frames = None
        if frames is None:
            self._lose_launcher()
            return
        self._handle(frames)

    def _handle(self, frames: Sequence[tuple[bytes, bytes]]) -> None:
        for kind, payload in frames:
            if kind == AGENT:
                self._to_agent += payload
            elif kind == END:
                self._agent_may_end = True
            elif kind == RECORD:
                self._read_record(payload)

    def _read_record(self, payload: bytes) -> None:
        try:
            record = read_record(payload)
        except BrokenStream:
            self._lose_launcher()
            return
        if record.get("is") == "end":
            code, text = record.get("exit_code"), record.get("text")
            whole = record.get("record")
            self._ending = RunEnding(
                code if isinstance(code, int) and 0 <= code <= 255 else ExitCode.LOST,
                whole if isinstance(whole, dict) else None,
                text if isinstance(text, str) else "",
            )
            self._agent_may_end = True

    def _lose_launcher(self) -> None:
        self._is_connected = False
        self._to_network.clear()
        self._end_agent()

    def _end_agent(self) -> None:
        """Close the agent's stream, by which it ends everything that it runs."""
        self._to_agent.clear()
        self._agent_may_end = True

    def _read_events(self) -> None:
        assert self._events is not None
        try:
            data = os.read(self._events.fileno(), PIECE)
        except BlockingIOError:
            return
        if self._is_connected:
            self._to_network += self._stream.encrypt(frame(AGENT, data) if data else frame(END))
        for note in self._notes.feed(data):
            self._tell(note)
        if not data:
            self._events.close()
            self._events = None

    def _write(self) -> None:
        if self._to_network and self._is_connected:
            try:
                del self._to_network[: self._stream.sock.send(self._to_network)]
            except BlockingIOError:
                pass
            except OSError:
                self._lose_launcher()
        if self._orders is not None and self._to_agent:
            try:
                del self._to_agent[: os.write(self._orders.fileno(), self._to_agent)]
            except BlockingIOError:
                pass
            except OSError:  # the agent is gone: the end of its output tells
                self._end_agent()
        if self._orders is not None and self._agent_may_end and not self._to_agent:
            self._orders.close()
            self._orders = None

    def close(self) -> None:
        for end in (self._orders, self._events):
            if end is not None:
                end.close()
        self._stream.close()
