"""Who waits for whom: every line in which a rank complains of a peer becomes an edge between two processes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mslaunch.diagnose.waiting.line_facts import WHOLE_JOB, Fact
from mslaunch.diagnose.waiting.writer import first_number, is_address

if TYPE_CHECKING:
    from mslaunch.diagnose.case import Case

_MOST_MISSING = 4096  # ranks that one list may name as missing
_ROOT_DEVICE = re.compile(r"_(\d{1,5})_(\d{1,6})_\d{10,20}$")
_LINK = ("cqe err", "EI0013")


@dataclass(frozen=True, slots=True)
class DeviceAddress:
    """What a rank table or hccn_tool's output says: which device has which address."""

    host: str | None
    device: int
    address: str | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Peer:
    """A process: one whose log is there, by its number, or what others say of one whose log is not."""

    case: int | None = None
    rank: int | None = None
    host: str | None = None
    device: int | None = None
    port: str | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """One process waits for another; the line that says so."""

    waiter: Peer
    peer: Peer
    log: str
    line: int
    time: float | None
    is_link: bool = False
    """The line is about the link between both, not about the peer."""


class _Book:
    """Finds processes by rank, address, host and device."""

    def __init__(self, cases: Sequence[Case], places: Sequence[DeviceAddress]) -> None:
        self.cases = cases
        self.hosts = [{host for host in (case.host, case.who.host) if host} for case in cases]
        self.by_rank: dict[int, set[int]] = {}
        self.by_address: dict[str, set[int]] = {}
        self.by_device: dict[tuple[str, int], set[int]] = {}
        self.by_group: dict[str, dict[int, set[int]]] = {}
        self.group_of: dict[str, str] = {}
        """The name of the group that a text in a line holds; such a text is a tag, most often."""
        for number, who in enumerate(case.who for case in cases):
            if who.rank is not None:
                self.by_rank.setdefault(who.rank, set()).add(number)
            for address in who.addresses:
                self.by_address.setdefault(address, set()).add(number)
            device = first_number(who.physical, who.device)
            if device is not None:
                for host in self.hosts[number]:
                    self.by_device.setdefault((host, device), set()).add(number)
            for group, rank in who.groups.items():
                self.by_group.setdefault(group, {}).setdefault(rank, set()).add(number)
        self.planned = {place.rank: place for place in places if place.rank is not None}
        self.place_of = {place.address: place for place in places if place.address}

    def peer(self, number: int) -> Peer:
        case, who = self.cases[number], self.cases[number].who
        return Peer(number, who.rank, case.host or who.host, first_number(who.device, who.physical))

    def find(self, values: Mapping[str, str], waiter: int) -> Peer:
        """Return whom a line names: the one process that fits, or what the line says of one whose log is not there."""
        rank = int(values["rank"]) if "rank" in values else None
        address = values.get("address")
        device = int(values["physical"]) if "physical" in values else None
        server = values.get("server")
        matches = set[int]()
        if rank is not None:
            matches = self._in_group(rank, values.get("group"))
        if address is not None:
            matches = self._at_address(address, matches, waiter)
        elif device is not None:
            if server is None or any(server in hosts for hosts in self.hosts):
                matches = set()
            # A host that no log names may be one by another address; then the rank is all that is known.
            matches = self._on_device(server, device, waiter) or matches
        elif server is not None:
            there = {number for number in matches if server in (self.hosts[number] or {server})}
            if matches and not there:
                rank = None  # it is the rank in a smaller group
            matches = there
        if len(matches) == 1:
            return self.peer(next(iter(matches)))
        place = self.place_of.get(address or "")
        if place is not None:
            return Peer(None, first_number(place.rank, rank), place.host, place.device)
        if rank is not None and rank in self.planned:
            return Peer(None, rank, self.planned[rank].host, self.planned[rank].device)
        host = server or address
        if not host and device is not None:
            host = self.peer(waiter).host
        return Peer(None, rank, host, device, values.get("port") if rank is None else None)

    def _in_group(self, rank: int, group: str | None) -> set[int]:
        """Return the processes with a rank: in the group that the line names, else in the job."""
        if group and group not in self.group_of:
            self.group_of[group] = next((name for name in self.by_group if name in group), "")
        ranks = self.by_group.get(self.group_of[group], {}) if group else {}
        return ranks.get(rank) or self.by_rank.get(rank, set())

    def _at_address(self, address: str, ranked: set[int], waiter: int) -> set[int]:
        """Return the process with an address; addresses inside a host are the same on every host."""
        matches = self.by_address.get(address, set())
        place = self.place_of.get(address)
        if not matches and place is not None:
            if place.rank is not None:
                matches = self.by_rank.get(place.rank, set())
            matches = matches or self.by_device.get((place.host or "", place.device), set())
        if matches & ranked:
            return matches & ranked
        if len(matches) == 1:
            return matches
        beside = {number for number in matches if self.hosts[number] & self.hosts[waiter]}
        if len(beside) == 1:
            return beside
        return ranked

    def _on_device(self, server: str | None, device: int, waiter: int) -> set[int]:
        """Return the process on a device of a host, of the waiter's own where none is named."""
        for host in [server] if server else sorted(self.hosts[waiter]):
            if matches := self.by_device.get((host, device)):
                return matches
        return self.by_address.get(server or "", set())

    def root_of(self, waiter: int, values: Mapping[str, str]) -> Peer:
        """Return the process that the ranks of a group register with."""
        who = self.cases[waiter].who
        address, port = (values["address"], values["port"]) if "address" in values else who.root or (None, None)
        group = who.root_group or ""
        if address is None and is_address(group.partition("%")[0]):
            address = group.partition("%")[0]
        device = _ROOT_DEVICE.search(group)
        if device and address and (matches := self.by_device.get((address, int(device[2])))):
            return self.peer(min(matches))
        first = self.by_group.get(group, {}).get(0, set())
        if len(first) == 1:
            return self.peer(next(iter(first)))
        if not port and device:
            port = device[1]
        return Peer(None, None, address, None, port)


