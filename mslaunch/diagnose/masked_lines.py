"""Lines without their secrets, where a document cannot be parsed: what is indented below a secret's name is masked."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from mslaunch.diagnose.masked_text import is_harmless, is_secret_value, mask_text
from mslaunch.shared.secret_names import MASK, looks_secret

_KEY = re.compile(r"""(?P<head>(?P<indent>\s*(?:- +)*)["']?(?P<name>[\w.-]{1,200})["']?\s{0,8}:\s*)(?P<value>.*)""")
_OPENED = re.compile(r"""(?<![\w.-])["']?(?P<name>[A-Za-z_][\w.-]{1,80})["']?\s{0,3}[=:]\s{0,3}(?=[{\["'])""")
_ASSIGNED = re.compile(r"(?P<name>[A-Za-z_]\w{0,200})=(?P<value>.*)")
_NUMBERS = re.compile(r"[\d\s.,:\[\]{}+-]{0,4000}")
_ENDS = {"{": "}", "[": "]", '"': '"', "'": "'"}


def mask_lines(text: str, known: Collection[str] = ()) -> str:
    """Mask a text line by line, as many lines as it had."""
    return "".join(f"{mask_text(line, known)}\n" for line in text.splitlines())


def mask_assignments(text: str, known: Collection[str] = ()) -> str:
    """Mask lines of the form NAME=value: all of a value, whatever stands in it."""
    return "".join(f"{_mask_assignment(line, known)}\n" for line in text.splitlines())


def _mask_assignment(line: str, known: Collection[str]) -> str:
    found = _ASSIGNED.fullmatch(line)
    if found and is_secret_value(found["name"], found["value"]):
        return f"{found['name']}={MASK}"
    return mask_text(line, known)


def mask_outline(text: str, known: Collection[str] = ()) -> str:
    """Mask what looks like YAML or JSON, with the lines that are indented below a secret's name."""
    return "\n".join(_masked_outline(text.split("\n"), known))


@dataclass(frozen=True, slots=True)
class _Open:
    """A secret that goes on in the next lines: what it was opened with, how often, and the indent of its name."""

    mark: str
    depth: int
    indent: int

    def after(self, line: str) -> _Open:
        return self if not self.depth else _Open(self.mark, _closed(line, 0, self.mark, self.depth)[1], self.indent)

    def covers(self, bare: str, indent: int) -> bool:
        """Tell whether a line belongs to it; items of YAML may stand as far left as the name above them."""
        is_item = indent == self.indent and bare.startswith(("- ", "]", "}"))
        return bool(self.depth or indent > self.indent or is_item)


def _masked_outline(lines: list[str], known: Collection[str]) -> Iterator[str]:
    secret: _Open | None = None
    for line in lines:
        bare = line.lstrip()
        indent = len(line) - len(bare)
        if secret is not None and (not bare or secret.covers(bare, indent)):
            secret = secret.after(line)
            yield line if is_harmless(bare.strip("-,'\" ")) else f"{line[:indent]}{MASK}"
            continue
        shown, secret = _mask_key(line) or _mask_opened(line, indent)
        yield mask_text(shown, known)


def _mask_key(line: str) -> tuple[str, _Open] | None:
    """Mask the value of a secret's name that begins a line; lines with a deeper indent belong to it."""
    found = _KEY.fullmatch(line)
    if found is None or not looks_secret(found["name"]):
        return None
    value = found["value"].rstrip(" ,")
    mark = value[:1] if value[:1] in _ENDS else ""
    depth = _closed(value, 0, mark)[1] if mark else 0
    is_shown = is_harmless(value) or _NUMBERS.fullmatch(value)
    return line if is_shown else f"{found['head']}{MASK}", _Open(mark, depth, len(found["indent"]))


def _mask_opened(line: str, indent: int) -> tuple[str, _Open | None]:
    """Mask braces, brackets and quotes after a secret's name inside a line, up to where they close."""
    parts: list[str] = []
    done = 0
    secret: _Open | None = None
    for found in _OPENED.finditer(line):
        if found.start() < done or not looks_secret(found["name"]):
            continue
        mark = line[found.end()]
        end, depth = _closed(line, found.end(), mark)
        secret = _Open(mark, depth, indent) if depth else None
        if depth or not (mark in "\"'" or _NUMBERS.fullmatch(line, found.end(), end)):
            parts += [line[done : found.end()], MASK]
            done = end
    return "".join([*parts, line[done:]]), secret


def _closed(line: str, start: int, mark: str, depth: int = 0) -> tuple[int, int]:
    """Return where what a mark opens is closed, or the end of the line, and how often it is open then."""
    end = _ENDS[mark]
    for at in range(start, len(line)):
        if line[at] == end and depth:
            depth -= 1
            if not depth:
                return at + 1, 0
        elif line[at] == mark:
            depth += 1
    return len(line), depth
