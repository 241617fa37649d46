"""`mslaunch diagnose --list` and `--explain`: the known failures, all of them or one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from difflib import get_close_matches

from mslaunch.cli.console.tables import columns
from mslaunch.cli.parsing import common
from mslaunch.diagnose.patterns.pattern import Pattern, match_line, rows
from mslaunch.errors import RequestError
from mslaunch.text import plain

_MOST_NEAR = 3


def show(name: str | None, what: str | None, as_json: bool) -> None:
    """Print one known failure, or all where none is named."""
    if what is not None:
        raise RequestError(f"{what}: --list and --explain read no logs. Leave the folder or run out.")
    patterns = sorted((row.pattern for row in rows()), key=lambda pattern: pattern.id)
    chosen = patterns if name is None else _find(name, patterns)
    if as_json:
        common.print_json([asdict(pattern) for pattern in chosen])
    elif name is None:
        table = [(row.id, row.kind, meaning(row), " ".join(row.codes)) for row in chosen]
        print(columns([("ID", "KIND", "MEANING", "CODES"), *table]), end="")
    else:
        print("\n".join(_text(pattern) for pattern in chosen), end="")


def meaning(pattern: Pattern) -> str:
    """Return the summary of a pattern, with dots for what only a line of a log can tell."""
    return re.sub(r"(?:\{\d\})+", "…", pattern.summary)


def _find(name: str, patterns: Sequence[Pattern]) -> list[Pattern]:
    """Return the failures of an id, an error code or a line of a log.

    Of those with the same code, the ones that a log shows by the code itself come first.
    """
    code, row_id = "".join(name.split()).casefold(), "-".join(name.split()).casefold()
    exact = [row for row in patterns if row_id == row.id or code in map(str.casefold, (row.id, *row.codes))]
    if exact:
        return sorted(exact, key=lambda pattern: code not in pattern.regex.casefold())
    if (match := match_line(name)) is not None:
        return [match.pattern]
    near = []
    for text, row in _near(name, patterns):
        summary = meaning(row).rstrip(".")
        near.append(f"{text} ({summary})" if text == row.id else f"{text} ({row.id}: {summary})")
    nearest = f"; the nearest {'are' if len(near) > 1 else 'is'} {', '.join(near)}" if near else ""
    raise RequestError(f"{name!r} is not a known failure{nearest}. `mslaunch diagnose --list` shows all.")


def _near(name: str, patterns: Sequence[Pattern]) -> list[tuple[str, Pattern]]:
    """Return the ids and codes that may be meant: the same number, the same words, or nearly the same letters."""
    names: dict[str, tuple[str, Pattern]] = {}
    for row in patterns:
        for text in (row.id, *row.codes):
            if text.casefold() not in names or text in row.regex:  # the row that a log shows by the code itself
                names[text.casefold()] = (text, row)
    code = "".join(name.split()).casefold()
    same_number = [text for text in names if _number(text) == _number(code) is not None]
    same_letters = get_close_matches(code, list(names), n=_MOST_NEAR, cutoff=0.6)
    terms = [term for term in re.findall(r"\w+", name.casefold()) if len(term) > 1]
    searched = {row.id: f"{row.id} {row.summary} {row.example}".casefold() for row in patterns}
    same_terms = [row_id for row_id, text in searched.items() if terms and all(term in text for term in terms)]
    near: dict[str, tuple[str, Pattern]] = {}
    for text in (*same_number, *same_letters, *same_terms):
        near.setdefault(names[text][1].id, names[text])
    return list(near.values())[:_MOST_NEAR]


def _number(code: str) -> tuple[str, int] | None:
    """Return the letters and the number of an error code: people leave out zeros."""
    parts = re.fullmatch(r"([a-z]{1,4})(\d{1,9})", code)
    return (parts[1], int(parts[2])) if parts else None


def _text(pattern: Pattern) -> str:
    codes = f"; {', '.join(pattern.codes)}" if pattern.codes else ""
    details = [(key, str(getattr(pattern, key))) for key in ("advice", "example", "regex", "source")]
    lines = [f"{pattern.id} ({pattern.kind}{codes})", f"  {meaning(pattern)}"]
    lines += [f"  {key:<8} {value}" for key, value in details if value]
    return "".join(f"{plain(line)}\n" for line in lines)
