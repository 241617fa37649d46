"""A node that joins: finds its launcher, runs the agent, passes its stream on, and learns how the run ended.

Pods start in any order, so it tries again until the launcher is there.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import IO, Any

from mslaunch import __version__
from mslaunch.errors import ExitCode, NotReadyError, signal_code
from mslaunch.plan.variables import inherited_launch_variables
from mslaunch.shared import wire
from mslaunch.signals import SignalSource
from mslaunch.text import first_line, limit_of_wait, named_ranks
from mslaunch.transports import prestart
from mslaunch.transports.base import Tell
from mslaunch.transports.join import tls_stream
from mslaunch.transports.join.credentials import Secret, client_context
from mslaunch.transports.join.role import Part

_SHOWN = tuple(
    f'{{"ev":"{name}",'.encode()
    for name in ("hello", "started", "error", "exited", "start-failed", "setup-failed", "sync-failed", "agent-note")
)
_LONGEST = 1 << 16
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 20.0
_PAUSES = (0.05, 0.25)
_PATIENT_AFTER = 60.0
"""Seconds after which a node asks less often: once a second."""
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class NotYet(Exception):
    """The launcher could not be reached now; why."""


@dataclass(frozen=True, slots=True)
class Member:
    """A node that joins: its part, and the secret that it shows."""

    part: Part
    secret: Secret
    host: str = field(default_factory=socket.gethostname)


@dataclass(frozen=True, slots=True)
class Accepted:
    """A node that has been let in, and as what."""

    stream: tls_stream.TlsStream
    name: str
    rank: int
    run: str
    python: str | None
    lost_after: float
    """Seconds without an answer of the launcher's machine after which it is gone."""
    more: tuple[tuple[bytes, bytes], ...] = ()
    """Frames that have come right behind the answer."""


def connect_unless_ended(
    member: Member, tell: Tell, seconds: float | None, signals: SignalSource
) -> Accepted | signal.Signals:
    """Connect to the launcher; return the signal instead that ends this node before.

    A thread connects: a name server that does not answer blocks it, and a node that is PID 1 of a container would
    lose the signal otherwise.
    """
    outcomes: list[Accepted | BaseException] = []
    done_read, done_write = os.pipe()

    def work() -> None:
        try:
            outcomes.append(connect(member, tell, seconds))
        except BaseException as error:
            outcomes.append(error)
        finally:
            os.close(done_write)

    threading.Thread(target=work, name="mslaunch connect", daemon=True).start()
    try:
        while not outcomes:
            ready, _, _ = select.select([done_read, signals.fileno()], [], [])
            for number in signals.read() if signals.fileno() in ready else ():
                if number in _ENDING:
                    return signal.Signals(number)
                if number == signal.SIGTSTP:  # Ctrl-Z suspends a node that waits as it does other programs
                    os.kill(os.getpid(), signal.SIGSTOP)
    finally:
        os.close(done_read)
    (outcome,) = outcomes
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def connect(member: Member, tell: Tell, seconds: float | None) -> Accepted:
    """Connect to the launcher, again and again for so many seconds, or for ever."""
    context = client_context(member.secret.value)
    began = time.monotonic()
    until = None if seconds is None else began + seconds
    reasons: set[str] = set()
    pause = _PAUSES[0]
    while True:
        try:
            return _try_once(member, context)
        except NotYet as error:
            why = str(error)
        if why not in reasons:
            reasons.add(why)
            limit = "" if seconds is None else f", up to {limit_of_wait(seconds)}"
            tell(f"waiting for the launcher at {member.part.place}{limit}: {why}")
        if until is not None and time.monotonic() > until:
            raise NotReadyError(
                f"{member.part.place}: no launcher within {seconds:g} s: {why}. Start it, check its address, or "
                f"wait longer with --join-timeout."
            )
        time.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(_PAUSES[1], pause * 1.5) if time.monotonic() - began < _PATIENT_AFTER else 1.0


def _try_once(member: Member, context: ssl.SSLContext) -> Accepted:
    why = "its name does not resolve"
    for address in tls_stream.resolve(member.part.master, member.part.port):
        try:
            with ExitStack() as on_failure:
                sock = on_failure.enter_context(socket.socket(address.family, socket.SOCK_STREAM))
                sock.settimeout(CONNECT_SECONDS)
                sock.connect(address.name)
                sock.settimeout(ANSWER_SECONDS)
                if sock.getsockname() == sock.getpeername():
                    # TCP connects a free port of this machine to itself now and then.
                    raise ConnectionRefusedError(0, "Connection refused")
                accepted = _say_hello(member, tls_stream.TlsStream(sock, context, server_side=False))
                on_failure.pop_all()
                return accepted
        except OSError as error:
            why = (error.strerror or "no answer").lower()
    raise NotYet(why)


