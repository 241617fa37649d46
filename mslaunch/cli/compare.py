"""`mslaunch compare`: what differs between runs, side by side."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from mslaunch.cli.console.tables import GAP, columns, terminal_width
from mslaunch.cli.parsing import common
from mslaunch.errors import RequestError
from mslaunch.run.compare import Comparison, Section, compare_runs, format_value
from mslaunch.text import counted, display_width, first_line, plain, shorten, shorten_middle

app = common.new_app()

WIDEST = 48
NARROWEST = 20  # a run's name as it is by default
INDENT = "  "
FEW_LINES = 60


@app.command()
def compare(
    runs: Annotated[
        list[str], typer.Argument(help="Two or more runs, as for other verbs; a sweep is all of its.", metavar="RUN...")
    ],
    diff: Annotated[
        bool, typer.Option("--diff", help=f"All lines of code that differ, not the first {FEW_LINES} of a file only.")
    ] = False,
    runs_dir: common.RunsDir = None,
    as_json: common.Json = False,
) -> None:
    """Compare runs: configuration, code, environment, versions, final and best metrics, speed."""
    folders = [run.folder for name in runs for run in common.find_runs(name, runs_dir)]
    if len(folders) < 2:
        names = ", ".join(folder.name for folder in folders) or "none that has begun"
        raise RequestError(f"compare: expected two or more runs, got {names}. `mslaunch ps` lists them.")
    comparison = compare_runs(folders, os.environ)
    if as_json:
        common.print_json(comparison.to_dict())
        return
    parts = [_describe(section, comparison.runs) for section in comparison.sections]
    parts.append(_describe_code(comparison, None if diff else FEW_LINES))
    print(_join(parts), end="")


def _join(parts: list[str]) -> str:
    """Join parts with an empty line between two of them unless both have one line."""
    text = ""
    for before, part in zip(["", *parts], parts, strict=False):
        if before and max(before.count("\n"), part.count("\n")) > 1:
            text += "\n"
        text += part
    return text


def _describe(section: Section, runs: tuple[str, ...]) -> str:
    title = "launch settings" if section.title == "settings" else section.title
    if not section.differences and not section.equal:
        return f"{title}: nothing known\n"
    if not section.differences:
        return f"{title}: the same\n"
    if section.equal:
        title += f" ({section.equal} more {'is' if section.equal == 1 else 'are'} the same)"
    rows = [[row.name, *map(format_value, row.values)] for row in section.differences]
    return f"{title}\n" + "\n".join(_lines(runs, rows, terminal_width()))


def _lines(heading: Sequence[str], rows: list[list[str]], width: int | None) -> Iterator[str]:
    """Yield a table, or several below each other where a terminal has no room for all runs side by side."""
    at_once, widest = len(heading), WIDEST
    if width is not None:
        room = width - len(INDENT)
        rows = [[shorten_middle(plain(row[0]), room // 3), *row[1:]] for row in rows]
        left = room - max(display_width(row[0]) for row in rows)
        at_once = max(1, min(len(heading), left // (GAP + NARROWEST)))
        widest = max(NARROWEST, min(WIDEST, left // at_once - GAP))
        heading = [shorten_middle(plain(run), widest) for run in heading]
    for first in range(0, len(heading), at_once):
        table = [["", *heading[first : first + at_once]]]
        for name, *values in rows:
            cells = (first_line(text, 4 * WIDEST) for text in values[first : first + at_once])
            table.append([name, *(shorten(cell, widest) for cell in cells)])
        yield "".join(f"{INDENT}{line}\n" for line in columns(table).splitlines())


def _describe_code(comparison: Comparison, most: int | None) -> str:
    equal = counted(comparison.equal_files, "file")
    if comparison.without_code:
        return f"code: not known of {', '.join(map(plain, comparison.without_code))}\n"
    if not comparison.code:
        return f"code: the same ({equal})\n"
    lines = [f"code ({equal} the same)"]
    for change in comparison.code:
        lines.append(f"  {change.path}: {change.kind} in {change.run}")
        lines += [f"    {line}" for line in change.diff[:most]]
        if most is not None and len(change.diff) > most:
            lines.append(f"    ... {len(change.diff) - most} more lines; --diff shows them")
    return "".join(f"{plain(line)}\n" for line in lines)
