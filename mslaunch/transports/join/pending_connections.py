"""Connections that have not yet said who they are: limited in number and time, and trusted with nothing."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mslaunch.transports.join.tls_stream import RECORD, BrokenStream, TlsStream, read_record

SECONDS = 10.0
"""What a connection gets to prove that it knows the secret, and to say who it is."""
LONGEST_HELLO = 1 << 16
_LONGEST_TEXT = 256
_WRONG_SECRET = ("CERTIFICATE_VERIFY_FAILED", "TLSV1_ALERT_UNKNOWN_CA", "TLSV1_ALERT_DECRYPT_ERROR")


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
        self.stream = TlsStream(sock, context, server_side=True)
        self.stream.reader.longest = LONGEST_HELLO
        self._knows_secret = False

    def receive(self) -> Hello | None:
        """Go on with what has come; return the hello once it is there, and raise Refused for what is none."""
        try:
            data = self.stream.sock.recv(LONGEST_HELLO, socket.MSG_DONTWAIT)
            if not data:
                raise Refused("it ended without a word")
            frames = self._frames(data)
            if not frames:
                return None
            (kind, payload), *more = frames
            if kind != RECORD or more:
                raise Refused("it does not begin with who it is")
            return read_hello(read_record(payload))
        except BlockingIOError:
            return None
        except ssl.SSLError as error:
            raise Refused(why_not(error)) from None
        except BrokenStream as error:
            raise Refused(f"it sent {error}") from None
        except OSError as error:
            raise Refused(f"its connection broke ({error.strerror})") from None

    def _frames(self, data: bytes) -> list[tuple[bytes, bytes]] | None:
        if self._knows_secret:
            return self.stream.decrypt(data)
        self._knows_secret = self.stream.shake_hands(data)
        return self.stream.decrypt(b"") if self._knows_secret else None


def why_not(error: ssl.SSLError) -> str:
    """Say why a handshake failed."""
    reason = error.reason or ""
    if reason in _WRONG_SECRET:
        return "it has another secret"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it does not show that it knows the secret"
    if reason == "HTTP_REQUEST":
        return "it speaks HTTP"
    return f"it does not speak our TLS ({reason.lower().replace('_', ' ') or 'no reason given'})"


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
