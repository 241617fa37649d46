"""Sockets for the launcher to listen on, and addresses for nodes to connect to."""

from __future__ import annotations

import errno
import ipaddress
import socket
from dataclasses import dataclass

from mslaunch.errors import NotReadyError, RequestError
from mslaunch.transports.join.role import Part

BACKLOG = 1024
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


@dataclass(frozen=True, slots=True)
class Address:
    """One address of a name."""

    family: int
    name: tuple[object, ...]

    @property
    def is_loopback(self) -> bool:
        return ipaddress.ip_address(str(self.name[0]).partition("%")[0]).is_loopback


def resolve(host: str, port: int) -> list[Address]:
    """Return the addresses of a name, none where it does not resolve (yet)."""
    try:
        answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(Address(family, name) for family, _, _, _, name in answers))


def is_local(addresses: list[Address]) -> bool:
    """Tell whether nothing from outside of this machine comes in by these."""
    return bool(addresses) and all(address.is_loopback for address in addresses)


def listen(part: Part, addresses: list[Address]) -> list[socket.socket] | None:
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
            return [_bound(Address(family, (any_address, part.port)), both=True)]
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise _cannot_listen(part, error) from None
    raise NotReadyError(f"{part.place}: this machine has no address to listen at.")


def _cannot_listen(part: Part, error: OSError) -> RequestError | NotReadyError:
    if error.errno == errno.EADDRINUSE:
        return NotReadyError(
            f"{part.place}: the port is in use on this machine. Is another node 0 running here? "
            "If not, give another --master on all nodes."
        )
    return NotReadyError(f"{part.place}: cannot listen there: {error.strerror}. Give another --master on all nodes.")


def _bound(address: Address, both: bool = False) -> socket.socket:
    sock = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if address.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if both else 1)
        sock.bind(address.name)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock
