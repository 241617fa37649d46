"""`mslaunch compare`: what differs between runs, side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated

import typer

from mslaunch import api
from mslaunch.cli.console.tables import GAP, columns, terminal_width
from mslaunch.cli.parsing import common, run_options
from mslaunch.cli.parsing.run_options import find_runs
from mslaunch.errors import RequestError
from mslaunch.runs.compare import Comparison, Section, words
from mslaunch.text import counted, display_width, first_line, plain, shorten, shorten_middle

app = common.new_app()

WIDEST = 48
NARROWEST = 20  # a run's name as it is by default
INDENT = "  "
DIFF_SHOWN = 60
_NAMES = {"run": "run", "settings": "launch settings"}


@app.command()
def compare(
    runs: Annotated[
        list[str], typer.Argument(help="Two or more runs, as for other verbs; a sweep is all of its.", metavar="RUN...")
    ],
    diff: Annotated[
        bool, typer.Option("--diff", help=f"All lines of code that differ, not the first {DIFF_SHOWN} of a file only.")
    ] = False,
    runs_dir: run_options.RunsDir = None,
    as_json: common.Json = False,
) -> None:
    """Compare runs: configuration, code, environment, versions, final and best metrics, speed."""
    folders = [run for name in runs for run in find_runs(name, runs_dir)]
    if len(folders) < 2:
        names = ", ".join(run.name for run in folders) or "none that has begun"
        raise RequestError(f"compare: expected two or more runs, got {names}. `mslaunch ps` lists them.")
    found = api.compare(folders)
    if as_json:
        print(json.dumps(found.to_dict(), indent=1))
        return
    parts = [_describe(section, found.runs) for section in found.sections]
    print(_apart([*parts, _describe_code(found, None if diff else DIFF_SHOWN)]), end="")


def _apart(parts: list[str]) -> str:
    """Put an empty line between two parts unless both are one line."""
    text = ""
    for before, part in zip(["", *parts], parts, strict=False):
        if before and max(before.count("\n"), part.count("\n")) > 1:
            text += "\n"
        text += part
    return text


def _describe(section: Section, runs: tuple[str, ...]) -> str:
    name = _NAMES.get(section.title, section.title)
    if not section.differences:
        return f"{name}: {'the same' if section.equal else 'nothing known'}\n"
    verb = "is" if section.equal == 1 else "are"
    rest = f" ({section.equal} more {verb} the same)" if section.equal else ""
    rows = [["", *runs], *([one.name, *map(words, one.values)] for one in section.differences)]
    return f"{name}{rest}\n" + "\n".join(_lines(rows, terminal_width()))


def _lines(rows: list[list[str]], width: int | None) -> Iterator[str]:
    """Yield a table, or several below each other where a terminal has no room for all runs side by side."""
    if width is None:
        yield _table([row[:1] + [_cell(text, WIDEST) for text in row[1:]] for row in rows[1:]], rows[0])
        return
    room = width - len(INDENT)
    names = [shorten_middle(plain(row[0]), room // 3) for row in rows[1:]]
    left = room - max(map(display_width, names))
    at_once = max(1, min(len(rows[0]) - 1, left // (GAP + NARROWEST)))
    widest = max(NARROWEST, min(WIDEST, left // at_once - GAP))
    for first in range(1, len(rows[0]), at_once):
        some = slice(first, first + at_once)
        cells = [
            [name, *(_cell(text, widest) for text in row[some])] for name, row in zip(names, rows[1:], strict=True)
        ]
        yield _table(cells, ["", *(shorten_middle(plain(run), widest) for run in rows[0][some])])


def _table(rows: list[list[str]], heading: list[str]) -> str:
    return "".join(f"{INDENT}{line}\n" for line in columns([heading, *rows]).splitlines())


def _cell(text: str, widest: int) -> str:
    return shorten(first_line(text, 4 * WIDEST), widest)


def _describe_code(found: Comparison, most: int | None) -> str:
    if found.without_code:
        return f"code: not known of {', '.join(map(plain, found.without_code))}\n"
    if not found.code:
        return f"code: the same ({counted(found.equal_files, 'file')})\n"
    lines = [f"code ({counted(found.equal_files, 'file')} the same)"]
    for one in found.code:
        lines.append(f"  {one.path}: {one.kind} in {one.run}")
        shown = one.diff if most is None else one.diff[:most]
        lines += [f"    {line}" for line in shown]
        if len(shown) < len(one.diff):
            lines.append(f"    ... {len(one.diff) - len(shown)} more lines; --diff shows them")
    return "".join(f"{plain(line)}\n" for line in lines)
