"""Command lines of verbs that launch: mslaunch's options, then the program, then what is the program's."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from mslaunch.cli.parsing import msrun_options
from mslaunch.errors import Disagreement, ExitCode, RequestError
from mslaunch.launcher.read import Request
from mslaunch.plan.methods import METHODS
from mslaunch.settings.environment import RANKS_ONLY
from mslaunch.settings.launch import SETTINGS, settings_of
from mslaunch.transports.registry import BUILT_IN

EPILOG = "What follows the script is the script's. mslaunch's options go before it."
TEXT_LIMIT = 1 << 20
_NEVER_TO_A_SCRIPT = ("--dry-run",)  # a job would start that was not to start


_FLAGS = {name: setting.flag for name, setting in SETTINGS.items() if setting.flag}
_CHOICES = {"method": tuple(METHODS), "transport": tuple(BUILT_IN)}


def option(name: str) -> Any:
    """The option of a setting, as the settings table declares it."""
    flag, setting = _FLAGS[name], SETTINGS[name]
    sentences = [setting.help or setting.description]
    if setting.absent:
        sentences.append(f"By default {setting.absent}.")
    if name in _CHOICES:
        sentences.append(f"One of {', '.join(_CHOICES[name])}, or a plug-in's.")
    return typer.Option(*flag.names, help=" ".join(sentences), show_default=False, metavar=flag.metavar)


ConfigFile = Annotated[str | None, typer.Option("--config", "-c", help="The job's YAML.", metavar="FILE")]
_MODULE = typer.Option(
    "-m", "--module", help="What follows is a Python module, as for `python -m`.", show_default=False
)
_SET = typer.Option("--set", help="Override one key of the config.", metavar="KEY=VALUE")
_LOCAL_WORKERS = typer.Option("--local_worker_num", help="As in msrun: ranks of each node.", hidden=True)
_OWN: dict[str, Any] = {
    "is_module": Annotated[bool, _MODULE],
    "config": ConfigFile,
    "assignments": Annotated[list[str] | None, _SET],
    "local_workers": Annotated[int | None, _LOCAL_WORKERS],
}
_KINDS: dict[Any, Any] = {list: list[str]}
LAUNCH: dict[str, Any] = _OWN | {
    name: Annotated[_KINDS.get(flag.kind, flag.kind) | None, option(name)] for name, flag in _FLAGS.items()
}
"""What every verb that launches takes."""


def launching(app: typer.Typer) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Make a function the verb of an app, with the options of every launch: they arrive as further keywords."""

    def add(verb: Callable[..., object]) -> Callable[..., object]:
        context, *own, _ = inspect.signature(verb, eval_str=True).parameters.values()
        shared = [inspect.Parameter(name, context.kind, default=None, annotation=kind) for name, kind in LAUNCH.items()]
        parameters = [context, *shared, *own]
        verb.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        verb.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return app.command(epilog=EPILOG, options_metavar="[OPTIONS] [PROGRAM [ARGS]...]")(verb)

    return add


@dataclass(frozen=True, slots=True)
class ProgramWords:
    """What a command line says about the program."""

    argv: tuple[str, ...] = ()  # the program and its arguments, where it was named before any `--`
    args: tuple[str, ...] = ()
    """What follows a `--` that nothing stands before: arguments, or the program and its arguments."""
    notes: tuple[str, ...] = ()


def call(
    app: typer.Typer,
    args: list[str],
    prog_name: str,
    table: msrun_options.Table = msrun_options.MSRUN,
    ours_first: bool = True,
) -> object:
    """Call a verb's app with mslaunch's options; the program and its arguments become the context's object.

    `table` says what the options of another launcher mean; with `ours_first`, mslaunch's own of the same name win.
    """
    command: Any = typer.main.get_command(app)
    for parameter in command.get_params(typer.Context(command, **command.context_settings)):
        parameter.process_value = partial(_read_value, parameter, parameter.process_value)
    takes_value = option_values(command)
    translated = msrun_options.translate(args, table, takes_value, ours_first)
    own, program = split(translated.words, takes_value, translated.notes)
    try:
        return command(own, obj=program, prog_name=prog_name, standalone_mode=False)
    except Exception as error:
        if not hasattr(error, "show"):  # not one about options
            raise
        error.show()
        print(EPILOG, file=sys.stderr)
        return ExitCode.WRONG_REQUEST


def _read_value(parameter: Any, process: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:
    """Read what needs no adapter of pydantic, which typer would load and build for each of 50 options (60 ms)."""
    flag = _FLAGS.get(parameter.name)
    kind = flag.kind if flag else {"config": str, "assignments": list}.get(parameter.name)
    if value is None and not parameter.required:
        return () if getattr(parameter, "multiple", False) else None
    if kind is str and isinstance(value, str):
        return value
    if kind is list and isinstance(value, (list, tuple)):
        return list(value)
    if kind is int and isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)
    return process(context, value)


