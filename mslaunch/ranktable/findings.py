"""What is wrong in a rank table: each finding with its place, what HCCL would answer, and the fix."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import Unreadable

Path = tuple[str | int, ...]
SIZE_LIMIT = 16 << 20  # 65,536 ranks, the most that HCCL takes, fit twice
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or may be."""

    path: Path
    what: str
    fix: str
    code: str | None = None
    """The error that HCCL would answer with."""
    severity: Literal["error", "warning"] = "error"
    line: int = 1
    column: int = 1

    def words(self, name: str) -> str:
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path)
        place = place.lstrip(".") or "the table"
        answer = f" (HCCL: {self.code})" if self.code else ""
        return f"{name}:{self.line}:{self.column}: {self.severity}: {place}: {self.what}{answer}. {self.fix}"


class TableUnreadable(Exception):
    """The text is no JSON, or none that a table can be."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.what)
        self.finding = finding


def read_json(text: str) -> Any:
    """Parse JSON; broken, repeated or bottomless input is a finding, never a traceback."""
    if len(text) > SIZE_LIMIT:
        raise TableUnreadable(Finding((), f"over {SIZE_LIMIT >> 20} MB is no rank table", "Name the right file."))
    try:
        return parse_json(text, _no_repetition)
    except Unreadable as error:
        line, column = error.line or 1, error.column or 1
        raise TableUnreadable(Finding((), str(error), "Mend the JSON.", line=line, column=column)) from None


def _no_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Unreadable(f"the field {twice!r} stands twice in one object")
    return fields


def locate(text: str, findings: Iterable[Finding]) -> list[Finding]:
    """Give every finding the line and column of its place, in one walk through the text."""
    paths = {finding.path for finding in findings if finding.path}
    places = dict(_walk(text, paths)) if paths else {}
    located = []
    for finding in findings:
        path = finding.path
        while path and path not in places:
            path = path[:-1]
        line, column = places.get(path, (finding.line, finding.column))
        located.append(replace(finding, line=line, column=column))
    return located


def _walk(text: str, paths: set[Path]) -> Iterator[tuple[Path, tuple[int, int]]]:
    """Yield where each of these places, or the last one above it, begins."""
    above = {path[:end] for path in paths for end in range(1, len(path) + 1)}
    stack: list[str | int | None] = []
    line, line_start, at = 1, 0, 0
    key: str | None = None
    expects_key = False
    for token in _TOKEN.finditer(text):
        newlines = text.count("\n", at, token.start())
        if newlines:
            line += newlines
            line_start = text.rfind("\n", 0, token.start()) + 1
        at = token.start()
        word = token[0]
        if word in "}]":
            stack.pop()
            expects_key = False
        elif word == ",":
            top = stack[-1] if stack else None
            if isinstance(top, int):
                stack[-1] = top + 1
            expects_key = not isinstance(top, int)
        elif word == ":":
            expects_key = False
        elif expects_key:
            key = json.loads(word)
            stack[-1] = key
        else:
            path = tuple(part for part in stack if part is not None)
            if path in above:
                yield path, (line, at - line_start + 1)
            if word == "{":
                stack.append(None)
                expects_key = True
            elif word == "[":
                stack.append(0)
