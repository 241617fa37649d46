"""The places of a job's nodes: which rank and which name each node gets, and who is refused. Pure, but for a lock."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from mslaunch.transports.join.pending_connections import Hello


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
        self._lock = threading.Lock()

    @property
    def held(self) -> dict[int, str]:
        with self._lock:
            return dict(self._held)

    def remember(self, hosts: Sequence[str]) -> None:
        """Give the hosts of an earlier launcher's run the same ranks again."""
        with self._lock:
            self._before |= {(host, rank): host for rank, host in enumerate(hosts)}

    def hold(self, rank: int, host: str) -> str:
        """Give a rank to a host without asking; return its name."""
        with self._lock:
            return self._hold(rank, host)

    def admit(self, hello: Hello) -> Place:
        """Give a node its place, or say why it gets none."""
        with self._lock:
            if hello.version != self._version:
                return Place(
                    refusal=f"it has mslaunch {hello.version}, and the launcher {self._version}. Install the same."
                )
            if hello.rank is not None and hello.rank >= self._most:
                return Place(
                    refusal=f"node rank {hello.rank} does not exist: there are {self._most} nodes, counted from 0."
                )
            if hello.rank in self._held:
                holder = self._held[hello.rank]
                why = f"node rank {hello.rank} has joined already, as {holder}. Give each node a rank of its own."
                return Place(refusal=why, may_come_again=self._may_come_back)
            rank = hello.rank if hello.rank is not None else self._free_rank(hello.host)
            if rank is None:
                return Place(refusal=f"all {self._most} nodes are there.", may_come_again=self._may_come_back)
            return Place(rank, self._hold(rank, hello.host))

    def leave(self, name: str) -> None:
        """Free the place of a node that has gone."""
        with self._lock:
            self._held = {rank: holder for rank, holder in self._held.items() if holder != name}

    def _free_rank(self, host: str) -> int | None:
        free = [rank for rank in range(self._most) if rank not in self._held]
        had = [rank for rank in free if (host, rank) in self._before]
        others = {rank for _, rank in self._before}
        fresh = [rank for rank in free if rank not in others]
        return next(iter((*had, *fresh, *free)), None)

    def _hold(self, rank: int, host: str) -> str:
        name = self._before.get((host, rank))
        if name is None or name in self._held.values():
            names = {*self._held.values(), *self._before.values()}
            name = host if host not in names else f"{host}-{rank}"
            while name in names:
                name += "x"
            self._before[host, rank] = name
        self._held[rank] = name
        return name
