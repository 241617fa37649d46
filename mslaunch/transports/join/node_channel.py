"""The channel to the agent of a node that has joined."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from select import POLLIN, poll
from typing import Any

from mslaunch.shared import wire
from mslaunch.transports.join.listener import Node
from mslaunch.transports.join.tls_stream import AGENT, END, PIECE, BrokenStream, frame, record_frame
from mslaunch.transports.streams import Sender

CLOSE_SECONDS = 15.0
LAST_SECONDS = 2.0
_DRAIN_MS = 100


class NodeChannel:
    """The agent's stream inside of the encrypted one; that stays open after the agent's end, for the last record."""

    def __init__(self, node: Node, on_gone: Callable[[str], None]) -> None:
        """`on_gone` is told the node's name when its connection has ended."""
        self.hosts: tuple[str, ...] = (node.name,)
        self.hint = f"See what mslaunch shows on {node.name} ({node.address})."
        self.is_open = True
        self._on_gone = on_gone
        self._stream = node.stream
        self._decoder = wire.Decoder()
        self._has_ended = False
        self._is_gone = False
        self._sender = Sender(self._stream.send)
        self._sender.send(frame(AGENT, wire.MAGIC))

    def fileno(self) -> int:
        return self._stream.sock.fileno()

    def receive(self) -> list[dict[str, Any]] | None:
        messages: list[dict[str, Any]] = []
        for kind, payload in self._frames():
            if kind == AGENT:
                messages += self._decoder.feed(payload)
            elif kind == END:
                self._has_ended = True
        if self._has_ended and not messages:
            self.is_open = False
            return None
        return messages

    def _frames(self) -> list[tuple[bytes, bytes]]:
        """Return what has come; the end of the agent is made an end of what can be read, so that it is noticed."""
        try:
            frames = self._stream.receive()
        except (BrokenStream, ssl.SSLError):
            frames = None
        if frames is None:
            if not self._has_ended:
                self._set_gone()
            return []
        if any(kind == END for kind, _ in frames):
            with suppress(OSError):
                self._stream.sock.shutdown(0)  # SHUT_RD
        return frames

    def send(self, message: Mapping[str, object]) -> None:
        data = wire.encode(message)
        for at in range(0, len(data), PIECE):
            self._sender.send(frame(AGENT, data[at : at + PIECE]))

    def flush(self) -> None:
        self._sender.flush()

    def why_it_ended(self) -> str:
        if self._is_gone:
            return f"it joined, and the connection to it was lost before the job began. {self.hint}"
        return f"it joined, and its agent ended before the job began. {self.hint}"

    def close(self) -> None:
        """End the agent, and wait until it has; a host that is lost is not waited for."""
        if not self.is_open:
            if not self._has_ended or self._is_gone:
                self.drop()
            return
        self._sender.send(frame(END))
        self._drain()
        self.is_open = False

    def _drain(self) -> None:
        poller = poll()
        poller.register(self.fileno(), POLLIN)
        until = time.monotonic() + CLOSE_SECONDS
        while not self._has_ended and time.monotonic() < until:
            if poller.poll(_DRAIN_MS):
                self.receive()
        if not self._has_ended:
            self.drop()

    def conclude(self, record: Mapping[str, Any]) -> None:
        """Send the last record: how the run ended. By this time nothing else is sent, so no thread has to be woken."""
        if not self._is_gone:
            with suppress(OSError, ssl.SSLError):
                self._stream.send(record_frame(record), LAST_SECONDS)

    def drop(self) -> None:
        """End the connection, once what was queued has been written."""
        self._set_gone()
        with suppress(OSError):
            self._stream.sock.shutdown(2)  # SHUT_RDWR: ends a sender that waits for a peer that is gone
        self._sender.close()

    def _set_gone(self) -> None:
        self._is_gone = self._has_ended = True
        self._on_gone(self.hosts[0])

    def end(self) -> None:
        """Close the connection after the last record."""
        self.drop()
        self._stream.close()
