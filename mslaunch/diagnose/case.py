"""What is known of one rank, and whether that shows an error of its own or only complaints about others. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mslaunch.diagnose.logs.scan import NO_STEP, Findings, Hit, Raised
from mslaunch.diagnose.waiting.line_facts import Fact
from mslaunch.diagnose.waiting.writer import Identity, first_number
from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import Unreadable, read_text
from mslaunch.documents.typed import make
from mslaunch.shared import layout
from mslaunch.shared.headlines import headline

_COMPLAINTS = ("wait", "root", "missing", "came", "task")
_MESSAGE = 40  # lines below an exception in which MindSpore and PyTorch print what CANN said, as part of the message
NEAR_THE_END = 20
"""Lines that MindSpore may still write after an exception."""
# Exceptions of a script's own logic: what stands above them in the log does not explain them.
_OF_SCRIPTS = re.compile(
    r"(?:Key|Index|Lookup|Attribute|Name|UnboundLocal|Type|Value|Assertion|ZeroDivision|Arithmetic|Overflow|Import"
    r"|ModuleNotFound|FileNotFound|FileExists|IsADirectory|NotADirectory|NotImplemented|Syntax|Indentation|Tab"
    r"|Unicode\w*|Recursion|StopIteration)Error$|StopIteration$"
)
TIME_SLICE = 0.02
"""A rank on a busy core may have to wait so many seconds before it can note when it failed."""
# What a rank raises, or is told, because a collective has failed; other exceptions are its own.
_OF_COLLECTIVES = re.compile(r"(?:\w+\.)*(?:RuntimeError|SystemExit|KeyboardInterrupt|TimeoutError|Dist\w*Error)\b")


@dataclass(frozen=True, slots=True)
class Case:
    """Everything known about one rank, or about a log whose rank is not known."""

    log: str
    rank: int | None = None
    host: str | None = None
    device: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    failed_at: float | None = None
    """When it failed by itself; None where it did not, was stopped, or nobody knows."""
    clock_error: float = 0.0
    """By how many seconds that time may be wrong, compared with the times of other hosts."""
    error: dict[str, Any] | None = None
    """What its error.json holds."""
    findings: Findings = field(default_factory=Findings)
    out_of_memory: bool = False
    child: str | None = None
    """A process of the rank that was killed before it, and by which signal."""
    child_signal: int | None = None
    kernel: str | None = None
    """What the kernel shows of kills for lack of memory, where SIGKILL has ended the case or its process."""
    scheduler: bool = False
    cause: str | None = None
    """What the launcher knows about how it failed: exception, exit, signal, stalled and so on."""
    summary: str | None = None
    who: Identity = field(default_factory=Identity)
    """What its logs say of who wrote them."""
    ended_by_itself: bool = False
    """The launcher saw it fail before anybody asked it to end."""
    kernel_line: str = ""
    """Where the kernel's log says how it ended: file and line."""


def is_cause(case: Case) -> bool:
    """Tell whether a case that failed is a reason by itself: nothing that failed later is the first failure then."""
    return not case.scheduler and not is_victim(case)


def failed(case: Case) -> bool:
    """Tell whether anything shows that a case failed or waited in vain."""
    if _is_end_known(case) or case.out_of_memory or case.error:
        return True
    return bool(case.findings.raised or first_hit(case) or complaints(case))


def complaints(case: Case) -> list[Fact]:
    """Return the lines in which a case says that it waited for a peer."""
    return [fact for fact in case.findings.facts if fact.kind in _COMPLAINTS]


def when(case: Case) -> float:
    """Return when a case failed, as far as anybody knows."""
    if case.failed_at is not None:
        return case.failed_at
    times = [raised.time for raised in case.findings.raised] + [hit.time for hit in case.findings.hits]
    return min((time for time in times if time is not None), default=float("inf"))


def is_tie(case: Case, first: Case) -> bool:
    """Tell whether a case may have failed before the first one, as far as the clocks can tell."""
    if case.failed_at is None or first.failed_at is None:
        return False
    apart = abs(case.failed_at - first.failed_at)
    if case.host == first.host:
        return apart <= TIME_SLICE
    return apart <= TIME_SLICE + case.clock_error + first.clock_error


