"""Compares runs: what is equal is counted, what differs is named, and code is a unified diff."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mslaunch.comparison.facts import CodeFile, RunFacts

SECTIONS = ("run", "settings", "config", "environment", "versions", "metrics", "speed")
"""What is compared name by name, in the order in which it is shown."""
MOST_LINES = 2000
"""Of all diffs together; the folders of the runs have the files."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A name that has not the same value in all runs; None where a run has none."""

    name: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the comparison."""

    title: str
    equal: int
    """How many names have the same value in all runs."""
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class CodeChange:
    """A file that differs between the first run and another one."""

    path: str
    run: str
    kind: str
    """changed, added or removed."""
    diff: tuple[str, ...]
    """Lines of a unified diff; none where one of the files is no text, or where there are too many."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """How runs differ; the first one is what the code of the others is compared with."""

    runs: tuple[str, ...]
    sections: tuple[Section, ...]
    code: tuple[CodeChange, ...]
    equal_files: int
    """Files that are the same in all runs."""
    without_code: tuple[str, ...]
    """Runs that have no snapshot of their code."""

    def to_dict(self) -> dict[str, Any]:
        sections = {
            section.title: {
                "equal": section.equal,
                "differences": {one.name: [_json(value) for value in one.values] for one in section.differences},
            }
            for section in self.sections
        }
        changes = [{"path": one.path, "run": one.run, "kind": one.kind, "diff": list(one.diff)} for one in self.code]
        code = {"equal": self.equal_files, "changes": changes, "without_code": list(self.without_code)}
        return {"runs": list(self.runs), **sections, "code": code}


def compare(facts: Sequence[RunFacts]) -> Comparison:
    """Compare two or more runs."""
    same = {"settings": _by_default(facts)}
    sections = tuple(_section(name, [getattr(one, name) for one in facts], same.get(name, ())) for name in SECTIONS)
    first, *others = facts
    changes: list[CodeChange] = []
    left = MOST_LINES
    for other in others:
        for change in _changes(first, other):
            shown = change.diff if len(change.diff) <= left else ()
            left -= len(shown)
            changes.append(CodeChange(change.path, change.run, change.kind, shown))
    return Comparison(
        runs=tuple(one.name for one in facts),
        sections=sections,
        code=tuple(changes),
        equal_files=_equal_files(facts),
        without_code=tuple(one.name for one in facts if one.code is None),
    )


def _section(title: str, all_values: Sequence[Mapping[str, Any]], same: Collection[str] = ()) -> Section:
    """Compare one part; names in `same` are taken as equal."""
    names = dict.fromkeys(name for values in all_values for name in values)
    rows = [Difference(name, tuple(values.get(name) for values in all_values)) for name in names]
    compared = (row for row in rows if row.name not in same)
    differing = tuple(row for row in compared if any(not _is_same(row.values[0], value) for value in row.values[1:]))
    return Section(title, len(rows) - len(differing), differing)


def _by_default(facts: Sequence[RunFacts]) -> frozenset[str]:
    """Return the settings that have their default in all runs that have them."""
    names = {name for one in facts for name in one.settings}
    given = {name for one in facts for name in one.settings if name not in one.default_settings}
    return frozenset(names - given)


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other):
        return True
    return type(one) is type(other) and bool(one == other)


def _json(value: Any) -> Any:
    """JSON has no number that is not finite."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _equal_files(facts: Sequence[RunFacts]) -> int:
    codes = [one.code for one in facts if one.code is not None]
    if len(codes) < len(facts):
        return 0
    return sum(1 for path, file in codes[0].items() if all(code.get(path) == file for code in codes[1:]))


def _changes(first: RunFacts, other: RunFacts) -> Iterator[CodeChange]:
    if first.code is None or other.code is None:
        return
    for path in sorted({*first.code, *other.code}):
        before, after = first.code.get(path), other.code.get(path)
        if before != after:
            kind = "added" if before is None else "removed" if after is None else "changed"
            yield CodeChange(path, other.name, kind, tuple(_diff(path, before, after, first.name, other.name)))


def _diff(path: str, before: CodeFile | None, after: CodeFile | None, first: str, other: str) -> Iterator[str]:
    texts = [file.text if file else "" for file in (before, after)]
    if texts[0] is None or texts[1] is None:
        return
    lines = [text.splitlines() for text in texts if text is not None]
    yield from difflib.unified_diff(lines[0], lines[1], f"{first}/{path}", f"{other}/{path}", lineterm="")


def words(value: Any) -> str:
    """A value as it is shown: numbers with seven digits at most, texts as they are."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.7g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
