"""Documents of a run without their secrets: parsed by what they are, masked, and written again in their order."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from mslaunch.diagnose.masked_lines import mask_assignments, mask_lines, mask_outline
from mslaunch.diagnose.masked_text import SHORTEST, is_harmless, mask_text
from mslaunch.diagnose.masked_values import TOP, Masker, Note, Place
from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import Unreadable
from mslaunch.documents.yaml_text import compose_yaml, serialize_yaml
from mslaunch.shared import layout
from mslaunch.shared.secret_names import MASK, looks_secret

TELLING = (layout.CONFIG_JSON, layout.CONFIG, layout.PLAN)
"""The documents of a run whose secrets are looked for in all others."""
MOST_KNOWN = 1000
_LONGEST_KNOWN = 100_000
_NAMES_ALONE = ("secrets", "sources")
"""Of a plan: names of variables, and settings, which have no secrets."""
_DESCRIBING = (
    *("USER", "USERNAME", "ACCOUNT", "EMAIL", "NAME", "HOST", "ENDPOINT", "REGION", "ZONE", "BUCKET", "URL", "URI"),
    *("TYPE", "KIND", "METHOD", "MODE", "SCHEME", "PROVIDER", "VERSION"),
)
"""Keys beside a secret whose values are masked there, and may stand anywhere else."""
_PLACES = ("PATH", "FILE", "DIR", "FOLDER", "SOCK")
"""Ends of names of what says where a secret is: `token_file`."""
_CHOSEN = ("PASS", "PWD", "PASSWORD", "PASSWD", "PASSPHRASE", "SECRET")
"""What people choose themselves, and may be a word; keys and tokens are made by programs."""
_WORD = re.compile(r"[A-Za-z]{1,11}|[a-z]+(?:_[a-z]+)+")


def mask_document(name: str, text: str, known: Collection[str] = ()) -> str:
    """Return a document without its secrets; what cannot be parsed is masked line by line."""
    kind = next((mask for end, mask in _KINDS.items() if name.endswith(end)), mask_lines)
    return kind(text, known)


def _mask_json(text: str, known: Collection[str]) -> str:
    try:
        value = parse_json(text)
    except Unreadable:
        return mask_outline(text, known)
    return json.dumps(_masker(known).mask_value(value), indent=1)


def _mask_json_lines(text: str, known: Collection[str]) -> str:
    return "".join(f"{_mask_json_line(line, known)}\n" for line in text.splitlines())


def _mask_json_line(line: str, known: Collection[str]) -> str:
    try:
        return json.dumps(_masker(known).mask_value(parse_json(line)))
    except Unreadable:
        return mask_outline(line, known)


def _mask_yaml(text: str, known: Collection[str]) -> str:
    try:
        nodes = compose_yaml(text)
        masker = _masker(known)
        for node in nodes:
            masker.mask_node(node)
        return serialize_yaml(nodes)
    except Unreadable:
        return mask_outline(text, known)


_KINDS = {
    ".json": _mask_json,
    ".jsonl": _mask_json_lines,
    ".yaml": _mask_yaml,
    ".yml": _mask_yaml,
    layout.ENV_LOG: mask_assignments,
}


def _masker(known: Collection[str] = (), note: Note | None = None) -> Masker:
    return Masker(known, note, lambda path, content: mask_document(path, content, known))


def find_secrets(documents: Iterable[tuple[str, str]], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return what is secret by its name in documents of a run and in an environment, the longest first."""
    found: dict[str, None] = {}

    def note(place: Place, text: str) -> None:
        found.update(dict.fromkeys(_spellings(text) if _is_told_apart(place, text) else ()))

    for name, value in environment.items():
        if looks_secret(name):
            Masker(note=note).mask_leaf(value, TOP.below(name))
    for name, text in documents:
        _look_into(name, text, note)
    return tuple(sorted(list(found)[:MOST_KNOWN], key=len, reverse=True))


def _look_into(name: str, text: str, note: Note) -> None:
    def look_into_file(path: str, content: str) -> str:
        _look_into(path, content, note)
        return content

    masker = Masker((), note, look_into_file)
    try:
        if name.endswith(".json"):
            masker.mask_value(_without_names(parse_json(text)))
        elif name.endswith((".yaml", ".yml")):
            for node in compose_yaml(text):
                masker.mask_node(node)
    except Unreadable:
        pass  # it is masked line by line


def _without_names(value: Any) -> Any:
    is_plan = isinstance(value, dict) and "processes" in value and "sources" in value
    return {key: one for key, one in value.items() if key not in _NAMES_ALONE} if is_plan else value


def _is_told_apart(place: Place, text: str) -> bool:
    """Tell whether a secret can be masked everywhere without taking other words with it."""
    if not SHORTEST <= len(text) <= _LONGEST_KNOWN or text == MASK:
        return False
    last = place.name.upper().split("_")[-1]
    if last in _PLACES or (last in _DESCRIBING and not looks_secret(place.name)):
        return False
    return place.secret.upper().rstrip("S").endswith(_CHOSEN) or not _WORD.fullmatch(text)


def _spellings(text: str) -> Iterator[str]:
    """Yield how a secret may stand in other texts: its lines, and with escapes."""
    lines = [line.strip() for line in text.splitlines()]
    for part in (text.strip(), *(line for line in lines if not (is_harmless(line) or _WORD.fullmatch(line)))):
        for one in (part, json.dumps(part)[1:-1], repr(part)[1:-1], part.replace("'", "''"), quote(part, safe="")):
            if len(one) >= SHORTEST:
                yield one


def mask_texts(value: Any, known: Collection[str] = ()) -> Any:
    """Return a value of JSON with its texts masked as texts: its own keys are no names of secrets."""
    if isinstance(value, str):
        return mask_text(value, known)
    if isinstance(value, dict):
        return {name: mask_texts(one, known) for name, one in value.items()}
    return [mask_texts(one, known) for one in value] if isinstance(value, (list, tuple)) else value