def how_it_failed(case: Case) -> str | None:
    """Return the cause that is known; a text that was given to sys.exit() comes as an exception and is an exit."""
    if case.cause in (None, "exception") and (case.error or {}).get("type") == "SystemExit":
        return "exit"
    return case.cause


def printed_step(case: Case) -> tuple[int, int] | None:
    """Return the last epoch and step that a case printed."""
    return None if case.findings.last_step == NO_STEP else case.findings.last_step


def last_exception(case: Case) -> Raised | None:
    """Return the exception that a case ended with; others in its log were handled."""
    raised = case.findings.raised
    if not raised:
        return None
    labelled = [exception for exception in raised if exception.is_labelled]
    if labelled:
        # Of several processes, the first that failed by itself; what has no label is the launcher's.
        return next((exception for exception in labelled if not is_of_collective(exception)), labelled[0])
    cause = how_it_failed(case)
    last = raised[-1]
    if cause in (None, "scheduler", "script"):
        return last
    if cause == "exception":
        return _recorded_exception(case, (case.error or {}).get("message") or case.summary or "")
    if cause in ("exit", "signal") and case.findings.lines - last.end <= NEAR_THE_END:
        return last
    return None


def _recorded_exception(case: Case, message: str) -> Raised | None:
    """Find the exception of a message in the log: one with the same text, else the last where its type is the same."""
    text = headline(message)
    for raised in reversed(case.findings.raised):
        if text and raised.summary.endswith(text):
            return raised
    last = case.findings.raised[-1]
    if case.findings.lines - last.end <= _MESSAGE and _type_of(last.summary) == _type_of(message):
        return last
    return None


def _type_of(summary: str) -> str:
    """Return the type of an exception, by its summary: Python prints it with its module, error.json without."""
    return summary.partition(":")[0].strip().rpartition(".")[2]


def evidence(case: Case) -> list[Hit]:
    """Return the known patterns that may explain the end of a case.

    A log holds more: errors that a script has handled, and lines that only sound like an error.
    """
    hits = [hit for hit in case.findings.hits if hit.match.pattern.kind != "healthy"]
    last = last_exception(case)
    if case.scheduler or (last is None and not _is_end_known(case)):
        return hits
    return [hit for hit in hits if _explains(hit, case, last)]


def _is_end_known(case: Case) -> bool:
    return case.cause is not None or case.failed_at is not None


def _explains(hit: Hit, case: Case, last: Raised | None) -> bool:
    """Tell whether a line may explain how its process ended: by the exception `last`, or without one."""
    if last is None:
        return hit.log != case.log or hit.is_from_runtime or case.findings.lines - hit.line <= NEAR_THE_END
    if hit.log == last.log and last.line <= hit.line <= last.end + _MESSAGE:
        return True
    is_beside = hit.match.pattern.kind == "victim" and not is_of_collective(last)
    if is_beside or _OF_SCRIPTS.match(_type_of(last.summary)):
        return False
    if hit.log != last.log or hit.is_from_runtime:
        return True
    if not 0 <= last.line - hit.line <= NEAR_THE_END:
        return False
    return any(raised.is_of_child and raised.line <= hit.line <= raised.end for raised in case.findings.raised)


def first_hit(case: Case) -> Hit | None:
    """Return the telling pattern of a log: the first cause, else the first victim."""
    hits = evidence(case)
    causes = [hit for hit in hits if hit.match.pattern.kind == "cause"]
    return next(iter(causes or hits), None)


def is_victim(case: Case) -> bool:
    """A case whose own words are only about others: time-outs, lost heartbeats, sockets that nobody answered."""
    if case.out_of_memory or case.cause not in (None, "exception", "exit"):
        return False
    if waits := complaints(case):
        return not _has_own_error(case, waits)
    hit = first_hit(case)
    if hit is None or hit.match.pattern.kind != "victim":
        return False
    return all(_speaks_of(raised, case) for raised in _unhandled(case))


