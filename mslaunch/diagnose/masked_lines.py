"""Lines without their secrets, where a document cannot be parsed: what is indented below a secret's name is masked."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from mslaunch.diagnose.masked_text import is_harmless, is_secret_value, mask_text
from mslaunch.masking import MASK, looks_secret

_KEY = re.compile(r"""(?P<head>(?P<indent>\s*(?:- +)*)["']?(?P<name>[\w.-]{1,200})["']?\s{0,8}:\s*)(?P<value>.*)""")
_NESTED = re.compile(r"""(?<![\w.-])["']?(?P<name>[A-Za-z_][\w.-]{1,80})["']?\s{0,3}[=:]\s{0,3}(?=[{\[])""")
_ASSIGNED = re.compile(r"(?P<name>[A-Za-z_]\w{0,200})=(?P<value>.*)")
_NUMBERS = re.compile(r"[\d\s.,:\[\]{}+-]{0,4000}")
_ENDS = {"{": "}", "[": "]"}


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
    return "".join(f"{line}\n" for line in _masked_outline(text.splitlines(), known))


def _masked_outline(lines: list[str], known: Collection[str]) -> Iterator[str]:
    above: int | None = None  # the indent of the secret's name that the lines stand below
    for line in lines:
        bare = line.lstrip()
        indent = len(line) - len(bare)
        if above is not None and bare and not _is_below(bare, indent, above):
            above = None
        if above is not None:
            yield line if is_harmless(bare) else f"{line[:indent]}{MASK}"
            continue
        found = _KEY.fullmatch(line)
        if found is None or not looks_secret(found["name"]):
            yield mask_text(_mask_nested(line), known)
            continue
        above = len(found["indent"])
        value = found["value"].rstrip(" ,")
        yield line if is_harmless(value) or _NUMBERS.fullmatch(value) else f"{found['head']}{MASK}"


def _is_below(bare: str, indent: int, above: int) -> bool:
    """Tell whether a line belongs to the name above it; items of YAML may stand as far left as the name."""
    return indent > above or (indent == above and bare.startswith(("- ", "]", "}")))


def _mask_nested(line: str) -> str:
    """Mask the braces and brackets after a secret's name, up to where they close."""
    parts: list[str] = []
    done = 0
    for found in _NESTED.finditer(line):
        if found.start() < done or not looks_secret(found["name"]):
            continue
        end = _end_of(line, found.end())
        if not _NUMBERS.fullmatch(line, found.end(), end):
            parts += [line[done : found.end()], MASK]
            done = end
    return "".join([*parts, line[done:]])


def _end_of(line: str, start: int) -> int:
    """Return where the bracket at a place is closed, or the end of the line."""
    opened, closed = line[start], _ENDS[line[start]]
    depth = 0
    for at in range(start, len(line)):
        depth += (line[at] == opened) - (line[at] == closed)
        if not depth:
            return at + 1
    return len(line)
