"""Runs compared by what their folders hold, without their secrets: that they differ is told, and not how."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mslaunch.comparison.compare import CodeChange, Comparison, Section, compare
from mslaunch.diagnose.masked_documents import mask_texts
from mslaunch.diagnose.masked_values import mask_values
from mslaunch.store.layout import RunFolder
from mslaunch.store.run_facts import gather
from mslaunch.store.run_secrets import secrets_of

_NAMED_BY_USERS = ("config", "environment")
"""Sections whose names are those of keys and variables; the names of others are no names of secrets."""


def compare_runs(folders: Sequence[RunFolder], environment: Mapping[str, str], with_code: bool = True) -> Comparison:
    """Compare two or more runs; secrets are masked after they were compared."""
    found = compare([gather(folder, with_code) for folder in folders])
    known = dict.fromkeys(value for folder in folders for value in secrets_of(folder, environment))
    longest_first = sorted(known, key=len, reverse=True)
    return replace(
        found,
        sections=tuple(_mask_section(section, longest_first) for section in found.sections),
        code=tuple(_mask_change(change, longest_first) for change in found.code),
    )


def _mask_section(section: Section, known: Collection[str]) -> Section:
    def mask(name: str, value: Any) -> Any:
        is_named = section.title in _NAMED_BY_USERS
        return mask_values(value, known, name) if is_named else mask_texts(value, known)

    rows = (replace(row, values=tuple(mask(row.name, value) for value in row.values)) for row in section.differences)
    return replace(section, differences=tuple(rows))


def _mask_change(change: CodeChange, known: Collection[str]) -> CodeChange:
    return replace(change, diff=tuple(mask_texts(change.diff, known)))