def find_waits(cases: Sequence[Case], places: Sequence[DeviceAddress] = ()) -> list[Wait]:
    """Return every edge that the logs tell of, in the order of each log; a process does not wait for itself."""
    book = _Book(cases, places)
    waits = []
    for number, case in enumerate(cases):
        for fact in (*case.findings.facts, *_blamed(case)):
            waiter = book.peer(number)
            if "from_server" in fact.values:  # a line that is about another process than its writer
                place = {"server": fact.values["from_server"], "physical": fact.values["from_physical"]}
                waiter = book.find(place, number)
            for peer in _peers(book, number, fact):
                if peer != waiter and peer != Peer():
                    is_link = fact.values.get("what") in _LINK
                    waits.append(Wait(waiter, peer, fact.log, fact.line, fact.time, is_link))
    return waits


def _blamed(case: Case) -> list[Fact]:
    """Return the peers that rows of the pattern table name, where no form of ours has read the same line."""
    lines_read = {(fact.log, fact.line) for fact in case.findings.facts}
    facts = []
    for hit in case.findings.hits:
        if hit.match.blamed and (hit.log, hit.line) not in lines_read:
            values = _peer_values(hit.match.blamed)
            if values:
                facts.append(Fact(hit.line, "wait", None, values, hit.time, hit.log))
    return facts


def _peer_values(blamed: str) -> dict[str, str]:
    """Read how a line names a peer: by its rank, its address, or its host's address and its device."""
    if blamed.isdecimal() and len(blamed) < 10:
        return {"rank": blamed}
    address, _, device = blamed.partition("/")
    if not is_address(address):
        return {}
    if device.isdecimal():
        return {"server": address, "physical": device}
    return {"address": address}


def _peers(book: _Book, number: int, fact: Fact) -> Iterator[Peer]:
    """Return whom one line names."""
    if fact.kind == "wait":
        yield book.find(fact.values, number)
    elif fact.kind == "root":
        yield book.root_of(number, fact.values)
    elif fact.kind == "missing":
        for text in fact.values["ranks"].split(",")[:_MOST_MISSING]:
            if text and len(text) < 10:
                yield book.find({"rank": text}, number)
    elif fact.kind == "came":
        for rank in _missing(book.cases[number], fact):
            yield book.find({"rank": str(rank)}, number)


def _missing(case: Case, first: Fact) -> list[int]:
    """Return the ranks that are in none of the lists of those that came; all lists count as one."""
    lists = [fact for fact in case.findings.facts if fact.kind == "came"]
    if first is not lists[0]:
        return []
    sizes = [int(fact.values["ranks"]) for fact in case.findings.facts if fact.kind == "expected"]
    size = [*sizes, case.who.ranks][0]
    if not 0 < size < min(WHOLE_JOB, 1 << 20):
        return []
    texts = [text.partition(":")[0] for fact in lists for text in re.findall(r"\[([^\]]{1,40})\]", fact.values["came"])]
    came = {int(text) for text in texts if text.isdecimal() and len(text) < 20}
    return [rank for rank in range(size) if rank not in came][:_MOST_MISSING]
