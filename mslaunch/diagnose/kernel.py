"""What the kernel's log says of a process, given to the rank that it was."""

from __future__ import annotations

import signal as signals
from collections.abc import Sequence
from dataclasses import replace

from mslaunch.diagnose.case import Case
from mslaunch.diagnose.facts import Fact

_SEGFAULT = "segfault"


def assign(cases: Sequence[Case]) -> list[Case]:
    """Mark the ranks that the kernel has killed; the line is told as theirs, not as one of the kernel's log."""
    made = list(cases)
    by_pid: dict[int, list[int]] = {}
    for number, case in enumerate(cases):
        if case.who.pid is not None:
            by_pid.setdefault(case.who.pid, []).append(number)
    for number, case in enumerate(cases):
        told = set()
        for fact in case.findings.facts:
            owners = by_pid.get(int(fact.values["pid"]), []) if fact.kind == "killed" else []
            if len(owners) == 1 and owners[0] != number:  # the same number on two hosts is nobody's
                made[owners[0]] = _killed(made[owners[0]], fact)
                told.add(fact.line)
        if told:
            hits = tuple(hit for hit in case.findings.hits if hit.line not in told)
            made[number] = replace(made[number], findings=replace(case.findings, hits=hits))
    return made


def _killed(case: Case, fact: Fact) -> Case:
    if fact.values.get("what") == _SEGFAULT:
        return replace(case, cause="signal", signal=int(signals.SIGSEGV))
    return replace(case, cause="signal", signal=int(signals.SIGKILL), out_of_memory=True)