def _say_hello(member: Member, stream: tls_stream.TlsStream) -> Accepted:
    part = member.part
    hello = {"is": "hello", "rank": part.rank, "host": member.host, "slots": part.slots}
    hello |= {"version": __version__, "python": sys.executable}
    try:
        done = stream.shake_hands(b"")
        while not done:
            done = stream.shake_hands(_some(stream.sock))
        stream.send(tls_stream.record_frame(hello))
        frames = stream.decrypt(b"")
        while not frames:
            frames = stream.decrypt(_some(stream.sock))
        (kind, payload), *more = frames
        if kind != tls_stream.RECORD:
            raise tls_stream.BrokenStream("something else than an answer")
        answer = tls_stream.read_record(payload)
    except ssl.SSLError as error:
        why = tls_stream.why_not(error)
        if why == "it has another secret":
            raise NotReadyError(
                f"{part.place}: the launcher there has another secret than {member.secret.source}. Give both the same."
            ) from None
        raise NotYet(why) from None
    except tls_stream.BrokenStream as error:
        raise NotYet(f"it sent {error}") from None
    return _accepted(part, stream, answer, tuple(more))


def _some(sock: socket.socket) -> bytes:
    data = sock.recv(1 << 16)
    if not data:
        raise NotYet("it closed the connection")
    return data


def _accepted(
    part: Part, stream: tls_stream.TlsStream, answer: dict[str, Any], more: tuple[tuple[bytes, bytes], ...]
) -> Accepted:
    if answer.get("is") == "refused":
        why = f"refused: {answer.get('why')}"
        if answer.get("again") is True:
            raise NotYet(why)
        raise NotReadyError(f"{part.place}: {why}")
    try:
        name, rank, run, python = (answer[key] for key in ("name", "rank", "run", "python"))
        seconds = float(answer["lost_after"])
    except (KeyError, TypeError, ValueError):
        raise NotYet("its answer cannot be read") from None
    tls_stream.keep_alive(stream.sock, seconds)
    stream.sock.settimeout(None)
    return Accepted(stream, str(name), int(rank), str(run), python if python is None else str(python), seconds, more)


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
            assert self._agent.stdin is not None
            os.write(self._agent.stdin.fileno(), f"{accepted.name}\n".encode())
            return self._agent
        self.close()
        return prestart.start(accepted.name, accepted.python, reads_stdin=False, without=self._others)

    def close(self) -> None:
        for end in (self._agent.stdin, self._agent.stdout):
            if end is not None:
                end.close()
        self._agent.wait()


def take_part(accepted: Accepted, early: EarlyAgent, signals: SignalSource, tell: Tell) -> RunEnding:
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
        tell: Tell,
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
        self._agent_pid: int | None = None
        self._rest = b""
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
            events = select.POLLIN if len(self._to_agent) < ROOM else 0
            if self._to_network:
                events |= select.POLLOUT
            poll.register(self._stream.sock.fileno(), events)
        if self._events is not None and len(self._to_network) < ROOM:
            poll.register(self._events.fileno(), select.POLLIN)
        if self._orders is not None and self._to_agent:
            poll.register(self._orders.fileno(), select.POLLOUT)
        ending = self._events is None and self._agent.poll() is None
        ready = {end for end, _ in poll.poll(20 if ending else _TURN_MS)}
        if self._signals.fileno() in ready:
            self._handle_signals()
        if self._is_connected and self._stream.sock.fileno() in ready:
            self._receive()
        if self._is_connected and tls_stream.is_cut_off(self._stream.sock, self._lost_after):
            self._lose_launcher()
        if self._events is not None and self._events.fileno() in ready:
            self._read_events()
        self._write()

    def _handle_signals(self) -> None:
        for number in self._signals.read():
            if number not in _ENDING:
                continue
            if self._signal is not None or self._agent_pid is None:
                self._end_agent()
            else:
                self._tell("told to end: stopping the ranks of this node")
                with suppress(ProcessLookupError):
                    os.kill(self._agent_pid, signal.SIGTERM)  # it tells the launcher, and gives the ranks time
            self._signal = number

    def _receive(self) -> None:
        try:
            frames = self._stream.receive()
        except (tls_stream.BrokenStream, ssl.SSLError):
            frames = None
        if frames is None:
            self._lose_launcher()
            return
        self._handle(frames)

    def _handle(self, frames: Sequence[tuple[bytes, bytes]]) -> None:
        for kind, payload in frames:
            if kind == tls_stream.AGENT:
                self._to_agent += payload
            elif kind == tls_stream.END:
                self._agent_may_end = True
            elif kind == tls_stream.RECORD:
                self._read_record(payload)

    def _read_record(self, payload: bytes) -> None:
        try:
            record = tls_stream.read_record(payload)
        except tls_stream.BrokenStream:
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
            data = os.read(self._events.fileno(), tls_stream.PIECE)
        except BlockingIOError:
            return
        if self._is_connected:
            self._to_network += self._stream.encrypt(
                tls_stream.frame(tls_stream.AGENT, data) if data else tls_stream.frame(tls_stream.END)
            )
        self._report(data)
        if not data:
            self._events.close()
            self._events = None

    def _report(self, data: bytes) -> None:
        """Read the agent's stream as it passes; whatever is long, such as pieces of files, is not looked at."""
        *records, rest = (self._rest + data).split(wire.END)
        self._rest = rest[:_LONGEST]
        notes: list[str] = []
        started: list[int] = []
        for record in records:
            if len(record) < _LONGEST and record.lstrip().startswith(_SHOWN):
                event = json.loads(record)
                if event["ev"] == "started" and event["role"] == "worker":
                    started.append(event["rank"])
                elif event["ev"] == "hello":
                    self._agent_pid = event["pid"]
                elif note := _words(event):
                    notes.append(note)
        if started:
            self._tell(f"{named_ranks(started)} started here")
        for note in notes:
            self._tell(note)

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
