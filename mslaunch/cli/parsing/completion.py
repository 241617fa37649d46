"""Completion in bash, zsh and fish: a script for each, which asks `mslaunch --complete` for what fits.

Verbs and runs are found without loading anything else; a verb is loaded only where its options are asked for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from mslaunch.errors import ExitCode
from mslaunch.shared import layout

SCRIPTS = {
    "bash": """_mslaunch() {
    local IFS=$'\\n'
    COMPREPLY=($(mslaunch --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _mslaunch mslaunch
""",
    "zsh": """#compdef mslaunch
_mslaunch() {
    local -a found
    found=("${(@f)$(mslaunch --complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${found[1]}" ]]; then compadd -a found; else _files; fi
}
if [[ "${funcstack[1]}" = _mslaunch ]]; then _mslaunch "$@"; else compdef _mslaunch mslaunch; fi
""",
    "fish": """complete -c mslaunch -a '(mslaunch --complete (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
""",
}
NAMES_A_RUN = (
    *("status", "watch", "logs", "attach", "outputs", "stop"),
    *("diagnose", "stacks", "collect", "note", "compare", "export"),
)
MOST_RUNS = 200
_HINTS = {
    "bash": "Open a new shell to use it (it needs the package bash-completion).",
    "zsh": "Put `fpath+=({folder}); autoload -Uz compinit; compinit` into ~/.zshrc if that is not there yet.",
    "fish": "Open a new shell to use it.",
}


def complete(argv: list[str], verbs: Mapping[str, str], load: Callable[[str], Any]) -> list[str]:
    """Return what may stand in place of the last word."""
    *before, last = argv or [""]
    if not before:
        return _beginning(last, [*verbs, "help", "--help", "--version"])
    verb = before[0]
    if verb == "help" and len(before) == 1:
        return _beginning(last, verbs)
    if verb not in verbs or "--" in before:
        return []
    if last.startswith("-"):
        return _beginning(last, _options(load(verb), before[1:]))
    if verb in NAMES_A_RUN and not before[-1].startswith("-"):
        return _beginning(last, _runs(before))
    return _beginning(last, _options(load(verb), before[1:], commands=True)) if len(before) == 1 else []


def _beginning(word: str, choices: Any) -> list[str]:
    return [choice for choice in choices if choice.startswith(word)]


def _options(module: Any, before: list[str], commands: bool = False) -> list[str]:
    """The options, or the commands, of a verb or of the command of it that was typed."""
    from typer.main import get_command

    command: Any = get_command(getattr(module, "_app", module.app))
    inner = getattr(command, "commands", {})
    if commands:
        return sorted(inner)
    command = next((inner[word] for word in before if word in inner), command)
    names = [name for option in command.params for name in (*option.opts, *option.secondary_opts)]
    return sorted(name for name in (*names, "--help") if name.startswith("--"))


def _runs(before: list[str]) -> list[str]:
    """The runs of the folder that counts, the newest first: by their files alone, since this must be quick."""
    folder = os.environ.get("MSLAUNCH_RUNS_DIR") or "mslaunch-runs"
    for option, value in pairwise(before):
        folder = value if option == "--runs-dir" else folder
    try:
        folders = [entry for entry in os.scandir(folder) if not entry.is_symlink() and entry.is_dir()]
        folders.sort(key=lambda entry: entry.stat().st_mtime, reverse=True)
    except OSError:
        return []
    return [entry.name for entry in folders[:MOST_RUNS] if Path(entry.path, layout.RECORD).exists()]


def run(option: str, args: list[str], verbs: Mapping[str, str], load: Callable[[str], Any]) -> int:
    """Complete words, print the script for a shell, or write it to where the shell looks for it."""
    if option == "--complete":
        print("".join(f"{choice}\n" for choice in complete(args, verbs, load)), end="")
        return 0
    shell = args[0] if args else Path(os.environ.get("SHELL", "")).name
    if shell not in SCRIPTS:
        print(f"mslaunch: no completion for the shell {shell!r}. Name one of {', '.join(SCRIPTS)}.", file=sys.stderr)
        return ExitCode.WRONG_REQUEST
    if option == "--show-completion":
        print(SCRIPTS[shell], end="")
        return 0
    path = _place(shell)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SCRIPTS[shell])
    except OSError as error:
        fix = "Use --show-completion and put it where you like."
        print(f"mslaunch: {path}: cannot write the completion: {error.strerror}. {fix}", file=sys.stderr)
        return ExitCode.NOT_READY
    print(f"{path} written. {_HINTS[shell].format(folder=path.parent)}")
    return 0


def _place(shell: str) -> Path:
    home, variables = Path.home(), os.environ
    places = {
        "bash": (variables.get("XDG_DATA_HOME") or home / ".local/share", "bash-completion/completions/mslaunch"),
        "fish": (variables.get("XDG_CONFIG_HOME") or home / ".config", "fish/completions/mslaunch.fish"),
        "zsh": (variables.get("ZDOTDIR") or home, ".zfunc/_mslaunch"),
    }
    return Path(*places[shell])
