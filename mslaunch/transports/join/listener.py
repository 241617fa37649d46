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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

from mslaunch.transports.join.pending_connections import Guest, Hello, Refused
from mslaunch.transports.join.slots import Places
from mslaunch.transports.join.tls_stream import (
    LONGEST,
    TlsStream,
    keep_alive,
    limit_waiting,
    plain_address,
    record_frame,
)

MOST_GUESTS = 256
"""Connections that have not yet proved anything, at once; one more ends the oldest."""
MOST_TOLD = 20
"""Refusals that are told; an attacker must not fill the log."""
_TURN_SECONDS = 0.5
_ACCEPTED_AT_ONCE = 64
_GONE = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR


@dataclass(frozen=True, slots=True)
class Terms:
    """What every node is told when it is let in."""

    run: str
    """The name of the run."""
    python: str | None
    """The Python that runs the agent; None for the node's own."""
    lost_after: float
    """Seconds without an answer of the other machine after which either side is gone."""


@dataclass(slots=True)
class Node:
    """A node that has been let in."""

    name: str
    rank: int
    hello: Hello
    stream: TlsStream
    address: str
    reached_at: str
    """The address of this machine that it has connected to."""


class Listener:
    """The launcher's door, with a thread of its own for as long as the job lasts."""

    def __init__(self, sockets: Sequence[socket.socket], context: ssl.SSLContext, places: Places, terms: Terms) -> None:
        self.places = places
        self._sockets = {sock.fileno(): sock for sock in sockets}
        self._context = context
        self._terms = terms
        self._guests: OrderedDict[int, Guest] = OrderedDict()
        self._nodes: dict[int, Node] = {}
        self.changed = threading.Condition()
        self._told: set[tuple[str, str]] = set()
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
            taken = sorted(self._nodes.values(), key=lambda node: node.rank)
            for end in self._nodes:
                self._poll.unregister(end)
            self._nodes.clear()
        return taken

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
            self._end_late_guests()

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
            address = plain_address(name)
            if len(self._guests) >= MOST_GUESTS:
                self._end_oldest()
            sock.setblocking(False)
            self._guests[sock.fileno()] = Guest(sock, address, self._context)
            self._poll.register(sock.fileno(), select.EPOLLIN)

    def _end_oldest(self) -> None:
        end = next(iter(self._guests))
        self._refuse(end, "more connections at once than are waited for")

    def _end_late_guests(self) -> None:
        now = time.monotonic()
        for end in [end for end, guest in self._guests.items() if guest.until < now]:
            self._refuse(end, "it did not say who it is in time")

    def _refuse(self, end: int, why: str, answer: Mapping[str, object] | None = None) -> None:
        guest = self._guests.pop(end)
        self._poll.unregister(end)
        if answer is not None:
            with suppress(OSError, ssl.SSLError):
                guest.stream.send(record_frame(answer))
        guest.stream.close()
        self._tell_once(guest.address, why)

    def _tell_once(self, address: str, why: str) -> None:
        kind = why.partition(" (")[0]  # what OpenSSL says of garbage differs from one try to the next
        with self.changed:
            if (address, kind) in self._told or len(self._told) >= MOST_TOLD:
                return
            self._told.add((address, kind))
            more = "; further refusals are not told" if len(self._told) == MOST_TOLD else ""
            self._notes.append(f"a connection from {address} was refused: {why}{more}")
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
        answer = {"is": "accepted", "name": place.name, "rank": place.rank, **asdict(self._terms)}
        try:
            reached_at = plain_address(guest.stream.sock.getsockname())
            keep_alive(guest.stream.sock, self._terms.lost_after)
            limit_waiting(guest.stream.sock, self._terms.lost_after)
            guest.stream.send(record_frame(answer))
        except (OSError, ssl.SSLError):
            self.places.leave(place.name)
            self._refuse(end, "its connection broke")
            return
        guest.stream.sock.setblocking(True)
        guest.stream.reader.longest = LONGEST
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
