"""The command line of a submitted job, as words that the launcher in the job reads: the same for every queue."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from mslaunch.settings.launch import SETTINGS
from mslaunch.settings.setting import Flag, plain
from mslaunch.settings.yaml_config import write_scalar
from mslaunch.shared.secret_names import is_secret
from mslaunch.transports.base import Command

_PLACED = ("runs_dir", "run_id", "script", "module", "command", "rank_table", "env")
"""Settings that have words of their own in every job."""
_TAKEN: dict[type, tuple[type, ...]] = {str: (str,), int: (int,), float: (int, float)}
"""The values that a flag of each kind is given as they are."""


def command_words(command: Command, config: str, left_out: Collection[str] = ()) -> list[str]:
    """Verb and options: what was asked for, without the settings `left_out`; `config` is where the job has its config.

    No value of a variable is in them: the job has those of `exported` in its environment, and secrets too.
    """
    options = [command.verb, *command.own]
    options += [f"--config={config}"] if command.config is not None else []
    options += [f"--rank-table={command.rank_table}"] if command.rank_table else []
    options += [f"--set={assignment}" for assignment in command.assignments]
    for name, value in command.flags.items():  # after the assignments, which they outweigh
        if name not in _PLACED and name not in left_out:
            options += _setting_words(name, value)
    return [*options, *(f"--env={name}" for name in command.flags.get("env") or {})]


def program_words(command: Command) -> list[str]:
    """The words that name the program, and its arguments; they come last."""
    return [*command.named, *(("--", *command.script_args) if command.script_args else ())]


def exported(command: Command) -> dict[str, str]:
    """The variables for the ranks whose values may be in a file; the job has each as MSLAUNCH_ENV_<name>."""
    variables = command.flags.get("env") or {}
    return {name: value for name, value in variables.items() if value is not None and not is_secret(name, value)}


def _setting_words(name: str, value: Any) -> list[str]:
    """A setting by its flag, where there is one that takes the value; else by --set, which takes any."""
    flag = SETTINGS[name].flag
    options = _flag_words(flag, value) if flag else []
    if options:
        return options
    return [f"--set=launch.{name}={write_scalar(plain(value))}"]


def _flag_words(flag: Flag, value: Any) -> list[str]:
    """A flag with its value, once for each of several; none where the flag does not take the value."""
    name, _, negative = flag.names[0].partition("/")
    if isinstance(value, bool):
        word = name if value else negative
        return [word] if flag.kind is bool and word else []
    if flag.kind is list:
        values = [value] if isinstance(value, str) else value
        are_texts = isinstance(values, list | tuple) and all(isinstance(text, str) for text in values)
        return [f"{name}={text}" for text in values] if are_texts else []
    return [f"{name}={value}"] if isinstance(value, _TAKEN.get(flag.kind, ())) else []
