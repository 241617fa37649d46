"""How a node finds its launcher: pods start in any order, so it tries again until the launcher is there."""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from mslaunch import __version__
from mslaunch.errors import NotReadyError
from mslaunch.signals import SignalSource
from mslaunch.text import limit_of_wait
from mslaunch.transports.join.credentials import Secret, client_context
from mslaunch.transports.join.pending_connections import why_not
from mslaunch.transports.join.role import Part
from mslaunch.transports.join.sockets import Address, resolve
from mslaunch.transports.join.tls_stream import RECORD, BrokenStream, TlsStream, keep_alive, read_record, record_frame

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 20.0
_PAUSES = (0.05, 0.25)
_PATIENT_AFTER = 60.0
"""Seconds after which a node asks less often: once a second."""
Tell = Callable[[str], None]
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

    stream: TlsStream
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
            if signals.fileno() in ready and (number := _ending_signal(signals)) is not None:
                return number
    finally:
        os.close(done_read)
    (outcome,) = outcomes
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def _ending_signal(signals: SignalSource) -> signal.Signals | None:
    """Return the signal that ends a node which waits; Ctrl-Z suspends it as it does other programs."""
    for number in signals.read():
        if number in _ENDING:
            return signal.Signals(number)
        if number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)
    return None


def connect(member: Member, tell: Tell, seconds: float | None) -> Accepted:
    """Connect to the launcher, again and again for so many seconds, or for ever."""
    context = client_context(member.secret.value)
    began = time.monotonic()
    until = None if seconds is None else began + seconds
    told: set[str] = set()
    pause = _PAUSES[0]
    while True:
        try:
            return _try_once(member, context)
        except NotYet as error:
            why = str(error)
        if why not in told:
            told.add(why)
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
    for address in resolve(member.part.master, member.part.port):
        try:
            sock = _connected(address)
        except OSError as error:
            why = (error.strerror or "no answer").lower()
            continue
        try:
            return _say_hello(member, TlsStream(sock, context, server_side=False))
        except BaseException:
            sock.close()
            raise
    raise NotYet(why)


def _connected(address: Address) -> socket.socket:
    sock = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        sock.settimeout(CONNECT_SECONDS)
        sock.connect(address.name)
        sock.settimeout(ANSWER_SECONDS)
    except BaseException:
        sock.close()
        raise
    if sock.getsockname() == sock.getpeername():  # TCP connects a free port of this machine to itself now and then
        sock.close()
        raise ConnectionRefusedError(0, "Connection refused")
    return sock


def _say_hello(member: Member, stream: TlsStream) -> Accepted:
    part = member.part
    hello = {"is": "hello", "rank": part.rank, "host": member.host, "slots": part.slots}
    hello |= {"version": __version__, "python": sys.executable}
    try:
        done = stream.shake_hands(b"")
        while not done:
            done = stream.shake_hands(_some(stream.sock))
        stream.send(record_frame(hello))
        answer, more = _answer(stream)
    except ssl.SSLError as error:
        why = why_not(error)
        if why == "it has another secret":
            raise NotReadyError(
                f"{part.place}: the launcher there has another secret than {member.secret.source}. Give both the same."
            ) from None
        raise NotYet(why) from None
    except BrokenStream as error:
        raise NotYet(f"it sent {error}") from None
    except OSError as error:
        raise NotYet((error.strerror or "no answer").lower()) from None
    return replace(_accepted(part, stream, answer), more=more)


def _some(sock: socket.socket) -> bytes:
    data = sock.recv(1 << 16)
    if not data:
        raise NotYet("it closed the connection")
    return data


def _answer(stream: TlsStream) -> tuple[dict[str, Any], tuple[tuple[bytes, bytes], ...]]:
    """The launcher's answer, and what it has sent right behind it."""
    frames = stream.decrypt(b"")
    while not frames:
        frames = stream.decrypt(_some(stream.sock))
    (kind, payload), *more = frames
    if kind != RECORD:
        raise BrokenStream("something else than an answer")
    return read_record(payload), tuple(more)


def _accepted(part: Part, stream: TlsStream, answer: dict[str, Any]) -> Accepted:
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
    keep_alive(stream.sock, seconds)
    stream.sock.settimeout(None)
    return Accepted(stream, str(name), int(rank), str(run), python if python is None else str(python), seconds)
