"""What the kernel's log says of a process, given to the rank that it was."""

from __future__ import annotations

import signal as signals
from collections.abc import Sequence
from dataclasses import replace

from mslaunch.diagnose.case import Case
from mslaunch.diagnose.facts import Fact
from mslaunch.diagnose.scan import Hit

_SIGNALS = {
    "segfault": signals.SIGSEGV,
    "general protection": signals.SIGSEGV,
    "trap invalid opcode": signals.SIGILL,
    "hardware memory corruption": signals.SIGBUS,
}
"""The signal behind what the kernel says; all else is for lack of memory, but for what a driver says of a device."""
_OF_DEVICE = "Xid"


def assign(cases: Sequence[Case]) -> list[Case]:
    """Mark the ranks that the kernel names by their pid; the line is told as theirs, not as one of the kernel's log."""
    made = list(cases)
    by_pid: dict[int, list[int]] = {}
    for number, case in enumerate(cases):
        if case.who.pid is not None:
            by_pid.setdefault(case.who.pid, []).append(number)
    for number, case in enumerate(cases):
        told: dict[int, int] = {}
        for fact in case.findings.facts:
            owners = by_pid.get(int(fact.values["pid"]), []) if fact.kind == "killed" else []
            owner = _owner(case, owners, cases)
            if owner is not None:
                told[fact.line] = owner
                made[owner] = _marked(made[owner], fact)
        if told:
            kept = tuple(hit for hit in case.findings.hits if hit.line not in told)
            made[number] = replace(made[number], findings=replace(case.findings, hits=kept))
            for hit in case.findings.hits:
                if hit.line in told:
                    made[told[hit.line]] = _with_hit(made[told[hit.line]], hit)
    return made


def _owner(kernel: Case, owners: Sequence[int], cases: Sequence[Case]) -> int | None:
    """Return the one process that is meant; None where nobody knows which, since two hosts have the pid."""
    others = [number for number in owners if cases[number] is not kernel]
    there = [number for number in others if kernel.host and cases[number].host == kernel.host]
    found = there if len(there) == 1 else others
    return found[0] if len(found) == 1 else None


def _marked(case: Case, fact: Fact) -> Case:
    what = fact.values.get("what", "")
    if what == _OF_DEVICE:
        return case
    by = _SIGNALS.get(what)
    place = f"{fact.log}:{fact.line}"
    if by is not None:
        return replace(case, cause="signal", signal=int(by), told_by=place)
    return replace(case, cause="signal", signal=int(signals.SIGKILL), out_of_memory=True, told_by=place)


def _with_hit(case: Case, hit: Hit) -> Case:
    """Add a line of the kernel's log to what a rank's own logs tell; the killing itself is known by then."""
    if case.out_of_memory:
        return case
    return replace(case, findings=replace(case.findings, hits=(*case.findings.hits, hit)))
