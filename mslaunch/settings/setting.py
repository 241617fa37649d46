"""One setting: how it is declared, and how its value is read from what people write."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from dataclasses import MISSING, field, fields
from typing import Any, NamedTuple, get_type_hints

from mslaunch.documents.typed import Args, Mismatch, Reader, Readers, joined, read_with
from mslaunch.errors import did_you_mean

_WHOLE = re.compile(r"[+-]?[0-9]+(_[0-9]+)*(\.0+)?")
_TRUE = (1, "1", "on", "t", "true", "y", "yes")
_FALSE = (0, "0", "off", "f", "false", "n", "no")
_PHRASES = {"a list": "a list, such as [a, b]", "an object": "keys and values, such as {key: value}"}


class Flag(NamedTuple):
    """How a setting is given on the command line: its names, the type of its value and what stands for it in --help."""

    names: tuple[str, ...]
    kind: type
    metavar: str | None


class Setting(NamedTuple):
    """What a field of settings is declared with, beside its type and its default."""

    description: str
    flag: Flag | None = None
    help: str = ""
    """What --help says, where it is not the description."""
    absent: str = ""
    """What applies where the setting has no value, for the documentation."""
    see: str = ""
    """The page that explains it, or a part of its own page."""
    ignored: str = ""
    """Its variable, MSLAUNCH_<NAME>, is not read; the sentence says what to do instead."""
    key: str = ""
    """As the YAML calls it, where that is not the name of the field."""


def setting(default: Any, description: str, flag: str = "", kind: type = str, **more: Any) -> Any:
    """Declare a field: its default, or `...` for none, or a class that makes it; its flag as `--name -n METAVAR`."""
    names = tuple(word for word in flag.split() if word.startswith("-"))
    metavar = flag.removeprefix(" ".join(names)).strip() or None
    if default is False:
        kind = bool
    metadata = {"setting": Setting(description, Flag(names, kind, metavar) if flag else None, **more)}
    if default is ...:
        return field(metadata=metadata)
    if isinstance(default, type):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def settings_in(kind: Any) -> dict[str, Setting]:
    """Return the settings of a section by the names of its fields."""
    return {own.name: own.metadata["setting"] for own in fields(kind)}


class UnknownKey(Mismatch):
    """A section has no such key; the text follows the section's name, and names the nearest one."""


class Before(NamedTuple):
    """In Annotated: makes what the type takes of the values that people write, or raises ValueError."""

    convert: Callable[[Any], Any]


class Matching(NamedTuple):
    """In Annotated: the regular expression of a text, and what to write instead of another."""

    regex: str
    advice: str

    def __call__(self, text: str) -> str:
        if not re.fullmatch(self.regex, text):
            raise ValueError(self.advice)
        return text


class Limits(NamedTuple):
    """In Annotated: the least and the largest number, and one that is too small."""

    least: float | None = None
    most: float | None = None
    above: float | None = None

    def __call__(self, value: Any) -> Any:
        if self.least is not None and value < self.least:
            raise ValueError(f"write {self.least} or more")
        if self.most is not None and value > self.most:
            raise ValueError(f"write {self.most} or less")
        if self.above is not None and value <= self.above:
            raise ValueError(f"write more than {self.above}")
        return value


