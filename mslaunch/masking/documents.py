"""Documents of a run without their secrets: parsed by what they are, masked, and written again in their order."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import Unreadable, read_text
from mslaunch.documents.yaml_text import compose_yaml, serialize_yaml
from mslaunch.masking.free_text import SHORTEST, is_harmless, is_secret_value, mask_command, mask_text
from mslaunch.shared import layout
from mslaunch.shared.secret_names import MASK, looks_secret

_KEY = re.compile(r"""(?P<head>(?P<indent>\s*(?:- +)*)["']?(?P<name>[\w.-]{1,200})["']?\s{0,8}:\s*)(?P<value>.*)""")
_OPENED = re.compile(r"""(?<![\w.-])["']?(?P<name>[A-Za-z_][\w.-]{1,80})["']?\s{0,3}[=:]\s{0,3}(?=[{\["'])""")
_ASSIGNED = re.compile(r"(?P<name>[A-Za-z_]\w{0,200})=(?P<value>.*)")
_NUMBERS = re.compile(r"[\d\s.,:\[\]{}+-]{0,4000}")
_ENDS = {"{": "}", "[": "]", '"': '"', "'": "'"}


def mask_assignments(text: str, secrets: Collection[str] = ()) -> str:
    """Mask lines of the form NAME=value: all of a value, whatever stands in it."""
    lines: list[str] = []
    for line in text.splitlines():
        assignment = _ASSIGNED.fullmatch(line)
        if assignment and is_secret_value(assignment["name"], assignment["value"]):
            lines.append(f"{assignment['name']}={MASK}\n")
        else:
            lines.append(f"{mask_text(line, secrets)}\n")
    return "".join(lines)


@dataclass(frozen=True, slots=True)
class _Open:
    """A secret that goes on in the next lines: what it was opened with, how often, and the indent of its name."""

    mark: str
    depth: int
    indent: int

    def covers(self, bare: str, indent: int) -> bool:
        """Tell whether a line belongs to it; items of YAML may stand as far left as the name above them."""
        is_item = indent == self.indent and bare.startswith(("- ", "]", "}"))
        return bool(self.depth or indent > self.indent or is_item)


def mask_outline(text: str, secrets: Collection[str] = ()) -> str:
    """Mask what looks like YAML or JSON, with the lines that are indented below a secret's name."""
    lines: list[str] = []
    secret: _Open | None = None
    for line in text.split("\n"):
        bare = line.lstrip()
        indent = len(line) - len(bare)
        if secret is not None and (not bare or secret.covers(bare, indent)):
            if secret.depth:
                secret = _Open(secret.mark, _closed(line, 0, secret.mark, secret.depth)[1], secret.indent)
            lines.append(line if is_harmless(bare.strip("-,'\" ")) else f"{line[:indent]}{MASK}")
        else:
            masked, secret = _mask_key(line) or _mask_opened(line, indent)
            lines.append(mask_text(masked, secrets))
    return "\n".join(lines)


def _mask_key(line: str) -> tuple[str, _Open] | None:
    """Mask the value of a secret's name that begins a line; lines with a deeper indent belong to it."""
    match = _KEY.fullmatch(line)
    if match is None or not looks_secret(match["name"]):
        return None
    value = match["value"].rstrip(" ,")
    mark = value[:1] if value[:1] in _ENDS else ""
    depth = _closed(value, 0, mark)[1] if mark else 0
    is_shown = is_harmless(value) or _NUMBERS.fullmatch(value)
    return line if is_shown else f"{match['head']}{MASK}", _Open(mark, depth, len(match["indent"]))


def _mask_opened(line: str, indent: int) -> tuple[str, _Open | None]:
    """Mask braces, brackets and quotes after a secret's name inside a line, up to where they close."""
    parts: list[str] = []
    done = 0
    secret: _Open | None = None
    for opening in _OPENED.finditer(line):
        if opening.start() < done or not looks_secret(opening["name"]):
            continue
        mark = line[opening.end()]
        end, depth = _closed(line, opening.end(), mark)
        secret = _Open(mark, depth, indent) if depth else None
        if depth or not (mark in "\"'" or _NUMBERS.fullmatch(line, opening.end(), end)):
            parts += [line[done : opening.end()], MASK]
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


_TEXT = "tag:yaml.org,2002:str"
_NO_TEXTS = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "bool", "null", "timestamp", "merge"))
_ASSIGNMENT = re.compile(r"(?P<name>-{0,2}[A-Za-z_][\w.-]{0,200})=(?P<value>.+)", re.DOTALL)
_NAME, _VALUE = "name", "value"
"""Kubernetes writes a variable as a mapping with these keys."""


