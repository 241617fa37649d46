"""Passwords in the words of commands that take them without a name: `curl -u me:P`, `mysql -pP`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mslaunch.shared.secret_names import MASK


@dataclass(frozen=True, slots=True)
class _Login:
    """How a program takes a password."""

    options: tuple[str, ...] = ()
    """Options with the password in the next word."""
    attached: tuple[str, ...] = ()
    """Beginnings of words that end with it."""
    with_user: bool = False
    """The user stands before it, with a colon."""
    before_command: bool = False
    """What follows the password is another command, with options of its own."""


_CURL = _Login(("-u", "--user", "-U", "--proxy-user"), ("-u", "--user=", "-U", "--proxy-user="), with_user=True)
_MYSQL = _Login(attached=("-p",))
_PROGRAMS = {
    "curl": _CURL,
    **dict.fromkeys(("mysql", "mysqldump", "mysqladmin", "mysqlimport", "mariadb", "mariadb-dump"), _MYSQL),
    "sshpass": _Login(("-p",), ("-p",), before_command=True),
    "redis-cli": _Login(("-a",)),
}
_PROGRAM = re.compile(rf"(?<![\w.-])(?P<name>{'|'.join(sorted(_PROGRAMS, key=len, reverse=True))})(?![\w.-])")
_WORD = re.compile(r"""[^\s"',|;&\[\]()]{1,4000}""")
_END = re.compile(r"[\n|;&]")


def mask_commands(text: str) -> str:
    """Mask the passwords of the commands in a text; quotes and commas, as in lists of words, stay."""
    if not any(name in text for name in _PROGRAMS):
        return text
    parts: list[str] = []
    done = 0
    for program in _PROGRAM.finditer(text):
        end = _END.search(text, program.end())
        words = list(_WORD.finditer(text, max(done, program.end()), end.start() if end else len(text)))
        for word, shown in zip(words, _mask_words(program["name"], [word[0] for word in words]), strict=True):
            if shown != word[0]:
                parts += [text[done : word.start()], shown]
                done = word.end()
    return "".join([*parts, text[done:]])


def mask_command(words: Sequence[str]) -> list[str]:
    """Mask the passwords in a list of words, such as an argv."""
    shown = list(words)
    for at, word in enumerate(words):
        program = word.rpartition("/")[2]
        if program in _PROGRAMS:
            shown[at + 1 :] = _mask_words(program, shown[at + 1 :])
    return shown


def _mask_words(program: str, words: Sequence[str]) -> list[str]:
    login = _PROGRAMS[program]
    shown: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        shown.append(_mask_word(login, before, word))
        if shown[-1] != word and login.before_command:
            break
    return [*shown, *words[len(shown) :]]


def _mask_word(login: _Login, before: str, word: str) -> str:
    start = 0 if before in login.options else None
    if start is None:
        start = next((len(one) for one in login.attached if word.startswith(one) and word != one), None)
    if start is None:
        return word
    if login.with_user:
        colon = word.find(":", start)
        return word if colon < 0 else f"{word[: colon + 1]}{MASK}"
    return f"{word[:start]}{MASK}"
