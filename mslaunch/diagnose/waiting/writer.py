"""Who wrote a log: rank, device, host and process, from what it says; its name counts where it says nothing."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mslaunch.diagnose.waiting.line_facts import WHOLE_JOB, Fact

_RANK_PART = re.compile(r"(?:^|[._-])rank[_-]?(\d{1,6})(?=\D|$)", re.IGNORECASE)
_WORKER_FILE = re.compile(r"^(?:worker|log|train)[_-]?(\d{1,6})(?=\.)", re.IGNORECASE)
_PLOG_FILE = re.compile(r"^(?:plog|device)-(?:parser-)?(\d{1,10})[_-]")
_DEVICE_PART = re.compile(r"^device[_-](\d{1,4})$", re.IGNORECASE)
_HOST_PART = re.compile(r"^(?:worker|node|host|server)[_-]?\d{1,6}$", re.IGNORECASE)
_CANN_PART = re.compile(r"^(?:debug|run|operation|security|plog|device-\d{1,4})$")


@dataclass(frozen=True, slots=True)
class Name:
    """What the path of a log suggests."""

    place: str
    """The folder that the logs of one process share."""
    rank: int | None = None
    pid: int | None = None
    device: int | None = None
    host: str | None = None
    is_scheduler: bool = False


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a process is; None for what is not known."""

    rank: int | None = None
    ranks: int = 0
    """The size of the group in which it has that rank; 0 where nobody says."""
    host: str | None = None
    device: int | None = None
    physical: int | None = None
    pid: int | None = None
    addresses: frozenset[str] = frozenset()
    groups: Mapping[str, int] = field(default_factory=dict)
    """Its rank in each group of ranks, by the group's name."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """How many ranks each of these groups has, where a line says so."""
    root: tuple[str, str] | None = None
    """Where the first process of its group listens: address and port."""
    root_group: str | None = None


def first_number(*numbers: int | None) -> int | None:
    """Return the first number that is there, 0 included."""
    return next((number for number in numbers if number is not None), None)


def read_name(name: str) -> Name:
    """Read what the path of a log suggests; worker-1 is a host as a folder, and worker_1.log a rank."""
    *folders, file = name.split("/")
    at = next((i for i, part in enumerate(folders) if _CANN_PART.match(part)), len(folders))
    ranks = [int(match[1]) for part in (*folders, file) if (match := _RANK_PART.search(part))]
    plog = _PLOG_FILE.match(file)
    if not ranks and plog is None and (worker := _WORKER_FILE.match(file)):
        ranks = [int(worker[1])]
    devices = [int(match[1]) for part in folders if (match := _DEVICE_PART.match(part))]
    return Name(
        place="/".join(folders[:at]),
        rank=ranks[-1] if ranks else None,
        pid=int(plog[1]) if plog else None,
        device=devices[-1] if devices else None,
        host=next((part for part in reversed(folders) if _HOST_PART.match(part) or is_address(part)), None),
        is_scheduler="sched" in name.lower(),
    )


def is_address(text: str) -> bool:
    """Tell whether a text is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def main_process(name: Name, facts: Sequence[Fact]) -> int | None:
    """Return the process of most lines of a log; None where its name tells the process, whatever pid its lines have.

    They may have another one: that of a container, or of the process on the device.
    """
    counted = Counter(fact.pid for fact in facts if fact.pid is not None and name.pid is None)
    return counted.most_common(1)[0][0] if counted else None


def identify(names: Sequence[Name], facts: Iterable[Fact]) -> Identity:
    """Say who a process is, from all that its logs say; a name that contradicts them does not count."""
    who = Identity()
    for fact in facts:
        who = _add(who, fact)
    rank = first_number(*(name.rank for name in names))
    # A rank number that is too large for the group comes from a larger one: the lines are about a group of some ranks.
    if rank is None or (who.rank is not None and rank < who.ranks):
        rank = who.rank
    return replace(
        who,
        rank=rank,
        host=who.host or next((name.host for name in names if name.host), None),
        pid=first_number(*(name.pid for name in names), who.pid),
        device=first_number(who.device, *(name.device for name in names)),
    )


def _add(made: Identity, fact: Fact) -> Identity:
    """Add what one line says of its writer."""
    values = fact.values
    made = replace(made, pid=first_number(made.pid, fact.pid))
    if fact.kind == "listen":
        made = _with_devices(made, values.get("device"), values.get("physical"))
        return replace(made, addresses=made.addresses | {values["address"]})
    if fact.kind in ("task", "wait"):
        made = _with_devices(made, values.get("own_device"), values.get("own_physical"))
        own = values.get("own_address")
        made = replace(made, addresses=made.addresses | {own}) if own else made
        made = replace(made, host=made.host or values.get("own_server"))
        return _with_rank(made, values.get("own_rank"), 0)
    if fact.kind != "self":
        return made
    made = _with_rank(made, values.get("rank"), int(values.get("ranks", 0)))
    made = _with_devices(made, values.get("device"), values.get("physical"))
    group = values.get("group")
    if group and "rank" in values:
        made = replace(made, groups={**made.groups, group: int(values["rank"])})
    if group and 0 < int(values.get("ranks", 0)) < WHOLE_JOB:
        made = replace(made, sizes={**made.sizes, group: int(values["ranks"])})
    if "root" in values:
        made = replace(made, root=(values["root"], values.get("root_port", "")))
    if group and made.root_group is None:
        made = replace(made, root_group=group)
    addresses = made.addresses | ({values["address"]} if "address" in values else set())
    return replace(made, host=made.host or values.get("server"), addresses=addresses)


def _with_rank(made: Identity, rank: str | None, ranks: int) -> Identity:
    """The rank in the largest group counts: a process has another number in every group of its."""
    if rank is None or (made.rank is not None and ranks <= made.ranks):
        return made
    return replace(made, rank=int(rank), ranks=ranks)


def _with_devices(made: Identity, device: str | None, physical: str | None) -> Identity:
    if device is not None and made.device is None:
        made = replace(made, device=int(device))
    if physical is not None and made.physical is None:
        made = replace(made, physical=int(physical))
    return made