def _unhandled(case: Case) -> Sequence[Raised]:
    """Return the exceptions of a log that may count: the last one, where somebody saw how the process ended."""
    if not _is_end_known(case):
        return case.findings.raised
    last = last_exception(case)
    return () if last is None else (last,)


def _has_own_error(case: Case, waits: list[Fact]) -> bool:
    """Tell whether something went wrong before a case began to wait; what it prints afterwards is a consequence."""
    for hit in evidence(case):
        if hit.match.pattern.kind == "cause" and _is_before(hit, waits):
            return True
    for raised in _unhandled(case):
        if not is_of_collective(raised):
            return True
        if _is_before(raised, waits) and not any(tells(raised, wait.log, wait.line) for wait in waits):
            return True
    return False


def is_of_collective(raised: Raised) -> bool:
    """Tell whether an exception is one that a failed collective raises on ranks that did nothing wrong."""
    return _OF_COLLECTIVES.match(raised.summary) is not None


def _is_before(error: Hit | Raised, waits: list[Fact]) -> bool:
    """Compare lines of the same log by their place, others by their time."""
    lines = [wait.line for wait in waits if wait.log == error.log]
    if lines:
        return error.line < min(lines)
    times = [wait.time for wait in waits if wait.time is not None]
    return bool(times) and error.time is not None and error.time < min(times)


def _speaks_of(raised: Raised, case: Case) -> bool:
    """Tell whether an exception is itself the victim's message, not an error beside it."""
    hits = (hit for hit in case.findings.hits if hit.match.pattern.kind == "victim")
    return any(tells(raised, hit.log, hit.line) for hit in hits)


def tells(raised: Raised, log: str, line: int) -> bool:
    """Tell whether a line belongs to the message of an exception, which goes on below where a collective failed."""
    below = _MESSAGE if is_of_collective(raised) else 1
    return raised.log == log and raised.line <= line <= raised.end + below


def merge(first: Case, second: Case) -> Case:
    """Put two logs of one rank together, its output and CANN's own log; the one that tells more gives the name."""
    main, other = first, second
    if second.findings.hits and not first.findings.raised:
        main, other = second, first
    a, b = main.findings, other.findings
    findings = Findings(
        raised=a.raised or b.raised,
        hits=(*a.hits, *b.hits),
        last_time=max((t for t in (a.last_time, b.last_time) if t is not None), default=None),
        last_step=max(a.last_step, b.last_step),
        lines=a.lines,
        facts=(*a.facts, *b.facts),
    )
    return replace(
        main,
        error=main.error or other.error,
        findings=findings,
        who=_merge_identities(main.who, other.who),
        host=main.host or other.host,
        device=first_number(main.device, other.device),
    )


def _merge_identities(first: Identity, second: Identity) -> Identity:
    """Put together what two logs of one rank say of it."""
    better, other = first, second
    if second.ranks > first.ranks:
        better, other = second, first
    return replace(
        better,
        host=better.host or other.host,
        device=first_number(better.device, other.device),
        physical=first_number(better.physical, other.physical),
        pid=first_number(better.pid, other.pid),
        addresses=better.addresses | other.addresses,
        groups={**other.groups, **better.groups},
        sizes={**other.sizes, **better.sizes},
        root=better.root or other.root,
        root_group=better.root_group or other.root_group,
    )


def read_error(rank_folder: Path) -> dict[str, Any] | None:
    """Return what a rank's error.json holds; an exception of a mere thread is not why a rank ended."""
    try:
        return parse_error(read_text(rank_folder / layout.ERROR, errors="replace", only_files=True))
    except (OSError, Unreadable):
        return None


def parse_error(text: str) -> dict[str, Any] | None:
    """Return what the text of an error.json says."""
    try:
        error = make(_ErrorFile, parse_json(text))
    except Unreadable:
        return None
    return asdict(error) if error.thread is None else None


@dataclass(frozen=True, slots=True)
class _ErrorFile:
    """What is used of a rank's error.json."""

    type: str = ""
    message: str = ""
    traceback: str = ""
    thread: str | None = None
