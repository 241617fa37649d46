"""Secrets in free text: names with values, options, headers, URLs, and values that are known to be secret."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from mslaunch.shared.secret_names import MASK, looks_secret, without_credentials


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


_MYSQL = ("mysql", "mysqldump", "mysqladmin", "mysqlimport", "mariadb", "mariadb-dump")
_PROGRAMS = {
    "curl": _Login(("-u", "--user", "-U", "--proxy-user"), ("-u", "--user=", "-U", "--proxy-user="), with_user=True),
    **dict.fromkeys(_MYSQL, _Login(attached=("-p",))),
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
        arguments = list(_WORD.finditer(text, max(done, program.end()), end.start() if end else len(text)))
        for word, masked in zip(arguments, _mask_words(program["name"], [word[0] for word in arguments]), strict=True):
            if masked != word[0]:
                parts += [text[done : word.start()], masked]
                done = word.end()
    return "".join([*parts, text[done:]])


def mask_command(argv: Sequence[str]) -> list[str]:
    """Mask the passwords in a list of words, such as an argv."""
    masked = list(argv)
    for at, word in enumerate(argv):
        program = word.rpartition("/")[2]
        if program in _PROGRAMS:
            masked[at + 1 :] = _mask_words(program, masked[at + 1 :])
    return masked


def _mask_words(program: str, arguments: Sequence[str]) -> list[str]:
    login = _PROGRAMS[program]
    masked: list[str] = []
    for before, word in zip(["", *arguments], arguments, strict=False):
        masked.append(_mask_word(login, before, word))
        if masked[-1] != word and login.before_command:
            break
    return [*masked, *arguments[len(masked) :]]


def _mask_word(login: _Login, before: str, word: str) -> str:
    start = 0 if before in login.options else None
    if start is None:
        start = next((len(prefix) for prefix in login.attached if word.startswith(prefix) and word != prefix), None)
    if start is None:
        return word
    if login.with_user:
        colon = word.find(":", start)
        return word if colon < 0 else f"{word[: colon + 1]}{MASK}"
    return f"{word[:start]}{MASK}"


_NAME = re.compile(r"""(?<![\w-])(?P<name>[A-Za-z_][\w-]{1,80})["']?\s{0,3}[=:]\s{0,3}""")
_OPTION = re.compile(r"""(?<![\w-])--?(?P<name>[A-Za-z][\w-]{1,80})(?:=|["']?,? +(?=["']?[^\s"'-]))""")
_VALUE = re.compile(r"""(?P<mark>["'])(?P<quoted>[^"'\n]{1,4000})(?P=mark)|(?P<bare>[^\s"',;{}\[\]()]{1,4000})""")
_HEADER = re.compile(r"\b(?P<kind>Bearer|Basic|wandb login) +[\w.~+/=-]{8,4000}")
_COOKIE = re.compile(r"\b(?P<kind>(?:Set-)?Cookie): +[^\r\n]{1,4000}", re.IGNORECASE)
_KEY = re.compile(r"-----BEGIN (?P<kind>[A-Z ]{0,40})PRIVATE KEY-----(?:.(?!-----END)){1,20000}.?", re.DOTALL)
_KEY_LINE = re.compile(r"(?m)^[ \t]{0,8}(?:[A-Za-z0-9+/]{60,120}|[A-Za-z0-9+/]{2,119}={1,2})[ \t\r]{0,8}$")
"""A line of a key, or of another thing in base64 that explains nothing."""
_SHORT_NAMES = ("AK", "SK")
"""What clouds call the two parts of a key; a word in other places, so that the value has to look like one."""
_LONG_VALUE = 16
_TOKEN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}|sk-[\w-]{20,}"
    r"|AKIA[0-9A-Z]{16}|xox[abprs]-[\w-]{10,}|AIza[\w-]{30,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,})"
)
_HARMLESS = re.compile(
    r"[+-]?[\d.]{1,15}(?:e[+-]?\d{1,3})?|0x[0-9a-f]{1,16}|true|false|none|null|yes|no|on|off"
    r"|<[^<>\s]{1,60}>|\[[a-z_]{1,20}\]|\*{3}",
    re.IGNORECASE,
)
"""Numbers, which are counts, switches, and what marks a place in a text: `<s>`, `[PAD]`."""
_CALL = re.compile(r"[A-Za-z_][\w.]{0,200}(?:\([^\n]{0,1000}\)|\[[^\n]{0,1000}\])")
_MADE_BY_CODE = ("TOKEN", "KEY")
"""What code makes and calls so: tracebacks quote `tokens = tokenizer(text)`."""
_SAID = re.compile(r"(?i)\b(?P<name>password|passwd|passphrase|secret|api[ _-]?key)s?\s+(?:is|was)\s*:\s*")
_QUOTED = re.compile(r"""(?i)\b(?P<name>password|passwd|passphrase|secret)\s+(?=["'])""")
_IN_CHINESE = re.compile(r"(?:密码|口令|密钥)[是为]?\s*[:\uff1a=]\s*(?P<value>[!-~]{4,400})")
_OBJECT_NAME = re.compile(r"[a-z0-9./ _-]{1,253}")
"""What Kubernetes calls an object that it names a secret."""
SHORTEST = 6  # a known value that is shorter stands in too many words


