"""Which logs a folder holds: a run of ours, msrun's log folder, or worker logs of any name."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mslaunch import layout
from mslaunch.diagnose.judge import Case
from mslaunch.diagnose.scan import Findings, scan_file
from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import Unreadable, read_text
from mslaunch.documents.typed import make

_RANK = re.compile(r"(?:worker|rank|log|device|node)[_-]?(\d+)", re.IGNORECASE)
_NUMBER = re.compile(r"(\d+)(?!.*\d)")
_EARLIER_FILES, _EARLIER_PLOG = (
    "|".join(re.escape(layout.earlier_name(name, 0)).replace("0", r"\d+") for name in names)
    for names in ((layout.LOG, layout.STACK), (layout.PLOG,))
)
_EARLIER = re.compile(rf"({_EARLIER_FILES})$|{_EARLIER_PLOG}/")  # of attempts before the last
_SUFFIXES = {".log", ".txt", ".out", ".err"}
_NOT_OUTPUT = {layout.ENV_LOG, layout.LAUNCHER_LOG, layout.STACK}


def read_folder(folder: Path) -> list[Case]:
    """Read every log of a folder into cases, by rank where the names tell it."""
    cases: dict[Any, Case] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_file() or not _is_log(path, folder):
            continue
        relative = path.relative_to(folder)
        scheduler = "sched" in str(relative).lower()
        rank = None if scheduler else _rank_of(relative)
        case = Case(str(path), rank, findings=scan_file(path), error=read_error(path.parent), scheduler=scheduler)
        key = "scheduler" if scheduler else str(relative) if rank is None else rank
        cases[key] = merge(cases[key], case) if key in cases else case
    return list(cases.values())


def merge(first: Case, second: Case) -> Case:
    """Put two logs of one rank together, its output and CANN's own log; the one that tells more gives the name."""
    main, other = (second, first) if second.findings.hits and not first.findings.raised else (first, second)
    a, b = main.findings, other.findings
    findings = Findings(
        raised=a.raised or b.raised,
        hits=(*a.hits, *b.hits),
        last_time=max((t for t in (a.last_time, b.last_time) if t is not None), default=None),
        last_step=max(a.last_step, b.last_step),
        gone_ports=(*a.gone_ports, *b.gone_ports),
        lines=a.lines,
    )
    return replace(main, error=main.error or other.error, findings=findings)


def _is_log(path: Path, folder: Path) -> bool:
    if path.name in _NOT_OUTPUT or path.suffix not in _SUFFIXES or _EARLIER.search(str(path.relative_to(folder))):
        return False
    return not {layout.CODE, layout.SCRIPTS} & set(path.relative_to(folder).parts[:-1])


def _rank_of(relative: Path) -> int | None:
    """Read the rank from a name such as worker_3.log, rank_3/log.txt or train3.log; plogs are named by pid."""
    for part in reversed(relative.parts):
        if layout.PLOG in part:
            continue
        if found := _RANK.search(part):
            return int(found[1])
    if layout.PLOG in relative.name:
        return None
    found = _NUMBER.search(relative.stem)
    return int(found[1]) if found and int(found[1]) < 100000 else None


def read_error(rank_folder: Path) -> dict[str, Any] | None:
    """Return what a rank's error.json holds; an exception of a mere thread is not why a rank ended."""
    try:
        error = make(_ErrorFile, parse_json(read_text(rank_folder / layout.ERROR, errors="replace", only_files=True)))
    except (OSError, Unreadable):
        return None
    return asdict(error) if error.thread is None else None


@dataclass(frozen=True, slots=True)
class _ErrorFile:
    """What is used of a rank's error.json."""

    type: str = ""
    message: str = ""
    traceback: str = ""
    thread: str | None = None
