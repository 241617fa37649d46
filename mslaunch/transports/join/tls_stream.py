"""Addresses, the encrypted stream between launcher and node, and the frames on it: the agent's bytes, and records."""

from __future__ import annotations

import ipaddress
import json
import socket
import ssl
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

AGENT, END, RECORD = b"A", b"E", b"R"
"""Kinds of frames: bytes from or for the agent, the end of these, and a record."""
_KINDS = AGENT + END + RECORD
_HEAD = struct.Struct("!cI")
PIECE = 1 << 16
LONGEST = 1 << 22
"""Bytes of a frame; a node that has not said who it is may send far less."""
_PROBES = 3
_TCP_INFO = struct.Struct("8B13I")
"""The beginning of Linux's struct tcp_info, up to tcpi_last_ack_recv."""
_ROUND_TRIP = 1.0
_WRONG_SECRET = ("CERTIFICATE_VERIFY_FAILED", "TLSV1_ALERT_UNKNOWN_CA", "TLSV1_ALERT_DECRYPT_ERROR")


@dataclass(frozen=True, slots=True)
class Address:
    """One address of a name."""

    family: int
    name: tuple[object, ...]


def resolve(host: str, port: int) -> list[Address]:
    """Return the addresses of a name, none where it does not resolve (yet)."""
    try:
        answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(Address(family, name) for family, _, _, _, name in answers))


def is_local(addresses: list[Address]) -> bool:
    """Tell whether nothing from outside of this machine comes in by these."""
    texts = [str(address.name[0]).partition("%")[0] for address in addresses]
    return bool(texts) and all(ipaddress.ip_address(text).is_loopback for text in texts)


class BrokenStream(Exception):
    """The other side has sent what is no frame."""


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    return _HEAD.pack(kind, len(payload)) + payload


def record_frame(record: Mapping[str, Any]) -> bytes:
    return frame(RECORD, json.dumps(record).encode())


def read_record(payload: bytes) -> dict[str, Any]:
    """Read a record; raise BrokenStream where it is none."""
    try:
        record = json.loads(payload)
    except (ValueError, RecursionError):
        raise BrokenStream("a record that is not JSON") from None
    if not isinstance(record, dict):
        raise BrokenStream("a record that is no object")
    return record


class FrameReader:
    """Turns bytes, in pieces of any size, back into frames."""

    def __init__(self, longest: int = LONGEST) -> None:
        self.longest = longest
        self._left = bytearray()

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """Return the frames that are complete; raise BrokenStream for what is none."""
        self._left += data
        frames: list[tuple[bytes, bytes]] = []
        at = 0
        while len(self._left) - at >= _HEAD.size:
            kind, size = _HEAD.unpack_from(self._left, at)
            if kind not in _KINDS or size > self.longest:
                raise BrokenStream("bytes that are no frame")
            if len(self._left) - at - _HEAD.size < size:
                break
            at += _HEAD.size
            frames.append((kind, bytes(self._left[at : at + size])))
            at += size
        del self._left[:at]
        return frames


class TlsStream:
    """TLS over a socket. OpenSSL's state has a lock, since one thread reads and another writes."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server_side: bool) -> None:
        self.sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self.reader = FrameReader()

    def shake_hands(self, data: bytes) -> bool:
        """Go on with the handshake, with what has come; return whether it is done. What to answer is sent at once."""
        self._incoming.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            if answer := self._outgoing.read():
                self.sock.send(answer)  # a few kilobytes, which an idle connection always takes
        return True

    def receive(self) -> list[tuple[bytes, bytes]] | None:
        """Return the frames that have come, without waiting; None when the stream has ended."""
        try:
            data = self.sock.recv(PIECE, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            return None
        return self.decrypt(data) if data else None

    def decrypt(self, data: bytes) -> list[tuple[bytes, bytes]] | None:
        """Return the frames in what has come; None when the stream has ended."""
        frames: list[tuple[bytes, bytes]] = []
        with self._lock:
            self._incoming.write(data)
            while True:
                try:
                    plain = self._tls.read(PIECE)
                except ssl.SSLWantReadError:
                    return frames
                except ssl.SSLZeroReturnError:
                    return frames or None
                if not plain:
                    return frames or None
                frames += self.reader.feed(plain)

    def encrypt(self, data: bytes) -> bytes:
        with self._lock:
            self._tls.write(data)
            return self._outgoing.read()

    def send(self, data: bytes, seconds: float | None = None) -> None:
        """Write frames; waits for the other side to read, and for another thread that writes, so long at most."""
        if not self._sending.acquire(timeout=-1 if seconds is None else seconds):
            raise TimeoutError("another thread waits for the other side to read")
        try:
            if seconds is not None:
                self.sock.settimeout(seconds)
            for at in range(0, len(data), PIECE):
                self.sock.sendall(self.encrypt(data[at : at + PIECE]))
        finally:
            self._sending.release()

    def close(self) -> None:
        self.sock.close()


def keep_alive(sock: socket.socket, seconds: float) -> None:
    """Have the kernel end a connection whose peer has been gone for so long, also where nothing is sent."""
    pause = max(1, round(seconds / 2 / _PROBES))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, round(seconds / 2)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, pause)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)


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


def is_cut_off(sock: socket.socket, seconds: float) -> bool:
    """Tell whether the peer's machine has answered nothing for so long, though it was asked more than once.

    A peer that is stopped takes nothing either, but its kernel answers. Keep-alive does not look while something waits
    to be sent, and the user timeout would end both.
    """
    info = _TCP_INFO.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size))
    retransmits, probes = int(info[2]), int(info[3])
    pause, unanswered = info[8] / 1e6, float(info[-1]) / 1e3
    return (retransmits > 0 or probes > 1) and unanswered > max(seconds, pause + _ROUND_TRIP)


def plain_address(address: Any) -> str:
    """The address of a socket's name; IPv4 inside of IPv6 is written as IPv4."""
    return str(address[0]).removeprefix("::ffff:").partition("%")[0]
