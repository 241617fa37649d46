"""Tables in YAML, a list of rows: built-in ones, and those that users and plug-ins add, whose rows are checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import yaml

from mslaunch.documents.limits import MOST_BYTES, Unreadable
from mslaunch.documents.yaml_text import compose_one, construct_yaml
from mslaunch.errors import did_you_mean

T = TypeVar("T")
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_built_in(text: str) -> Any:
    """Read the rows of a built-in table, which tests keep right."""
    return yaml.load(text, Loader=_Loader)


def read_table(path: Any) -> tuple[str, str]:
    """Return the name and the text of what an entry point names: a Path, or a Traversable of importlib.resources."""
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    return str(path), data.decode()  # one that is too large is refused as such, with its name


def parse_rows(text: str, name: str, noun: str, make: Callable[[Any], T]) -> tuple[list[T], list[str]]:
    """Return the rows that are right, and one line for each that is not; `make` raises ValueError for these."""
    try:
        node = compose_one(text)
        raw_rows = construct_yaml(node) if node is not None else None
    except Unreadable as error:
        return [], [f"{error.where(name)}: not valid YAML, so none of its {noun} counts: {error}"]
    if node is None or raw_rows is None:
        return [], []
    if not isinstance(raw_rows, list) or not isinstance(node, yaml.SequenceNode):
        return [], [f"{name}:1: a list of {noun} is wanted, got {type(raw_rows).__name__}. Begin each with `- id:`."]
    rows: list[T] = []
    problems: list[str] = []
    for number, (raw, place) in enumerate(zip(raw_rows, node.value, strict=True), 1):
        try:
            rows.append(make(raw))
        except ValueError as error:
            label = f" ({raw['id']})" if isinstance(raw, dict) and isinstance(raw.get("id"), str) else ""
            line = place.start_mark.line + 1
            problems.append(f"{name}:{line}: row {number}{label} does not count: {' '.join(str(error).split())}")
    return rows, problems


def check_keys(row: Any, keys: Collection[str], optional: Collection[str]) -> None:
    """Raise ValueError where a row has other keys, or lacks one that is not optional."""
    if not isinstance(row, dict):
        raise ValueError(f"keys are wanted ({', '.join(keys)}), got {row!r}")
    for key in row:
        if key not in keys:
            raise ValueError(f"there is no key {key!r}{did_you_mean(str(key), keys)}")
    if missing := [key for key in keys if key not in row and key not in optional]:
        raise ValueError(f"{', '.join(missing)} is missing")


def compile_regex(regex: str) -> re.Pattern[str]:
    """Compile the regular expression of a row, or raise ValueError."""
    try:
        compiled = re.compile(regex)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"regex: {error}") from None
    if compiled.search(""):
        raise ValueError("regex: it matches an empty line, so it would match every line")
    return compiled


def are_texts(raw: Any) -> bool:
    """Tell whether a key of a row holds a list of texts."""
    return isinstance(raw, list) and all(isinstance(text, str) and text for text in raw)
