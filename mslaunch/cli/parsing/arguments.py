"""Command lines of verbs that launch: mslaunch's options, then the program, then what is the program's."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer

from mslaunch.cli.parsing import msrun_options
from mslaunch.errors import ExitCode, RequestError

EPILOG = "What follows the script is the script's. mslaunch's options go before it."
USAGE = "[OPTIONS] [PROGRAM [ARGS]...]"
TEXT_LIMIT = 1 << 20
_NEVER_TO_A_SCRIPT = ("--dry-run",)  # a job would start that was not to start


@dataclass(frozen=True, slots=True)
class ProgramWords:
    """What a command line says about the program."""

    argv: tuple[str, ...] = ()
    """The program and its arguments, where it was named before any `--`."""
    args: tuple[str, ...] = ()
    """What follows a `--` that nothing stands before: arguments, or the program and its arguments."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Cut:
    own: list[str]
    program: list[str]
    after_dashes: list[str]


def call(
    app: Any, args: list[str], table: msrun_options.Table = msrun_options.MSRUN, ours_first: bool = True, **how: Any
) -> object:
    """Call a verb's app with mslaunch's options; the program and its arguments become the context's object.

    `table` says what the options of another launcher mean; with `ours_first`, mslaunch's own of the same name win.
    """
    command = typer.main.get_command(app)
    takes_value = option_values(command)
    translated = msrun_options.translate(args, table, takes_value, ours_first)
    own, program = split(translated.words, takes_value)
    program = replace(program, notes=(*translated.notes, *program.notes))
    try:
        return command(own, obj=program, **{**how, "standalone_mode": False})
    except Exception as error:
        if not hasattr(error, "show"):  # not one about options
            raise
        error.show()
        print(EPILOG, file=sys.stderr)
        return ExitCode.WRONG_REQUEST


def option_values(command: Any) -> dict[str, bool]:
    """Return every option of a verb, and whether a value follows it."""
    takes_value = {"--help": False}
    for option in command.params:
        if option.param_type_name == "option":
            takes_value |= dict.fromkeys((*option.opts, *option.secondary_opts), not option.is_flag)
    return takes_value


def split(argv: Sequence[str], takes_value: Mapping[str, bool]) -> tuple[list[str], ProgramWords]:
    """Split a command line into mslaunch's own words and what names the program.

    `train.py --workers 2 -- --lr 0.1` has its options between the script and `--`, and still works.
    """
    cut = _cut(argv, takes_value)
    if not cut.program:
        return cut.own, ProgramWords(args=tuple(cut.after_dashes))
    program, *rest = cut.program
    if "--" in rest:
        between, after = rest[: rest.index("--")], rest[rest.index("--") + 1 :]
        if _are_ours(between, takes_value):
            return [*cut.own, *between], ProgramWords((program, *after))
    notes = tuple(_misplaced(program, rest, takes_value))
    return cut.own, ProgramWords((program, *rest), notes=notes)


def _cut(argv: Sequence[str], takes_value: Mapping[str, bool]) -> _Cut:
    at = 0
    while at < len(argv) and msrun_options.is_option(argv[at]):
        at += 2 if takes_value.get(argv[at]) else 1
    own, rest = list(argv[:at]), list(argv[at:])
    if rest[:1] == ["--"]:
        return _Cut(own, [], rest[1:])
    return _Cut(own, rest, [])


def _are_ours(argv: Sequence[str], takes_value: Mapping[str, bool]) -> bool:
    cut = _cut(argv, takes_value)
    names = [word.partition("=")[0] for word in cut.own if word.startswith("-")]
    return not cut.program and all(name in takes_value for name in names)


def _misplaced(program: str, rest: Sequence[str], takes_value: Mapping[str, bool]) -> list[str]:
    """Say which of mslaunch's options a script gets that does not know them, as far as its text shows."""
    text = _text(next((word for word in (program, *rest) if word.endswith(".py")), program))
    if text is None:
        return []
    notes = []
    for at, word in enumerate(rest):
        name = word.partition("=")[0]
        if name not in takes_value or name in text or name.strip("-").replace("-", "_") in text:
            continue
        if name in _NEVER_TO_A_SCRIPT:
            raise RequestError(f"{name} after the script is the script's. Put it before {program}.")
        value = f" {rest[at + 1]}" if takes_value[name] and "=" not in word and at + 1 < len(rest) else ""
        notes.append(f"{word}{value} after the script is the script's; put mslaunch's options before it")
    return notes


def _text(name: str) -> str | None:
    path = Path(name)
    try:
        if path.stat().st_size > TEXT_LIMIT or not path.is_file():
            return None
        return path.read_text()
    except (OSError, ValueError):
        return None


def typed_flags(**flags: Any) -> dict[str, Any]:
    """Keep the flags that were typed."""
    return {name: value for name, value in flags.items() if value not in (None, {})}
