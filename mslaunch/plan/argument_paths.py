"""Paths that a script is given: what works from the submit folder works from rank_R as well."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

_PATH_KEY = re.compile(r"path|dir|file|root|folder|ckpt|checkpoint|data|config|cfg|yaml|json", re.IGNORECASE)
_OPTION = re.compile(r"(--?[\w.-]+)=(.*)", re.DOTALL)


def candidates(args: tuple[str, ...], values: Mapping[str, Any], variables: Mapping[str, str]) -> frozenset[str]:
    """Name every relative path that the script may be given in its arguments, its configuration or its environment."""
    paths: set[str] = set()

    def note(text: str) -> str:
        paths.add(text)
        return text

    rewrite_args(args, note)
    rewrite_values(values, note)
    rewrite_variables(variables, note)
    return frozenset(paths)


def rewrite_variables(variables: Mapping[str, str], change: Callable[[str], str]) -> dict[str, str]:
    """Return the variables that lead out of the submit folder, with `change` applied: the rest works as it is."""
    leading_out = {name: text for name, text in variables.items() if text.startswith("../") and _PATH_KEY.search(name)}
    return {name: new for name, text in leading_out.items() if (new := change(text)) != text}


def rewrite_args(args: tuple[str, ...], change: Callable[[str], str]) -> tuple[str, ...]:
    """Apply `change` to the arguments that look like relative paths."""
    result: list[str] = []
    key = ""
    for arg in args:
        option = _OPTION.fullmatch(arg)
        if option:
            value = change(option[2]) if _looks_like_path(option[1], option[2]) else option[2]
            result.append(f"{option[1]}={value}")
        else:
            result.append(change(arg) if _looks_like_path(key, arg) else arg)
        key = arg if arg.startswith("-") else ""
    return tuple(result)


def rewrite_values(values: Any, change: Callable[[str], str], key: str = "") -> Any:
    """Apply `change` to the strings of a configuration that look like relative paths."""
    if isinstance(values, Mapping):
        return {name: rewrite_values(value, change, str(name)) for name, value in values.items()}
    if isinstance(values, list):
        return [rewrite_values(value, change, key) for value in values]
    if isinstance(values, str) and _looks_like_path(key, values):
        return change(values)
    return values


def _looks_like_path(key: str, text: str) -> bool:
    # A bare word such as `mode: train` is a path only where its key says so.
    if not text or text.startswith(("/", "-")) or len(text) > 4096 or "\0" in text or "\n" in text or "://" in text:
        return False
    return "/" in text or text in (".", "..") or bool(_PATH_KEY.search(key))
