"""The command lines of the documentation: collected from its code blocks, and parsed as the command line does."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from mslaunch.cli import VERBS
from mslaunch.cli.parsing.msrun_options import MSRUN, TORCHRUN, translate
from mslaunch.cli.parsing.options import option_values, split
from tests.conftest import ROOT

GENERATED = {"cli.md"}
PATTERNS = ("README*.md", "docs/*.md", "docs/zh/*.md", "examples/*/*.md", "rank_tables/*.md")
PAGES = sorted(path for pattern in PATTERNS for path in ROOT.glob(pattern) if path.name not in GENERATED)
LAUNCHING = {"train": MSRUN, "sweep": MSRUN, "infer": MSRUN, "render": MSRUN, "msrun": MSRUN, "torchrun": TORCHRUN}
"""Verbs that take a program, with the options of other launchers that they understand."""
PASTED = ("msrun", "torchrun")
"""Verbs that are `train` with the options of another launcher."""
PLACEHOLDERS = {"[RUN|DIR]": "", "[RUN]": "", "[--json]": "--json", " ... ": " ", "FILE|DIR": "ckpt"}


def code_lines(text: str) -> Iterator[str]:
    """The lines of all code blocks, indented or fenced; a line that ends in a backslash is joined with the next."""
    fenced, joined = False, ""
    for line in text.splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            joined += line.strip().removesuffix("\\")
            if not line.endswith("\\"):
                yield joined
                joined = ""


def command_of(line: str) -> list[str] | None:
    """The words after `mslaunch`, where a line starts it: behind variables, or behind salloc."""
    for placeholder, meaning in PLACEHOLDERS.items():
        line = line.replace(placeholder, meaning)
    if not re.match(r"(\w+=\S+ )*(salloc [^#]*)?mslaunch [a-z-]", line):
        return None
    words = shlex.split(line, comments=True)
    words = words[words.index("mslaunch") + 1 :]
    return words[: words.index(">")] if ">" in words else words


def commands(path: Path) -> list[list[str]]:
    found = (command_of(line) for line in code_lines(path.read_text()))
    return [words for words in found if words]


def inline_commands(path: Path) -> list[list[str]]:
    """What code markup in the text shows; brackets are left out, a word such as RUN stays."""
    text = "\n".join(line for line in path.read_text().splitlines() if not line.startswith("    "))
    shown = re.findall(r"`mslaunch ([a-z-][^`]*)`", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))
    return [re.sub(r"[\[\]]", "", words).split() for words in shown]


def command_for(verb: str) -> Any:
    """The command of a verb, or its group of commands."""
    module = importlib.import_module(f"mslaunch.cli.{'train' if verb in PASTED else verb.replace('-', '_')}")
    return typer.main.get_command(getattr(module, "_app", None) or module.app)


def options_of(verb: str) -> set[str]:
    """Every option of a verb, and of the verbs below it."""
    command = command_for(verb)
    every = (command, *getattr(command, "commands", {}).values())
    own = {name for one in every for option in one.params for name in (*option.opts, *option.secondary_opts)}
    return own | {f"--{name}" for name in LAUNCHING.get(verb, {})}


def parse(words: list[str]) -> None:
    """Parse a command line as the command does, calling nothing; raises where a verb or an option is wrong."""
    verb, *rest = words
    if verb == "--version":
        return
    assert verb in VERBS, verb
    command = command_for(verb)
    if verb in LAUNCHING:
        known = option_values(command)
        rest, _ = split(translate(rest, LAUNCHING[verb], known, verb not in PASTED).words, known)
    with command.make_context(verb, rest) as context:
        if hasattr(command, "resolve_command"):
            _, found, arguments = command.resolve_command(context, rest)
            found.make_context(found.name, arguments, parent=context).close()
