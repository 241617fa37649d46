"""Where nodes come to: accepts connections, lets those in that know the secret, and gives each its place."""

from __future__ import annotations

import errno
import os
import select
import socket
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mslaunch.errors import NotReadyError
from mslaunch.settings.launch import LaunchSettings
from mslaunch.transports.join import tls_stream
from mslaunch.transports.join.role import Part

MOST_GUESTS = 256
"""Connections that have not yet proved anything, at once; one more ends the oldest."""
MOST_TOLD = 20
"""Refusals that are told; an attacker must not fill the log."""
_TURN_SECONDS = 0.5
_ACCEPTED_AT_ONCE = 64
_GONE = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
SECONDS = 10.0
"""What a connection gets to prove that it knows the secret, and to say who it is."""
LONGEST_HELLO = 1 << 16
_LONGEST_TEXT = 256
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class Refused(Exception):
    """A connection that is not let in, and why."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What a node says about itself."""

    rank: int | None
    host: str
    slots: int | None
    version: str
    python: str


class Guest:
    """One connection, from its first byte to its hello."""

    def __init__(self, sock: socket.socket, address: str, context: ssl.SSLContext) -> None:
        self.address = address
        self.until = time.monotonic() + SECONDS
        self.stream = tls_stream.TlsStream(sock, context, server_side=True)
        self.stream.reader.longest = LONGEST_HELLO
        self._knows_secret = False

    def receive(self) -> Hello | None:
        """Go on with what has come; return the hello once it is there, and raise Refused for what is none."""
        try:
            data = self.stream.sock.recv(LONGEST_HELLO, socket.MSG_DONTWAIT)
            if not data:
                raise Refused("it ended without a word")
            if not self._knows_secret:
                self._knows_secret, data = self.stream.shake_hands(data), b""
            frames = self.stream.decrypt(data) if self._knows_secret else None
            if not frames:
                return None
            (kind, payload), *more = frames
            if kind != tls_stream.RECORD or more:
                raise Refused("it does not begin with who it is")
            return read_hello(tls_stream.read_record(payload))
        except BlockingIOError:
            return None
        except ssl.SSLError as error:
            raise Refused(tls_stream.why_not(error)) from None
        except tls_stream.BrokenStream as error:
            raise Refused(f"it sent {error}") from None
        except OSError as error:
            raise Refused(f"its connection broke ({error.strerror})") from None


def read_hello(record: Mapping[str, Any]) -> Hello:
    """Check every field of what a node says."""
    if record.get("is") != "hello":
        raise Refused("it does not begin with who it is")
    for name, is_right in _FIELDS.items():
        if name not in record or not is_right(record[name]):
            raise Refused(f"its hello has a wrong {name}")
    return Hello(record["rank"], record["host"], record["slots"], record["version"], record["python"])


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _LONGEST_TEXT and value.isprintable()


def _is_count(value: object) -> bool:
    return value is None or (type(value) is int and 0 <= value <= 65536)


def _is_host(value: object) -> bool:
    return _is_text(value) and not any(letter in str(value) for letter in "/ ,:[]*")


_FIELDS: Mapping[str, Callable[[object], bool]] = {
    "rank": _is_count,
    "host": _is_host,
    "slots": lambda value: _is_count(value) and value != 0,
    "version": _is_text,
    "python": _is_text,
}


@dataclass(frozen=True, slots=True)
class Place:
    """What a node is given, or why it is given nothing."""

    rank: int = -1
    name: str = ""
    refusal: str | None = None
    may_come_again: bool = False
    """A place may become free."""


