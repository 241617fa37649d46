"""What a folder of logs tells, or a bundle of another machine: its processes, each with all its logs."""

from __future__ import annotations

import signal as signals
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

from mslaunch.diagnose.case import Case, merge, parse_error
from mslaunch.diagnose.logs.reading import Progress, Read, read_logs
from mslaunch.diagnose.logs.scan import Hit
from mslaunch.diagnose.logs.sources import LogFile, is_kernel_log, logs_among
from mslaunch.diagnose.waiting.graph import DeviceAddress
from mslaunch.diagnose.waiting.line_facts import Fact
from mslaunch.diagnose.waiting.writer import Identity, Name, identify, main_process, read_name
from mslaunch.errors import RankTableUnreadable
from mslaunch.ranktable.versions import read_table
from mslaunch.shared import layout

_SIGNALS = {
    "segfault": signals.SIGSEGV,
    "general protection": signals.SIGSEGV,
    "trap invalid opcode": signals.SIGILL,
    "hardware memory corruption": signals.SIGBUS,
}
"""The signal behind what the kernel says; all else is for lack of memory, but for what a driver says of a device."""


def assign(cases: Sequence[Case]) -> list[Case]:
    """Mark the ranks that the kernel names by their pid; the line is told as theirs, not as one of the kernel's log."""
    made = list(cases)
    by_pid: dict[int, list[int]] = {}
    for number, case in enumerate(cases):
        if case.who.pid is not None:
            by_pid.setdefault(case.who.pid, []).append(number)
    for number, case in enumerate(cases):
        owners_by_line: dict[int, int] = {}
        for fact in case.findings.facts:
            owners = by_pid.get(int(fact.values["pid"]), []) if fact.kind == "killed" else []
            owner = _owner(case, owners, cases)
            if owner is not None:
                owners_by_line[fact.line] = owner
                made[owner] = _marked(made[owner], fact)
        if owners_by_line:
            own_hits = tuple(hit for hit in case.findings.hits if hit.line not in owners_by_line)
            made[number] = replace(made[number], findings=replace(case.findings, hits=own_hits))
            for hit in case.findings.hits:
                if hit.line in owners_by_line:
                    made[owners_by_line[hit.line]] = _with_hit(made[owners_by_line[hit.line]], hit)
    return made


def _owner(kernel: Case, owners: Sequence[int], cases: Sequence[Case]) -> int | None:
    """Return the one process that is meant; None where nobody knows which, since two hosts have the pid."""
    others = [number for number in owners if cases[number] is not kernel]
    there = [number for number in others if kernel.host and cases[number].host == kernel.host]
    matches = there if len(there) == 1 else others
    return matches[0] if len(matches) == 1 else None


def _marked(case: Case, fact: Fact) -> Case:
    what = fact.values.get("what", "")
    if what == "Xid":
        return case
    by = _SIGNALS.get(what, signals.SIGKILL)
    is_for_memory = case.out_of_memory or what not in _SIGNALS
    place = f"{fact.log}:{fact.line}"
    return replace(case, cause="signal", signal=int(by), out_of_memory=is_for_memory, kernel_line=place)


def _with_hit(case: Case, hit: Hit) -> Case:
    """Add a line of the kernel's log to what a rank's own logs tell; the killing itself is known by then."""
    if case.out_of_memory:
        return case
    return replace(case, findings=replace(case.findings, hits=(*case.findings.hits, hit)))


_MOST_TABLES = 64
_LARGEST_TABLE = 4 << 20


def from_tables(sources: Sequence[LogFile]) -> Iterator[DeviceAddress]:
    """Read every rank table among the files; a JSON file that is none is left alone."""
    small = [source for source in sources if source.name.endswith(".json") and source.size <= _LARGEST_TABLE]
    for source in small[:_MOST_TABLES]:
        text = source.read_text(_LARGEST_TABLE)
        if not text or '"server_list"' not in text:
            continue
        try:
            table = read_table(text, source.shown)
        except RankTableUnreadable:
            continue
        for server in table.servers:
            for device in server.devices:
                yield DeviceAddress(server.server_id, device.device_id, device.device_ip, device.rank_id)