def option_values(command: Any) -> dict[str, bool]:
    """Return every option of a verb, and whether a value follows it."""
    takes_value = {"--help": False}
    for option in command.params:
        if option.param_type_name == "option":
            takes_value |= dict.fromkeys((*option.opts, *option.secondary_opts), not option.is_flag)
    return takes_value


def split(
    argv: Sequence[str], takes_value: Mapping[str, bool], notes: tuple[str, ...] = ()
) -> tuple[list[str], ProgramWords]:
    """Split a command line into mslaunch's own words and what names the program, with `notes` about both.

    `train.py --workers 2 -- --lr 0.1` has its options between the script and `--`, and still works.
    """
    end = _end_of_options(argv, takes_value)
    own, rest = list(argv[:end]), argv[end:]
    if not rest or rest[0] == "--":
        return own, ProgramWords(args=tuple(rest[1:]), notes=notes)
    program, *args = rest
    if "--" in args:
        between, after = args[: args.index("--")], args[args.index("--") + 1 :]
        names = {word.partition("=")[0] for word in between if word.startswith("-")}
        if _end_of_options(between, takes_value) >= len(between) and names <= takes_value.keys():
            return [*own, *between], ProgramWords((program, *after), notes=notes)
    if args:
        notes = (*notes, *_misplaced(program, args, takes_value))
    return own, ProgramWords(tuple(rest), notes=notes)


def _end_of_options(argv: Sequence[str], takes_value: Mapping[str, bool]) -> int:
    at = 0
    while at < len(argv) and msrun_options.is_option(argv[at]):
        at += 2 if takes_value.get(argv[at]) else 1
    return at


def _misplaced(program: str, args: Sequence[str], takes_value: Mapping[str, bool]) -> list[str]:
    """Say which of mslaunch's options a script gets that does not know them, as far as its text shows."""
    path = Path(next((word for word in (program, *args) if word.endswith(".py")), program))
    try:
        if path.stat().st_size > TEXT_LIMIT or not path.is_file():
            return []
        text = path.read_text()
    except (OSError, ValueError):
        return []
    notes = []
    for at, word in enumerate(args):
        name = word.partition("=")[0]
        if name not in takes_value or name in text or name.strip("-").replace("-", "_") in text:
            continue
        if name in _NEVER_TO_A_SCRIPT:
            raise RequestError(f"{name} after the script is the script's. Put it before {program}.")
        value = f" {args[at + 1]}" if takes_value[name] and "=" not in word and at + 1 < len(args) else ""
        notes.append(f"{word}{value} after the script is the script's; put mslaunch's options before it")
    return notes


def request(typed: Mapping[str, Any], program: ProgramWords, **more: Any) -> Request:
    """Return what is asked for: the settings that were typed, the program as one of them, and its arguments."""
    flags = {name: value for name, value in typed.items() if name not in _OWN and value not in (None, [], ())}
    if typed["local_workers"] is not None:
        flags |= _ranks(typed["workers"], typed["local_workers"], typed["nnodes"])
    if "env" in flags:
        flags["env"] = _variables(typed["env"])
    argv = program.argv or (program.args if typed["is_module"] else ())
    if typed["is_module"] and not argv:
        raise RequestError("-m: which module? Write it after all options, for example -m pkg.train.")
    if argv and "script" in flags:
        raise RequestError(f"--script {flags['script']} and {argv[0]} both name the program. Leave one out.")
    if argv and argv[0].endswith((".yaml", ".yml")):
        raise RequestError(f"{argv[0]} is no script. Did you mean --config {argv[0]}?")
    args = program.args
    if argv:
        settings_of_program, args = settings_of(argv, bool(typed["is_module"]))
        flags |= settings_of_program
    more = {"args_may_name": not argv, "notes": program.notes, **more}
    return Request(typed["config"], tuple(typed["assignments"] or ()), flags, args, **more)


def _ranks(workers: int | None, local: int, nnodes: str | None) -> dict[str, int]:
    """How many ranks in all and on each node: on one machine, the ranks of a node are all of them."""
    if workers is not None and local > workers:
        fix = "A node cannot have more ranks than the job."
        raise Disagreement("number of ranks", (workers, "--workers"), (local, "--local_worker_num"), fix)
    is_one_node = nnodes in (None, "1", "1:1") and workers in (None, local)
    return {"workers": local} if is_one_node else {"workers_per_node": local}


def _variables(pairs: list[str]) -> dict[str, str | None]:
    """Read `--env K=V` and `--env K`."""
    values: dict[str, str | None] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name.isidentifier() or not name.isascii():
            raise RequestError(f"--env {pair!r}: {name!r} is not the name of a variable. Write --env NAME=VALUE.")
        values[name] = value if equals else os.environ.get(f"{RANKS_ONLY}{name}")
    return values