@dataclass(frozen=True, slots=True)
class ValuePlace:
    """Where a value stands."""

    secret: str = ""
    """The nearest name, its own or one above, that stands for a secret."""
    name: str = ""

    def below(self, name: str) -> ValuePlace:
        return ValuePlace(name if looks_secret(name) else self.secret, name)


TOP = ValuePlace()

Note = Callable[[ValuePlace, str], None]


@dataclass(frozen=True, slots=True)
class Masker:
    """Masks values; what stands below a name for a secret is one, whatever its own name is."""

    secrets: Collection[str] = ()
    """Texts that are secret wherever they stand."""
    note: Note | None = None
    """Called with every text that is masked because of its name."""
    mask_file: Callable[[str, str], str] | None = None
    """Masks a file that a value holds, as plans do: its path and its content."""

    def mask_value(self, value: Any, place: ValuePlace = TOP) -> Any:
        """Return a value of JSON with its secrets masked."""
        if isinstance(value, Mapping):
            return self._mask_mapping(value, place)
        if isinstance(value, (list, tuple)):
            if all(isinstance(part, str) for part in value):
                value = mask_command(value)
            before = ["", *value]  # of the words of a command, an option names the word after it
            return [
                self._mask_word(part, before[at], place) if isinstance(part, str) else self.mask_value(part, place)
                for at, part in enumerate(value)
            ]
        return self.mask_leaf(value, place) if isinstance(value, str) else value

    def _mask_mapping(self, value: Mapping[Any, Any], place: ValuePlace) -> dict[str, Any]:
        of_pair = value.get(_NAME)
        masked: dict[str, Any] = {}
        for key, part in value.items():
            name = of_pair if key == _VALUE and isinstance(of_pair, str) else str(key)
            masked[mask_text(str(key), self.secrets)] = self.mask_value(part, place.below(name))
        path, content = value.get("path"), value.get("content")
        if self.mask_file and not place.secret and isinstance(path, str) and isinstance(content, str):
            masked["content"] = self.mask_file(path, content)
        return masked

    def _mask_word(self, word: str, before: Any, place: ValuePlace) -> str:
        """Return a text of a list, which may be one of the words of a command."""
        assigned = _ASSIGNMENT.fullmatch(word)
        if assigned and looks_secret(name := assigned["name"].lstrip("-")):
            return f"{assigned['name']}={self.mask_leaf(assigned['value'], place.below(name))}"
        option = ""  # the name of one that has its value in the next word
        if isinstance(before, str) and before.startswith("-") and "=" not in before and not word.startswith("--"):
            option = before.lstrip("-")
        return self.mask_leaf(word, place.below(option) if option else place)

    def mask_leaf(self, text: str, place: ValuePlace) -> str:
        """Return a text with its secrets masked."""
        if not is_secret_value(place.secret or place.name, text):
            return mask_text(mask_outline(text) if "\n" in text else text, self.secrets)
        if self.note:
            self.note(place, text)
        return MASK

    def mask_node(self, node: yaml.Node, place: ValuePlace = TOP, word_before: Any = None) -> None:
        """Mask the texts of a node of YAML in place; an alias is masked with what it stands for."""
        if isinstance(node, yaml.MappingNode):
            self._mask_pairs(node, place)
        elif isinstance(node, yaml.SequenceNode):
            if all(isinstance(child, yaml.ScalarNode) for child in node.value):
                for child, masked in zip(node.value, mask_command([child.value for child in node.value]), strict=True):
                    child.value = masked
            before = ["", *(child.value for child in node.value)]
            for at, child in enumerate(node.value):
                self.mask_node(child, place, before[at])
        elif isinstance(node, yaml.ScalarNode) and node.tag not in _NO_TEXTS:
            is_item = word_before is not None
            masked = self._mask_word(node.value, word_before, place) if is_item else self.mask_leaf(node.value, place)
            if masked != node.value:
                node.value, node.tag, node.style = masked, _TEXT, None if masked == MASK else node.style

    def _mask_pairs(self, node: yaml.MappingNode, place: ValuePlace) -> None:
        pairs = [pair for pair in node.value if all(isinstance(part, yaml.ScalarNode) for part in pair)]
        names: dict[str, str] = {key.value: value.value for key, value in pairs}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.mask_node(key, place)
                self.mask_node(value, place)
                continue
            name = names.get(_NAME, _VALUE) if key.value == _VALUE else str(key.value)
            key.value = mask_text(key.value, self.secrets)
            self.mask_node(value, place.below(name))