def from_hccn_tool(reads: Sequence[Read]) -> Iterator[DeviceAddress]:
    """Read what hccn_tool printed for each device of a host: its number, and then its address."""
    for read in reads:
        device = None
        for fact in read.findings.facts:
            if fact.kind == "address":
                if "device" in fact.values:
                    device = int(fact.values["device"])
                elif device is not None:
                    yield DeviceAddress(read_name(read.source.name).host, device, fact.values["address"])


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that logs tell: of each process, of addresses, and which of them could not be read."""

    cases: tuple[Case, ...] = ()
    places: tuple[DeviceAddress, ...] = ()
    notes: tuple[str, ...] = ()
    reads: tuple[Read, ...] = ()


@dataclass
class _Process:
    """The logs of one process, as they are found."""

    names: list[Name] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    error: dict[str, Any] | None = None


def read_sources(
    sources: Sequence[LogFile], progress: Progress | None = None, names_are_true: bool = False
) -> Evidence:
    """Read logs, put those of one process together, and find out who it is; of a run of ours, the names tell that."""
    reads = read_logs(list(logs_among(list(sources))), progress)
    errors = {source.name.rpartition("/")[0]: source for source in sources if Path(source.name).name == layout.ERROR}
    processes: dict[object, _Process] = {}
    for read in reads:
        _sort_in(processes, read, errors)
    identified = [(process, _who(process, names_are_true)) for process in processes.values()]
    cases = _by_rank(_with_hosts(identified))
    places = (*from_tables(sources), *from_hccn_tool(reads))
    notes = tuple(read.problem for read in reads if read.problem)
    return Evidence(tuple(assign(cases)), places, notes, tuple(reads))


def _sort_in(processes: dict[object, _Process], read: Read, errors: dict[str, LogFile]) -> None:
    """Put a log to its process; lines of other processes in a log that several share go to theirs."""
    name = read_name(read.source.name)
    facts = read.findings.facts
    pid = main_process(name, facts)
    key: object = read.source.name
    if name.is_scheduler:
        key = "scheduler"
    elif name.pid is not None or (name.rank is not None and not is_kernel_log(read.source.name)):
        key = _key(name)
    own = processes.setdefault(key, _Process())
    own.names.append(name)
    own.reads.append(read)
    if own.error is None and (source := errors.get(read.source.name.rpartition("/")[0])) is not None:
        own.error = parse_error(source.read_text() or "")
    for fact in facts:
        process, writer = own, _other_writer(fact, name, pid)
        if writer is not None:
            process = processes.setdefault(_key(writer), _Process())
            process.names.append(writer)
        process.facts.append(fact)


def _key(name: Name) -> tuple[object, ...]:
    return ("rank", name.place, name.rank) if name.pid is None else (name.place, name.pid)


def _other_writer(fact: Fact, name: Name, pid: int | None) -> Name | None:
    """Return who wrote a line of a log that several processes share; None for the process that the log is of."""
    if pid is not None and fact.pid not in (None, pid):
        return Name(name.place, pid=fact.pid, host=name.host)
    is_known = fact.pid is not None or name.pid is not None or name.rank is not None
    if fact.kind == "task" and "own_rank" in fact.values and not is_known:
        return Name(name.place, int(fact.values["own_rank"]), host=name.host)
    return None


def _who(process: _Process, names_are_true: bool) -> Identity:
    who = identify(process.names, process.facts)
    rank = next((name.rank for name in process.names if name.rank is not None), None)
    return replace(who, rank=rank) if names_are_true and rank is not None else who


def _with_hosts(identified: Sequence[tuple[_Process, Identity]]) -> list[tuple[_Process, Identity]]:
    """Give processes that do not name their host the one that all others in the same host's folder name."""
    hosts_by_label: dict[str, set[str]] = {}
    for process, who in identified:
        for label in {name.host for name in process.names if name.host}:
            hosts_by_label.setdefault(label, set()).update({who.host} - {None, label})  # type: ignore[arg-type]
    real = {label: next(iter(hosts)) for label, hosts in hosts_by_label.items() if len(hosts) == 1}
    return [(process, replace(who, host=real.get(who.host or "", who.host))) for process, who in identified]


def _by_rank(identified: Sequence[tuple[_Process, Identity]]) -> list[Case]:
    """Make a case of each process; logs of one rank are one case, and a rank that two hosts claim is nobody's."""
    cases: dict[object, Case] = {}
    for number, (process, who) in enumerate(sorted(identified, key=lambda pair: -pair[1].ranks)):
        is_scheduler = any(name.is_scheduler for name in process.names)
        rank = None if is_scheduler else who.rank
        claimant = cases.get(("rank", rank))
        if claimant is not None and rank is not None and not _fits(claimant.who, who):
            rank = None
        case = _case(process, replace(who, rank=rank), is_scheduler)
        key: object = number if rank is None else ("rank", rank)
        cases[key] = merge(cases[key], case) if key in cases else case
    return sorted(cases.values(), key=lambda case: (case.rank is None, case.rank or 0, case.log))


def _fits(first: Identity, second: Identity) -> bool:
    """Tell whether two identities with the same rank can be the same process, or two attempts of one rank."""
    same_host = first.host is None or second.host is None or first.host == second.host
    devices = [device for device in (first.device, second.device) if device is not None]
    return same_host and len(set(devices)) < 2


def _case(process: _Process, who: Identity, is_scheduler: bool) -> Case:
    device = who.device if who.device is not None else who.physical
    case = Case("", who.rank, who.host, device, error=process.error, scheduler=is_scheduler, who=who)
    logs = [replace(case, log=read.source.shown, findings=replace(read.findings, facts=())) for read in process.reads]
    case = reduce(merge, logs) if logs else replace(case, log=process.facts[0].log)
    return replace(case, findings=replace(case.findings, facts=tuple(process.facts)))
