"""Who waits for whom: every line in which a rank complains of a peer becomes an edge between two processes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mslaunch.diagnose.waiting.line_facts import WHOLE_JOB, Fact
from mslaunch.diagnose.waiting.writer import Identity, first_number, is_address

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


@dataclass(frozen=True, slots=True)
class Writer:
    """A process whose logs are there: who it is, and what its logs say of it and of others."""

    who: Identity
    facts: Sequence[Fact]
    host: str | None = None
    """The name of its host, where somebody besides the log knows it."""

    @property
    def hosts(self) -> set[str]:
        return {host for host in (self.host, self.who.host) if host}

    @property
    def device(self) -> int | None:
        return first_number(self.who.device, self.who.physical)


@dataclass
class _Book:
    """Finds processes by rank, address, host and device."""

    writers: Sequence[Writer]
    places: Sequence[DeviceAddress]
    by_rank: dict[int, set[int]] = field(default_factory=dict)
    by_address: dict[str, set[int]] = field(default_factory=dict)
    by_device: dict[tuple[str, int], set[int]] = field(default_factory=dict)
    by_group: dict[str, dict[int, set[int]]] = field(default_factory=dict)
    group_of: dict[str, str] = field(default_factory=dict)
    """The name of the group that a text in a line holds; such a text is a tag, most often."""
    place_of: dict[str, DeviceAddress] = field(default_factory=dict)
    planned: dict[int, DeviceAddress] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number, writer in enumerate(self.writers):
            who = writer.who
            if who.rank is not None:
                self.by_rank.setdefault(who.rank, set()).add(number)
            for address in who.addresses:
                self.by_address.setdefault(address, set()).add(number)
            device = first_number(who.physical, who.device)
            if device is not None:
                for host in writer.hosts:
                    self.by_device.setdefault((host, device), set()).add(number)
            for group, rank in who.groups.items():
                self.by_group.setdefault(group, {}).setdefault(rank, set()).add(number)
        self.planned = {place.rank: place for place in self.places if place.rank is not None}
        self.place_of = {place.address: place for place in self.places if place.address}

    def peer(self, number: int) -> Peer:
        writer = self.writers[number]
        return Peer(number, writer.who.rank, writer.host or writer.who.host, writer.device)

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
            if server is None or any(server in writer.hosts for writer in self.writers):
                matches = set()
            # A host that no log names may be one by another address; then the rank is all that is known.
            matches = self._on_device(server, device, waiter) or matches
        elif server is not None:
            there = {number for number in matches if server in (self.writers[number].hosts or {server})}
            if matches and not there:
                rank = None  # it is the rank in a smaller group
            matches = there
        if len(matches) == 1:
            return self.peer(next(iter(matches)))
        return self._outside(rank, address, server, device, values.get("port"), waiter)

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
        beside = {number for number in matches if self.writers[number].hosts & self.writers[waiter].hosts}
        if len(beside) == 1:
            return beside
        return ranked

    def _on_device(self, server: str | None, device: int, waiter: int) -> set[int]:
        """Return the process on a device of a host, of the waiter's own where none is named."""
        hosts = [server] if server else sorted(self.writers[waiter].hosts)
        for host in hosts:
            if matches := self.by_device.get((host, device)):
                return matches
        return self.by_address.get(server or "", set())

    def _outside(
        self,
        rank: int | None,
        address: str | None,
        server: str | None,
        device: int | None,
        port: str | None,
        waiter: int,
    ) -> Peer:
        place = self.place_of.get(address or "")
        if place is not None:
            return Peer(None, first_number(place.rank, rank), place.host, place.device)
        if rank is not None and rank in self.planned:
            planned = self.planned[rank]
            return Peer(None, rank, planned.host, planned.device)
        host = server or address
        if not host and device is not None:
            host = self.peer(waiter).host
        return Peer(None, rank, host, device, port if rank is None else None)

    def root_of(self, waiter: int, values: Mapping[str, str]) -> Peer:
        """Return the process that the ranks of a group register with."""
        who = self.writers[waiter].who
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


def find_waits(writers: Sequence[Writer], places: Sequence[DeviceAddress] = ()) -> list[Wait]:
    """Return every edge that the logs tell of, in the order of each log; a process does not wait for itself."""
    book = _Book(writers, places)
    waits = []
    for number, writer in enumerate(writers):
        for fact in writer.facts:
            waiter = _waiter(book, number, fact)
            for peer in _peers(book, number, fact):
                if peer != waiter and peer != Peer():
                    is_link = fact.values.get("what") in _LINK
                    waits.append(Wait(waiter, peer, fact.log, fact.line, fact.time, is_link))
    return waits


def _waiter(book: _Book, number: int, fact: Fact) -> Peer:
    """Return who waits: whoever wrote the line, but for lines that name another process."""
    if "from_server" not in fact.values:
        return book.peer(number)
    return book.find({"server": fact.values["from_server"], "physical": fact.values["from_physical"]}, number)


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
        for rank in _missing(book.writers[number], fact):
            yield book.find({"rank": str(rank)}, number)


def _missing(writer: Writer, first: Fact) -> list[int]:
    """Return the ranks that are in none of the lists of those that came; all lists count as one."""
    lists = [fact for fact in writer.facts if fact.kind == "came"]
    if first is not lists[0]:
        return []
    sizes = [int(fact.values["ranks"]) for fact in writer.facts if fact.kind == "expected"]
    size = [*sizes, writer.who.ranks][0]
    if not 0 < size < min(WHOLE_JOB, 1 << 20):
        return []
    texts = [text.partition(":")[0] for fact in lists for text in re.findall(r"\[([^\]]{1,40})\]", fact.values["came"])]
    came = {int(text) for text in texts if text.isdecimal() and len(text) < 20}
    return [rank for rank in range(size) if rank not in came][:_MOST_MISSING]
