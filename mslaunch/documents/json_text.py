"""JSON from outside: no text can exhaust the reader, and what is read can be written again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

from mslaunch.documents.limits import DEEPEST, Unreadable, to_float, to_int, too_deep

Pairs = Callable[[list[tuple[str, Any]]], Any]
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(text: str | bytes, pairs: Pairs | None = None) -> Any:
    """Read a JSON text, or raise Unreadable; `pairs` makes the objects."""
    try:
        decoded = text.decode() if isinstance(text, bytes) else text
        value = json.loads(
            decoded, parse_int=to_int, parse_float=to_float, parse_constant=_no_constant, object_pairs_hook=pairs
        )
        if _SURROGATE.search(decoded):
            json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogateescape")
    except json.JSONDecodeError as error:
        raise _not_json(error) from None
    except RecursionError:
        raise too_deep() from None
    except UnicodeError:
        raise Unreadable("not text in UTF-8") from None
    _check_depth(value)
    return value


def _not_json(error: json.JSONDecodeError) -> Unreadable:
    """Say what is wrong; a comma before a closing bracket, which every Python version tells otherwise, by its place."""
    before = error.doc[: error.pos + 1].rstrip("}] \t\r\n")
    after = error.doc[len(before) :].lstrip()
    if not before.endswith(",") or not after.startswith(("}", "]")):
        return Unreadable(f"not JSON: {error.msg}", error.lineno, error.colno)
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n", 0, -1) - 1
    return Unreadable(f"not JSON: a comma stands before the closing {after[0]}", line, column)


def _no_constant(text: str) -> NoReturn:
    raise Unreadable(f"{text} is not JSON")


def _check_depth(value: Any) -> None:
    """Level by level, since a recursive walk is what a deep value would end."""
    level = [value]
    for _ in range(DEEPEST + 1):
        level = [
            inner
            for container in level
            for inner in (
                container.values() if type(container) is dict else container if type(container) is list else ()
            )
            if type(inner) in (dict, list)
        ]
        if not level:
            return
    raise too_deep()
