"""Programs that start ranks themselves: found by their name, or by the text of a shell script. Pure."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mslaunch.plan.program import NestedLauncher, Program
from mslaunch.shared.other_launchers import MODULES, PROGRAMS, SHELLS, LauncherCommand, find_launcher, is_python

_DEEPEST = 3  # scripts that scripts start
_LONGEST = 4000  # characters of one command
_KEYWORDS = frozenset(("if", "then", "elif", "else", "do", "while", "until", "{", "}", "!"))
_OPERATOR = re.compile(r"[;&|()]+")
_NAMES = re.compile("|".join(re.escape(name) for name in (*PROGRAMS, *MODULES)))
_COMMENT = re.compile(r"(?m)(?:^|(?<=\s))#.*$")
_VARIABLE = re.compile(r"([A-Za-z_]\w*)=(.+)", re.DOTALL)
_LOOP = re.compile(r"(?m)^[^\n'\"]*?\b(do|done)\b")
_DEVICE = re.compile(
    r"\b(?:RANK_ID|DEVICE_ID|ASCEND_DEVICE_ID|ASCEND_RT_VISIBLE_DEVICES|CUDA_VISIBLE_DEVICES)=[\"']?[^\s;]*[$`]"
)
_BACKGROUND = re.compile(r"(?m)^(?!\s*#).*?[^&>\s]\s*(?<![&>])&\s*(?:;|\}|\bdone\b|$)")

Read = Callable[[str], "str | None"]
"""Returns the text of a file, None where there is none."""


@dataclass(frozen=True, slots=True)
class _Script:
    name: str
    text: str
    args: tuple[str, ...]
    read: Read
    depth: int


def find_nested(program: Program, read: Read) -> NestedLauncher | None:
    """Return what in a program starts ranks, if something does; `read` reads the scripts that it names."""
    command = (program.what, *program.args)
    if program.kind == "module":
        command = ("python", "-m", *command)
    launcher = find_launcher(command)
    if launcher is not None:
        return NestedLauncher(launcher.name, "is a launcher", launcher)
    return None if program.kind == "script" else _in_command(command, "", read, 0)


def _in_command(command: Sequence[str], folder: str, read: Read, depth: int) -> NestedLauncher | None:
    """Look into the shell script that a command runs, if it runs one."""
    left = list(command)
    if posixpath.basename(left[0]) in SHELLS or left[0] in ("source", "."):
        left.pop(0)
        while left and left[0].startswith("-"):
            option = left.pop(0)
            if option.endswith("c") and left:
                return _in_text(_Script(f"{command[0]} {option}", left[0], tuple(left[1:]), read, depth))
    if not left or depth >= _DEEPEST:
        return None
    for name in dict.fromkeys((left[0], posixpath.join(folder, left[0]))):
        text = read(name)
        if text is not None and (name.endswith(".sh") or left[0] != command[0] or _is_shell(text)):
            return _in_text(_Script(posixpath.normpath(name), text, tuple(left[1:]), read, depth))
    return None


def _is_shell(text: str) -> bool:
    first = text.partition("\n")[0]
    return first.startswith("#!") and any(re.search(rf"\b{shell}\b", first) for shell in SHELLS)


def _in_text(script: _Script) -> NestedLauncher | None:
    """Look for a launcher, for a loop over devices, and into the scripts that this one starts."""
    text = _COMMENT.sub("", script.text)
    commands = list(_commands(text))
    for line, command in commands:
        launcher = _stored(command, text) or find_launcher(command)
        if launcher is not None and launcher.count != "1":
            return _found(script, line, f"starts {launcher.name}", launcher, command)
    line = _device_loop(text)
    if line:
        return _found(script, line, "starts a process per device", None, ())
    for _, command in commands:
        inner = _in_command(command, posixpath.dirname(script.name), script.read, script.depth + 1)
        if inner is not None:
            return inner
    return None


def _found(
    script: _Script, line: int, what: str, launcher: LauncherCommand | None, command: Sequence[str]
) -> NestedLauncher:
    """Name the place; the launcher's line can be typed as it is where the shell would put nothing into it."""
    where = f"{script.name}:{line}"
    if launcher is not None and not any(char in word for word in launcher.args for char in "$`"):
        return NestedLauncher(where, what, launcher)
    return NestedLauncher(where, what, None, _program(script, command))


def _program(script: _Script, command: Sequence[str]) -> tuple[str, ...]:
    """The Python program of a script: named by its arguments, else by its text."""
    for arg in script.args:
        parts = _split(arg)
        if parts and is_python(parts[0]):
            parts = parts[1:]
        if parts and parts[0].endswith(".py"):
            return tuple(parts)
    texts = (*command, *re.findall(r"[\w./-]+\.py\b", _COMMENT.sub("", script.text)))
    name = next((word for word in texts if word.endswith(".py") and "$" not in word), None)
    if name is None:
        return ()
    folder = posixpath.dirname(script.name)
    places = (name, posixpath.join(folder, name), posixpath.join(folder, "..", name))
    return (next((posixpath.normpath(place) for place in places if script.read(place) is not None), name), "ARGUMENTS")


def _commands(text: str) -> Iterator[tuple[int, list[str]]]:
    """Return the simple commands of a script that may start a launcher or another script, with their lines."""
    pending, begins = "", 1
    for number, line in enumerate(text.split("\n"), 1):
        if not pending:
            begins = number
        pending += line
        if pending.endswith("\\"):
            pending = pending[:-1] + " "
            continue
        if not (_NAMES.search(pending) or ".sh" in pending):
            pending = ""
            continue
        try:
            tokens = _tokens(pending)
        except ValueError:  # a quote that a later line closes, or that is none
            pending += "\n"
            if len(pending) < _LONGEST:
                continue
            tokens = pending.replace("\n", " ; ").split()
        pending = ""
        yield from ((begins, command) for command in _split_commands(tokens))


def _tokens(text: str) -> list[str]:
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|()")
    lexer.whitespace_split = True
    lexer.commenters = ""
    return list(lexer)


def _split_commands(tokens: list[str]) -> Iterator[list[str]]:
    command: list[str] = []
    for token in tokens:
        if _OPERATOR.fullmatch(token) or (token in _KEYWORDS and not command):
            if command:
                yield command
            command = []
        else:
            command.append(token)
    if command:
        yield command


def _stored(command: Sequence[str], text: str) -> LauncherCommand | None:
    """Return the launcher in a command that a script puts together in a variable and runs later."""
    for word in command:
        match = _VARIABLE.fullmatch(word)
        if match and re.search(rf"\$\{{?{match[1]}\b", text):
            launcher = find_launcher(_split(match[2]))
            if launcher is not None:
                return launcher
    return None


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _device_loop(text: str) -> int:
    """Return the line of a loop that starts a process for each device in the background; 0 where there is none."""
    starts: list[int] = []
    for match in _LOOP.finditer(text):
        if match[1] == "do":
            starts.append(match.end())
        elif starts:
            body = text[starts.pop() : match.start(1)]
            device = _DEVICE.search(body)
            if device and _BACKGROUND.search(body):
                return text.count("\n", 0, match.start(1) - len(body)) + 1
    return 0