class Places:
    """Who has which place. A node that comes back gets the rank and the name that it had."""

    def __init__(self, most: int, version: str, may_come_back: bool) -> None:
        self._most = most
        self._version = version
        self._may_come_back = may_come_back
        self._held: dict[int, str] = {}
        self._before: dict[tuple[str, int], str] = {}
        """The name of every host and rank so far."""
        self._lock = threading.RLock()

    def ranks(self) -> dict[str, int]:
        """The rank of every node that has a place, by its name."""
        with self._lock:
            return {name: rank for rank, name in self._held.items()}

    def remember(self, hosts: Sequence[str]) -> None:
        """Give the hosts of an earlier launcher's run the same ranks again."""
        with self._lock:
            self._before |= {(host, rank): host for rank, host in enumerate(hosts)}

    def hold(self, rank: int, host: str) -> str:
        """Give a rank to a host without asking; return its name."""
        with self._lock:
            name = self._before.get((host, rank))
            if name is None or name in self._held.values():
                names = {*self._held.values(), *self._before.values()}
                name = host if host not in names else f"{host}-{rank}"
                while name in names:
                    name += "x"
                self._before[host, rank] = name
            self._held[rank] = name
            return name

    def admit(self, hello: Hello) -> Place:
        """Give a node its place, or say why it gets none."""
        with self._lock:
            if hello.version != self._version:
                why = f"it has mslaunch {hello.version}, and the launcher {self._version}. Install the same."
                return Place(refusal=why)
            if hello.rank is not None and hello.rank >= self._most:
                why = f"node rank {hello.rank} does not exist: there are {self._most} nodes, counted from 0."
                return Place(refusal=why)
            if hello.rank in self._held:
                holder = self._held[hello.rank]
                why = f"node rank {hello.rank} has joined already, as {holder}. Give each node a rank of its own."
                return Place(refusal=why, may_come_again=self._may_come_back)
            rank = hello.rank
            if rank is None:  # one that this host had, one that nobody had, any
                free = [rank for rank in range(self._most) if rank not in self._held]
                had = [rank for rank in free if (hello.host, rank) in self._before]
                others = {rank for _, rank in self._before}
                rank = next(iter((*had, *(rank for rank in free if rank not in others), *free)), None)
            if rank is None:
                return Place(refusal=f"all {self._most} nodes are there.", may_come_again=self._may_come_back)
            return Place(rank, self.hold(rank, hello.host))

    def leave(self, name: str) -> None:
        """Free the place of a node that has gone."""
        with self._lock:
            self._held = {rank: holder for rank, holder in self._held.items() if holder != name}


@dataclass(slots=True)
class Node:
    """A node that has been let in."""

    name: str
    rank: int
    hello: Hello
    stream: tls_stream.TlsStream
    address: str
    reached_at: str
    """The address of this machine that it has connected to."""