class SettingReaders(Readers):
    """Readers of what people write: numbers in quotes are numbers, and every wrong value is reported."""

    lists = (list, tuple, range, Set)

    def __init__(self) -> None:
        super().__init__()
        self.simple = {
            **Readers.simple,
            str: Reader(frozenset([str]), self._text),
            int: Reader(frozenset([int]), self._whole),
            float: Reader(frozenset(), self._number),
            bool: Reader(frozenset([bool]), self._truth),
        }

    def mismatch(self, expected: str, value: object) -> Mismatch:
        return Mismatch(f"write {_PHRASES.get(expected, expected)}", value)

    def _text(self, value: Any) -> str:
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return str(value)
        raise self.mismatch("a text", value)

    def _whole(self, value: Any) -> int:
        if isinstance(value, bool):
            raise Mismatch("a number is wanted, not true or false", value)
        if isinstance(value, str) and _WHOLE.fullmatch(value.strip()) and len(value) < 1000:
            return int(value.partition(".")[0])
        if isinstance(value, int) or (isinstance(value, float) and value.is_integer() and abs(value) < 2**63):
            return int(value)
        raise self.mismatch("a whole number", value)

    def _number(self, value: Any) -> float:
        if isinstance(value, bool):
            raise Mismatch("a number is wanted, not true or false", value)
        is_text = isinstance(value, str) and value.strip().isascii()
        if is_text or isinstance(value, (int, float)):
            with suppress(ValueError, OverflowError):
                number = float(value)
                if not math.isfinite(number):
                    raise self.mismatch("a finite number", value)
                return number
        raise self.mismatch("a number", value)

    def _truth(self, value: Any) -> bool:
        word = value.lower() if isinstance(value, str) else value
        for truth, words in ((True, _TRUE), (False, _FALSE)):
            if word in words:
                return truth
        raise self.mismatch("true or false", value)

    def of_literal(self, choices: Args, name: str) -> Reader:
        """Refuse other texts with the nearest choice."""
        del name
        *first, last = map(repr, choices)

        def read(value: Any) -> Any:
            if isinstance(value, str) and value in choices:
                return value
            near = did_you_mean(value, choices).rstrip("?") if isinstance(value, str) else ""
            raise Mismatch(f"input should be {', '.join(first)} or {last}{near}", value)

        return Reader(frozenset(), read)

    def of_annotated(self, args: Args, name: str) -> Reader:
        """Apply Before, then the type, then functions that return the value as it is used, or raise ValueError."""
        reader = self.reader_of(args[0], name)
        before = [part.convert for part in args[1:] if isinstance(part, Before)]
        after = [part for part in args[1:] if not isinstance(part, Before)]

        def read(value: Any) -> Any:
            result = value
            try:
                for convert in before:
                    result = convert(result)
                result = read_with(reader, result)
                for convert in after:
                    result = convert(result)
            except ValueError as error:
                message = str(error)
                raise Mismatch(message[:1].lower() + message[1:], value, has_right_type=True) from None
            return result

        return Reader(frozenset(), read)

    def of_dataclass(self, kind: Any) -> Reader:
        """Make a section of a mapping that has no other keys."""
        hints = get_type_hints(kind, include_extras=True)
        own_fields = {own.metadata["setting"].key or own.name: own for own in fields(kind)}

        def read(value: Any) -> Any:
            if isinstance(value, kind):
                return value
            if not isinstance(value, Mapping):
                raise self.mismatch("an object", value)
            arguments: dict[str, Any] = {}
            mismatches: list[Mismatch] = []
            for key, own in own_fields.items():
                try:
                    if key in value:
                        arguments[own.name] = read_with(self.reader_of(hints[own.name]), value[key])
                    elif own.default is MISSING and own.default_factory is MISSING:
                        raise Mismatch("it is missing")
                except Mismatch as error:
                    mismatches.append(error.inside(key))
            for key in value:
                if key not in own_fields:
                    near = did_you_mean(str(key), own_fields) or "."
                    mismatches.append(UnknownKey(f"has no key {str(key)!r}{near}"))
            if mismatches:
                raise joined(mismatches)
            return kind(**arguments)

        return Reader(frozenset(), read)


READERS = SettingReaders()


def plain(value: Any) -> Any:
    """Return a value of a setting as plain data; a section without what has its default."""
    if isinstance(value, (list, tuple, range, Set)):
        return [plain(part) for part in value]
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if not hasattr(value, "__dataclass_fields__"):
        return value
    section = {}
    for own in fields(value):
        part = getattr(value, own.name)
        if part not in (own.default, {}):
            section[own.metadata["setting"].key or own.name] = plain(part)
    return section
