"""`mslaunch diagnose --list` and `--explain`: the known failures, all of them or one."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from difflib import get_close_matches

from mslaunch.cli import basics
from mslaunch.diagnose.pattern_tables import Pattern
from mslaunch.diagnose.patterns import rows
from mslaunch.errors import RequestError
from mslaunch.words import plain

_DETAILS = ("advice", "example", "regex", "source")


def show(name: str | None, what: str | None, as_json: bool) -> None:
    """Print one known failure, or all where none is named."""
    if what is not None:
        raise RequestError(f"{what}: --list and --explain read no logs. Leave the folder or run out.")
    patterns = sorted((row.pattern for row in rows()), key=lambda pattern: pattern.id)
    chosen = patterns if name is None else _find(name, patterns)
    if as_json:
        print(json.dumps([asdict(pattern) for pattern in chosen], indent=1))
    elif name is None:
        print(basics.columns([("ID", "KIND", "MEANING", "CODES"), *map(_row, chosen)]), end="")
    else:
        print("\n".join(_text(pattern) for pattern in chosen), end="")


def meaning(pattern: Pattern) -> str:
    """Return the summary of a pattern, with dots for what only a line of a log can tell."""
    return re.sub(r"(?:\{\d\})+", "…", pattern.summary)


def _row(pattern: Pattern) -> tuple[str, ...]:
    return pattern.id, pattern.kind, meaning(pattern), " ".join(pattern.codes)


def _find(name: str, patterns: Sequence[Pattern]) -> list[Pattern]:
    """Return the failures of an id or an error code; those that a log shows by the code itself come first."""
    wanted = "".join(name.split()).casefold()
    found = [pattern for pattern in patterns if wanted in (pattern.id, *(code.casefold() for code in pattern.codes))]
    if not found:
        known = {text.casefold(): text for pattern in patterns for text in (pattern.id, *pattern.codes)}
        near = [known[text] for text in get_close_matches(wanted, list(known), n=3, cutoff=0.6)]
        nearest = f"; the nearest {'are' if len(near) > 1 else 'is'} {', '.join(near)}" if near else ""
        raise RequestError(f"{name!r} is no known failure{nearest}. `mslaunch diagnose --list` shows all.")
    return sorted(found, key=lambda pattern: wanted not in pattern.regex.casefold())


def _text(pattern: Pattern) -> str:
    codes = f"; {', '.join(pattern.codes)}" if pattern.codes else ""
    details = [(key, str(getattr(pattern, key))) for key in _DETAILS]
    lines = [f"{pattern.id} ({pattern.kind}{codes})", f"  {meaning(pattern)}"]
    lines += [f"  {key:<8} {value}" for key, value in details if value]
    return "".join(f"{plain(line)}\n" for line in lines)