class Listener:
    """The launcher's door, with a thread of its own for as long as the job lasts."""

    def __init__(
        self, sockets: Sequence[socket.socket], context: ssl.SSLContext, places: Places, launch: LaunchSettings
    ) -> None:
        self.places = places
        self._sockets = {sock.fileno(): sock for sock in sockets}
        self._context = context
        self._lost_after = launch.host_lost_after
        self._terms = {"run": launch.run_id or "", "python": launch.python, "lost_after": launch.host_lost_after}
        self._guests: OrderedDict[int, Guest] = OrderedDict()
        self._nodes: dict[int, Node] = {}
        self.changed = threading.Condition()
        self._refusals: set[tuple[str, str]] = set()
        self._notes: list[str] = []
        self._closing = False
        self._wake_read, self._wake_write = os.pipe()
        self._poll = select.epoll()
        for end in (*self._sockets, self._wake_read):
            self._poll.register(end, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name="mslaunch join", daemon=True)
        self._thread.start()

    def waiting(self) -> list[Node]:
        """The nodes that have come and have not been taken, by rank."""
        with self.changed:
            return sorted(self._nodes.values(), key=lambda node: node.rank)

    def take(self) -> list[Node]:
        """Take the nodes that have come: from now on, whoever took them reads their streams."""
        with self.changed:
            nodes = self.waiting()
            for end in self._nodes:
                self._poll.unregister(end)
            self._nodes.clear()
        return nodes

    def pop_notes(self) -> list[str]:
        with self.changed:
            notes, self._notes = self._notes, []
        return notes

    def close(self) -> None:
        """Let nobody in any more; nodes that were taken stay connected."""
        self._closing = True
        os.write(self._wake_write, b"x")
        self._thread.join()
        for sock in self._sockets.values():
            sock.close()
        for guest in self._guests.values():
            guest.stream.close()
        for node in self._nodes.values():
            node.stream.close()
        self._poll.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _run(self) -> None:
        while not self._closing:
            for end, event in self._poll.poll(_TURN_SECONDS):
                if end in self._sockets:
                    self._accept(self._sockets[end])
                elif end in self._guests:
                    self._receive(end, self._guests[end])
                elif event & _GONE:
                    self._forget_node(end)
            now = time.monotonic()
            for end in [end for end, guest in self._guests.items() if guest.until < now]:
                self._refuse(end, "it did not say who it is in time")

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                sock, name = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE) and self._guests:
                    self._end_oldest()
                return
            if len(self._guests) >= MOST_GUESTS:
                self._end_oldest()
            sock.setblocking(False)
            self._guests[sock.fileno()] = Guest(sock, tls_stream.plain_address(name), self._context)
            self._poll.register(sock.fileno(), select.EPOLLIN)

    def _end_oldest(self) -> None:
        self._refuse(next(iter(self._guests)), "more connections at once than are waited for")

    def _refuse(self, end: int, why: str, answer: Mapping[str, object] | None = None) -> None:
        guest = self._guests.pop(end)
        self._poll.unregister(end)
        if answer is not None:
            with suppress(OSError, ssl.SSLError):
                guest.stream.send(tls_stream.record_frame(answer))
        guest.stream.close()
        note = (guest.address, why.partition(" (")[0])  # what OpenSSL says of garbage differs from one try to the next
        with self.changed:
            if note in self._refusals or len(self._refusals) >= MOST_TOLD:
                return
            self._refusals.add(note)
            more = "; further refusals are not told" if len(self._refusals) == MOST_TOLD else ""
            self._notes.append(f"a connection from {guest.address} was refused: {why}{more}")
            self.changed.notify_all()

    def _receive(self, end: int, guest: Guest) -> None:
        try:
            hello = guest.receive()
            if hello is not None:
                self._admit(end, guest, hello)
        except Refused as refused:
            self._refuse(end, str(refused))

    def _admit(self, end: int, guest: Guest, hello: Hello) -> None:
        place = self.places.admit(hello)
        if isinstance(place.refusal, str):
            answer = {"is": "refused", "why": place.refusal, "again": place.may_come_again}
            self._refuse(end, f"{hello.host}: {place.refusal}", answer)
            return
        answer = {"is": "accepted", "name": place.name, "rank": place.rank, **self._terms}
        try:
            reached_at = tls_stream.plain_address(guest.stream.sock.getsockname())
            tls_stream.keep_alive(guest.stream.sock, self._lost_after)
            # Has the kernel end a connection whose peer has taken nothing of what waits for it for so long.
            limit = min(2**31 - 1, max(1000, round(self._lost_after * 1000)))
            guest.stream.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit)
            guest.stream.send(tls_stream.record_frame(answer))
        except (OSError, ssl.SSLError):
            self.places.leave(place.name)
            self._refuse(end, "its connection broke")
            return
        guest.stream.sock.setblocking(True)
        guest.stream.reader.longest = tls_stream.LONGEST
        node = Node(place.name, place.rank, hello, guest.stream, guest.address, reached_at)
        with self.changed:
            del self._guests[end]
            self._poll.modify(end, select.EPOLLRDHUP)
            self._nodes[end] = node
            self.changed.notify_all()

    def _forget_node(self, end: int) -> None:
        """A node that waits has gone: another may have its place."""
        with self.changed:
            node = self._nodes.pop(end, None)
            if node is None:
                return
            self._poll.unregister(end)
            self.places.leave(node.name)
            self._notes.append(f"{node.name} has left before the start")
            self.changed.notify_all()
        node.stream.close()


def listen(part: Part, addresses: list[tls_stream.Address]) -> list[socket.socket] | None:
    """Listen at the master's addresses that are this machine's.

    None where there are none, or another process of this machine listens there already and any node may launch.
    """
    sockets: list[socket.socket] = []
    for address in addresses:
        try:
            sockets.append(_bound(address))
        except OSError as error:
            if error.errno in _NOT_HERE:
                continue
            for sock in sockets:
                sock.close()
            if error.errno == errno.EADDRINUSE and part.is_launcher is None:
                return None
            raise _cannot_listen(part, error) from None
    return sockets or None


def listen_everywhere(part: Part) -> list[socket.socket]:
    """Listen at all addresses of this machine: the master's may be one that a cluster forwards."""
    for family, any_address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            return [_bound(tls_stream.Address(family, (any_address, part.port)), both=True)]
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise _cannot_listen(part, error) from None
    raise NotReadyError(f"{part.place}: this machine has no address to listen at.")


def _cannot_listen(part: Part, error: OSError) -> NotReadyError:
    if error.errno == errno.EADDRINUSE:
        return NotReadyError(
            f"{part.place}: the port is in use on this machine. Is another node 0 running here? "
            "If not, give another --master on all nodes."
        )
    return NotReadyError(f"{part.place}: cannot listen there: {error.strerror}. Give another --master on all nodes.")


def _bound(address: tls_stream.Address, both: bool = False) -> socket.socket:
    sock = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if address.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if both else 1)
        sock.bind(address.name)
        sock.listen(1024)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock
