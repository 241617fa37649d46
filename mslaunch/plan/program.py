"""What every rank runs: a Python script, a Python module, or any other executable."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mslaunch.shared.other_launchers import LauncherCommand, is_python

Kind = Literal["script", "module", "executable"]

PYTHON = "python"
"""As an executable: the Python that runs the ranks, whatever it is called on a host."""

_INTERPRETER = re.compile(r"python(\d+(?:\.\d+)?)?")
_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "-u": {"PYTHONUNBUFFERED": "1"},
    "-q": {},
    "-O": {"PYTHONOPTIMIZE": "1"},
    "-OO": {"PYTHONOPTIMIZE": "2"},
    "-B": {"PYTHONDONTWRITEBYTECODE": "1"},
    "-s": {"PYTHONNOUSERSITE": "1"},
    "-v": {"PYTHONVERBOSE": "1"},
    "-P": {"PYTHONSAFEPATH": "1"},
    "-Xdev": {"PYTHONDEVMODE": "1"},
    "-Xfaulthandler": {"PYTHONFAULTHANDLER": "1"},
    "-Xutf8": {"PYTHONUTF8": "1"},
    "-Ximporttime": {"PYTHONPROFILEIMPORTTIME": "1"},
}
"""Options of Python that have a variable of the same meaning; any method can pass that on."""
_WARNING = "-W"


@dataclass(frozen=True, slots=True)
class Program:
    """One program with its arguments."""

    kind: Kind
    what: str
    """A script's path in the job's folder, a module's name, or an executable: ./path in the job's folder, an absolute
    path, or a name on PATH."""
    args: tuple[str, ...] = ()
    python_env: Mapping[str, str] = field(default_factory=dict)
    """Options that were typed for Python itself, as variables."""

    @property
    def label(self) -> str:
        """What it is called in a list of runs."""
        return f"-m {self.what}" if self.kind == "module" else self.what

    @property
    def is_in_job(self) -> bool:
        """Tell whether `what` is a path in the job's folder."""
        return self.kind == "script" or (self.kind == "executable" and self.what.startswith("./"))

    def command(self, folder: str) -> tuple[str, ...]:
        """The words that mslaunch_rank.py gets: the script in this folder, -m and a module, or -x and an executable."""
        place = posixpath.normpath(posixpath.join(folder, self.what)) if self.is_in_job else self.what
        mark = {"script": (), "module": ("-m",), "executable": ("-x",)}[self.kind]
        return (*mark, place, *self.args)


@dataclass(frozen=True, slots=True)
class PythonCommand:
    """`python -O -m pkg.train --lr 0.1` taken apart."""

    interpreter: str
    env: Mapping[str, str]
    is_module: bool
    what: str
    args: tuple[str, ...]


def reads_script(program: Program) -> bool:
    """Tell whether a program is Python that reads its script from standard input: `python -`."""
    return program.kind == "executable" and is_python(program.what) and program.args[:1] in ((), ("-",))


def python_version(word: str) -> str | None:
    """The version in a name such as python3.11."""
    match = _INTERPRETER.fullmatch(posixpath.basename(word))
    return match[1] if match else None


def read_python(command: tuple[str, ...]) -> PythonCommand | None:
    """Take a command that starts with Python apart; None where it uses what only the command itself can do, as -c."""
    env: dict[str, str] = {}
    left = list(command[1:])
    while left and left[0].startswith("-") and left[0] not in ("-m", "-"):
        word = left.pop(0)
        if word in ("-X", _WARNING) and left:
            word += left.pop(0)
        if word.startswith(_WARNING) and len(word) > len(_WARNING):
            env["PYTHONWARNINGS"] = ",".join(filter(None, (env.get("PYTHONWARNINGS"), word[len(_WARNING) :])))
        elif word in _OPTIONS:
            env |= _OPTIONS[word]
        else:
            return None
    is_module = left[:1] == ["-m"]
    left = left[1:] if is_module else left
    if not left or left[0].startswith("-"):
        return None
    return PythonCommand(command[0], env, is_module, left[0], tuple(left[1:]))


@dataclass(frozen=True, slots=True)
class NestedLauncher:
    """What in a program starts ranks, and the line to type instead."""

    where: str
    """The program, or a script and its line."""
    what: str
    launcher: LauncherCommand | None
    """The launcher, where its whole line is known."""
    program: tuple[str, ...] = ()
    """The Python program that it starts, where that can be seen."""

    def instead(self, ranks: int) -> str:
        """The line that starts the job with mslaunch."""
        if self.launcher is not None:
            return shlex.join(self.launcher.instead(ranks))
        return shlex.join(("mslaunch", "train", "-n", str(ranks), *(self.program or ("SCRIPT.py",))))
