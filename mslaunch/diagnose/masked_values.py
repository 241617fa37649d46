"""Values without their secrets, by the names under which they stand: those of JSON, and the nodes of YAML."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from mslaunch.diagnose.masked_commands import mask_command
from mslaunch.diagnose.masked_lines import mask_outline
from mslaunch.diagnose.masked_text import is_secret_value, mask_text
from mslaunch.shared.secret_names import MASK, looks_secret

_TEXT = "tag:yaml.org,2002:str"
_NO_TEXTS = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "bool", "null", "timestamp", "merge"))
_ASSIGNMENT = re.compile(r"(?P<name>-{0,2}[A-Za-z_][\w.-]{0,200})=(?P<value>.+)", re.DOTALL)
_NAME, _VALUE = "name", "value"
"""Kubernetes writes a variable as a mapping with these keys."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value stands."""

    secret: str = ""
    """The nearest name, its own or one above, that stands for a secret."""
    name: str = ""

    def below(self, name: str) -> Place:
        return Place(name if looks_secret(name) else self.secret, name)


TOP = Place()

Note = Callable[[Place, str], None]
MaskFile = Callable[[str, str], str]


@dataclass(frozen=True, slots=True)
class Masker:
    """Masks values; what stands below a name for a secret is one, whatever its own name is."""

    known: Collection[str] = ()
    """Texts that are secret wherever they stand."""
    note: Note | None = None
    """Called with every text that is masked because of its name."""
    mask_file: MaskFile | None = None
    """Masks a file that a value holds, as plans do: its path and its content."""

    def mask_value(self, value: Any, place: Place = TOP) -> Any:
        """Return a value of JSON with its secrets masked."""
        if isinstance(value, Mapping):
            return self._mask_mapping(value, place)
        if isinstance(value, (list, tuple)):
            if all(isinstance(one, str) for one in value):
                value = mask_command(value)
            before = ["", *value]  # of the words of a command, an option names the word after it
            return [
                self._mask_word(one, before[at], place) if isinstance(one, str) else self.mask_value(one, place)
                for at, one in enumerate(value)
            ]
        return self.mask_leaf(value, place) if isinstance(value, str) else value

    def _mask_mapping(self, value: Mapping[Any, Any], place: Place) -> dict[str, Any]:
        of_pair = value.get(_NAME)
        masked: dict[str, Any] = {}
        for key, one in value.items():
            name = of_pair if key == _VALUE and isinstance(of_pair, str) else str(key)
            masked[mask_text(str(key), self.known)] = self.mask_value(one, place.below(name))
        path, content = value.get("path"), value.get("content")
        if self.mask_file and not place.secret and isinstance(path, str) and isinstance(content, str):
            masked["content"] = self.mask_file(path, content)
        return masked

    def _mask_word(self, word: str, before: Any, place: Place) -> str:
        """Return a text of a list, which may be one of the words of a command."""
        assigned = _ASSIGNMENT.fullmatch(word)
        if assigned and looks_secret(name := assigned["name"].lstrip("-")):
            return f"{assigned['name']}={self.mask_leaf(assigned['value'], place.below(name))}"
        option = "" if word.startswith("--") else _option(before)
        return self.mask_leaf(word, place.below(option) if option else place)

    def mask_leaf(self, text: str, place: Place) -> str:
        """Return a text with its secrets masked."""
        if not is_secret_value(place.secret or place.name, text):
            return mask_text(mask_outline(text) if "\n" in text else text, self.known)
        if self.note:
            self.note(place, text)
        return MASK

    def mask_node(self, node: yaml.Node, place: Place = TOP, word_before: Any = None) -> None:
        """Mask the texts of a node of YAML in place; an alias is masked with what it stands for."""
        if isinstance(node, yaml.MappingNode):
            self._mask_pairs(node, place)
        elif isinstance(node, yaml.SequenceNode):
            if all(map(_is_text, node.value)):
                for one, shown in zip(node.value, mask_command([one.value for one in node.value]), strict=True):
                    one.value = shown
            before = ["", *(one.value for one in node.value)]
            for at, one in enumerate(node.value):
                self.mask_node(one, place, before[at])
        elif isinstance(node, yaml.ScalarNode) and node.tag not in _NO_TEXTS:
            is_item = word_before is not None
            shown = self._mask_word(node.value, word_before, place) if is_item else self.mask_leaf(node.value, place)
            if shown != node.value:
                node.value, node.tag, node.style = shown, _TEXT, None if shown == MASK else node.style

    def _mask_pairs(self, node: yaml.MappingNode, place: Place) -> None:
        names: dict[str, str] = {
            key.value: value.value for key, value in node.value if _is_text(key) and _is_text(value)
        }
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.mask_node(key, place)
                self.mask_node(value, place)
                continue
            name = names.get(_NAME, _VALUE) if key.value == _VALUE else str(key.value)
            key.value = mask_text(key.value, self.known)
            self.mask_node(value, place.below(name))


def mask_values(value: Any, known: Collection[str] = (), name: str = "") -> Any:
    """Return a value of JSON with the secrets in its texts masked, whole where a name stands for a secret."""
    return Masker(known).mask_value(value, TOP.below(name))


def _is_text(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode)


def _option(word: Any) -> str:
    """Return the name of an option that has its value in the next word."""
    return word.lstrip("-") if isinstance(word, str) and word.startswith("-") and "=" not in word else ""
