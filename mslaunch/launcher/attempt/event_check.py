"""What comes from hosts is checked here, before anything else looks at it: by the types of `messages`."""

from __future__ import annotations

import reprlib
from collections.abc import Collection
from typing import Any

from mslaunch.documents.typed import Args, Mismatch, Reader, Readers
from mslaunch.shared import messages
from mslaunch.shared.wire import UnreadableRecord
from mslaunch.transports.base import Channel

LARGEST = {"code": 255, "signal": 255, "crashed": 255, "port": 65535}
"""Numbers that are bounded by what they mean."""
EARLIEST = -6e10  # a time in the year 68: a clock may be set to any, and dates begin with the year 1
LEAST = {"time": EARLIEST}
"""Of numbers that may be negative."""
LARGEST_NUMBER = {
    int: 2**63 - 1,
    float: 1e11,  # a time in the year 5138: dates end in 9999
}
LONGEST_NAME = 64


class Rejected(Exception):
    """A host has sent what it must not send; the text says what, after the host's name."""


def receive_checked(channel: Channel) -> list[messages.Message] | None:
    """Receive events of a channel's own hosts; None when the stream has ended."""
    received = channel.receive()
    for event in received or ():
        check_event(event, channel.hosts)
    return received


def check_event(event: messages.Message, hosts: Collection[str]) -> None:
    """Make sure that an event is of one of these hosts and has the fields of its type; other fields are dropped.

    Of an event that this version does not know, only name and host are checked.
    """
    if isinstance(event, UnreadableRecord):
        raise Rejected(f"sent {event.why}")
    name, host = event.get("ev"), event.get("host")
    if type(host) is not str or host not in hosts:
        raise Rejected(f"sent an event of {_short(host)}, for which it may not speak")
    if type(name) is not str or len(name) > LONGEST_NAME:
        raise Rejected(f"sent an event with the name {_short(name)}")
    read = _READERS.get(name)
    if read is None:
        return
    try:
        read(event)
    except Mismatch as error:
        field = error.place[-1]
        problem = f"is {_short(event[field])}" if field in event else "is missing"
        raise Rejected(f"sent a wrong event: {field} of {name} {problem}") from None


def _short(value: object) -> str:
    return reprlib.repr(value)[:LONGEST_NAME]


class _EventReaders(Readers):
    """Bounds numbers by the name of their field, and accepts any text for a Literal: the launcher refuses it later."""

    def of_simple(self, kind: Any, name: str) -> Reader:
        reader = super().of_simple(kind, name)
        if kind not in LARGEST_NUMBER:
            return reader
        least, largest = LEAST.get(name, 0), LARGEST.get(name, LARGEST_NUMBER[kind])

        def read(value: Any) -> Any:
            if type(value) in reader.exact and least <= value <= largest:
                return value
            return reader.read(value)

        return Reader(frozenset(), read)

    def of_literal(self, choices: Args, name: str) -> Reader:
        del choices
        return self.of_simple(str, name)


_EVENTS = _EventReaders()
_READERS = {name: _EVENTS.reader_of(kind).read for name, kind in messages.AGENT_EVENTS.items()}