def mask_text(text: str, secrets: Collection[str] = ()) -> str:
    """Return a text without its secrets; `secrets` are values that are secret wherever they stand."""
    for value in secrets:
        if len(value) >= SHORTEST and value in text:
            text = text.replace(value, MASK)
    if "=" in text or ":" in text:
        text = _mask_matches(_NAME, text, _is_masked)
    if "-" in text:
        text = _mask_matches(_OPTION, text, _is_masked)
    text = _mask_sentences(mask_commands(text))
    text = _HEADER.sub(lambda match: f"{match['kind']} {MASK}", text)
    text = _COOKIE.sub(lambda match: f"{match['kind']}: {MASK}", text)
    if "PRIVATE KEY-----" in text:
        text = _KEY.sub(lambda match: f"-----BEGIN {match['kind']}PRIVATE KEY-----{MASK}", text)
    text = _KEY_LINE.sub(MASK, text)
    return _TOKEN.sub(MASK, without_credentials(text) if "://" in text else text)


def _mask_sentences(text: str) -> str:
    """Mask what a sentence calls a password: `the password is: X`, `secret 'X'`."""
    lower = text.lower()
    if "passw" in lower or "passphrase" in lower or "secret" in lower or "api" in lower:
        for names in (_SAID, _QUOTED):
            text = _mask_matches(names, text, _is_password)
    if text.isascii():
        return text
    return _IN_CHINESE.sub(lambda match: match[0].removesuffix(match["value"]) + MASK, text)


def _is_password(name: str, match: re.Match[str]) -> bool:
    value = match["quoted"] or match["bare"]
    return not is_harmless(value) and (name.lower() != "secret" or not _OBJECT_NAME.fullmatch(value))


def is_secret_value(name: str, value: str) -> bool:
    """Tell whether a text that stands under a name is a secret; a number is a count, of tokens for example."""
    if name.upper() in _SHORT_NAMES:
        return len(value) >= _LONG_VALUE
    if name.lower() == "pwd" and value.startswith(("/", "~", ".", "$")):
        return False  # a folder
    return looks_secret(name) and not is_harmless(value)


def is_harmless(value: str) -> bool:
    """Tell whether a text holds no secret, whatever its name is."""
    return not value or _HARMLESS.fullmatch(value) is not None


def _mask_matches(names: re.Pattern[str], text: str, is_masked: Callable[[str, re.Match[str]], bool]) -> str:
    parts: list[str] = []
    done = 0
    for match in names.finditer(text):
        value = _VALUE.match(text, match.end()) if match.start() >= done else None
        if value is not None and is_masked(match["name"], value):
            mark = value["mark"] or ""
            parts += [text[done : match.end()], mark, MASK, mark]
            done = value.end()
    return "".join([*parts, text[done:]])


def _is_masked(name: str, value: re.Match[str]) -> bool:
    if not is_secret_value(name, value["quoted"] or value["bare"]):
        return False
    is_code = value["bare"] is not None and name.upper().rstrip("S").endswith(_MADE_BY_CODE)
    return not (is_code and _CALL.match(value.string, value.start()))