def mask_values(value: Any, secrets: Collection[str] = (), name: str = "") -> Any:
    """Return a value of JSON with the secrets in its texts masked, whole where a name stands for a secret."""
    return Masker(secrets).mask_value(value, TOP.below(name))


TELLING = (layout.CONFIG_JSON, layout.CONFIG, layout.PLAN)
"""The documents of a run whose secrets are looked for in all others."""
_LARGEST = 2_000_000
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


def mask_document(name: str, text: str, secrets: Collection[str] = ()) -> str:
    """Return a document without its secrets; what cannot be parsed is masked line by line."""
    for end, mask in _KINDS.items():
        if name.endswith(end):
            return mask(text, secrets)
    return "".join(f"{mask_text(line, secrets)}\n" for line in text.splitlines())


def _mask_json(text: str, secrets: Collection[str], indent: int | None = 1) -> str:
    try:
        return json.dumps(_masker(secrets).mask_value(parse_json(text)), indent=indent)
    except Unreadable:
        return mask_outline(text, secrets)


def _mask_json_lines(text: str, secrets: Collection[str]) -> str:
    return "".join(f"{_mask_json(line, secrets, indent=None)}\n" for line in text.splitlines())


def _mask_yaml(text: str, secrets: Collection[str]) -> str:
    try:
        nodes = compose_yaml(text)
        masker = _masker(secrets)
        for node in nodes:
            masker.mask_node(node)
        return serialize_yaml(nodes)
    except Unreadable:
        return mask_outline(text, secrets)


_KINDS = {
    ".json": _mask_json,
    ".jsonl": _mask_json_lines,
    ".yaml": _mask_yaml,
    ".yml": _mask_yaml,
    layout.ENV_LOG: mask_assignments,
}


def _masker(secrets: Collection[str]) -> Masker:
    return Masker(secrets, None, lambda path, content: mask_document(path, content, secrets))


def find_secrets(documents: Iterable[tuple[str, str]], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return what is secret by its name in documents of a run and in an environment, the longest first."""
    texts: dict[str, None] = {}

    def note(place: ValuePlace, text: str) -> None:
        texts.update(dict.fromkeys(_spellings(text) if _is_told_apart(place, text) else ()))

    for name, value in environment.items():
        if looks_secret(name):
            Masker(note=note).mask_leaf(value, TOP.below(name))
    for name, text in documents:
        _look_into(name, text, note)
    return tuple(sorted(list(texts)[:MOST_KNOWN], key=len, reverse=True))


def secrets_of_run(folder: Path, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return what is secret by its name in a run's configuration and plan, and in an environment, the longest first."""
    documents = []
    for name in TELLING:
        with suppress(OSError, Unreadable):
            documents.append((name, read_text(folder / name, _LARGEST, "replace", only_files=True)))
    return find_secrets(documents, environment)


def _look_into(name: str, text: str, note: Note) -> None:
    def look_into_file(path: str, content: str) -> str:
        _look_into(path, content, note)
        return content

    masker = Masker((), note, look_into_file)
    try:
        if name.endswith(".json"):
            value = parse_json(text)
            if isinstance(value, dict) and "processes" in value and "sources" in value:  # a plan
                value = {key: part for key, part in value.items() if key not in _NAMES_ALONE}
            masker.mask_value(value)
        elif name.endswith((".yaml", ".yml")):
            for node in compose_yaml(text):
                masker.mask_node(node)
    except Unreadable:
        pass  # it is masked line by line


def _is_told_apart(place: ValuePlace, text: str) -> bool:
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
        for spelling in (part, json.dumps(part)[1:-1], repr(part)[1:-1], part.replace("'", "''"), quote(part, safe="")):
            if len(spelling) >= SHORTEST:
                yield spelling


def mask_texts(value: Any, secrets: Collection[str] = ()) -> Any:
    """Return a value of JSON with its texts masked as texts: its own keys are no names of secrets."""
    if isinstance(value, str):
        return mask_text(value, secrets)
    if isinstance(value, dict):
        return {name: mask_texts(part, secrets) for name, part in value.items()}
    return [mask_texts(part, secrets) for part in value] if isinstance(value, (list, tuple)) else value
