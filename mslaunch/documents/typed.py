"""Values of JSON checked by annotations: dataclasses are made of objects, TypedDicts are checked in place."""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NoReturn,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from mslaunch.documents.limits import Unreadable

T = TypeVar("T")
Args = tuple[Any, ...]
Read = Callable[[Any], Any]
Bounds = Callable[[str, type], tuple[float, float]]
"""Returns the least and the largest number that a field of this name and type may have."""
_LONGEST_REPR = 40
_ABSENT = object()


class Mismatch(Exception):
    """A value does not have its type; readers add the place, the innermost part first."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.place: list[str] = []


class Reader(NamedTuple):
    """Reads values of one annotation."""

    exact: frozenset[type]
    """The types of values that are right as they are; who reads a value tests this before a call, for speed."""
    read: Read
    """Reads a value of any other type, or raises Mismatch."""
    is_simple: bool = False
    """Whether `read` refuses every value."""


class _Field(NamedTuple):
    name: str
    exact: frozenset[type]
    read: Read
    is_required: bool


def make(kind: type[T], raw: object) -> T:
    """Make a value of a type from JSON, or raise Unreadable.

    Keys that a dataclass does not have are left out: a later version may have added them.
    """
    reader = reader_of(cast(Hashable, kind))
    try:
        made: T = _read(reader, raw)
    except Mismatch as error:
        place = "".join(f"[{part}]" if part.isdecimal() else f".{part}" for part in reversed(error.place))
        raise Unreadable(f"{place.lstrip('.')}: {error}" if place else str(error)) from None
    return made


def _read(reader: Reader, value: Any) -> Any:
    if type(value) in reader.exact:
        return value
    return reader.read(value)


@cache
def reader_of(hint: Any, bounds: Bounds | None = None, name: str = "") -> Reader:
    """Return the reader of an annotation; `bounds` limits its numbers, by the name of the field that holds them.

    Messages have bounds. In them a Literal accepts any text: what the launcher does not plan for is refused later.
    """
    if is_dataclass(hint):
        return _of_dataclass(hint, bounds)
    if is_typeddict(hint):
        return _of_typed_dict(hint, bounds)
    if hint in (int, float) and bounds is not None:
        return _of_bounded_number(hint, *bounds(name, hint))
    origin = get_origin(hint)
    if origin is None:
        return _SIMPLE[hint]
    return _COMPOSED[origin](get_args(hint), bounds, name)


def mismatch(expected: str, value: object) -> Mismatch:
    """Say what was expected instead of a value, which is cut where it is long."""
    shortened = repr(value)
    if len(shortened) > _LONGEST_REPR:
        shortened = f"{shortened[:_LONGEST_REPR]}…"
    return Mismatch(f"{expected} is expected, got {shortened}")


def _simple(expected: str, *kinds: type) -> Reader:
    """Accept values of exactly these types: for isinstance, a bool is an int."""

    def read(value: Any) -> NoReturn:
        raise mismatch(expected, value)

    return Reader(frozenset(kinds), read, is_simple=True)


_NUMBER_NAMES = {int: "a whole number", float: "a number"}
_NULL = _simple("null", type(None))
_SIMPLE: dict[Any, Reader] = {
    str: _simple("text", str),
    int: _simple(_NUMBER_NAMES[int], int),
    float: _simple(_NUMBER_NAMES[float], int, float),
    bool: _simple("true or false", bool),
    None: _NULL,
    type(None): _NULL,
    Any: Reader(frozenset(), lambda value: value),
}


def _of_bounded_number(kind: type, least: float, largest: float) -> Reader:
    expected = _NUMBER_NAMES[kind]
    accepted = _SIMPLE[kind].exact

    def read(value: Any) -> Any:
        if type(value) in accepted and least <= value <= largest:
            return value
        raise mismatch(expected, value)

    return Reader(frozenset(), read)


def _of_annotated(args: Args, bounds: Bounds | None, name: str) -> Reader:
    """Apply what Annotated adds: functions that return what is expected instead of a value, None where it is right."""
    reader, checks = reader_of(args[0], bounds, name), args[1:]

    def read(value: Any) -> Any:
        checked = _read(reader, value)
        for check in checks:
            if expected := check(checked):
                raise mismatch(expected, value)
        return checked

    return Reader(frozenset(), read)


def _of_union(args: Args, bounds: Bounds | None, name: str) -> Reader:
    readers = [reader_of(arg, bounds, name) for arg in args]
    exact = frozenset[type]().union(*(reader.exact for reader in readers))
    complex_readers = [reader for reader in readers if not reader.is_simple]
    if len(complex_readers) < 2:
        reader = (complex_readers or readers)[0]
        return Reader(exact, reader.read, is_simple=not complex_readers)

    def read(value: Any) -> Any:
        mismatches = []
        for reader in readers:
            try:
                return _read(reader, value)
            except Mismatch as error:
                mismatches.append(error)
        # The deepest one belongs to the type that the value was meant to have.
        raise max(mismatches, key=lambda error: len(error.place))

    return Reader(exact, read)


def _of_literal(choices: Args, bounds: Bounds | None, _: str) -> Reader:
    if bounds is not None:
        return _SIMPLE[str]

    def read(value: Any) -> Any:
        if not isinstance(value, (str, int)) or value not in choices:
            raise mismatch(f"one of {', '.join(map(str, choices))}", value)
        return value

    return Reader(frozenset(), read)


def _of_sequence(args: Args, bounds: Bounds | None, _: str) -> Reader:
    """Make a tuple of a list; a list[...] is only checked."""
    if args[1:] not in ((), (...,)):
        return _of_fixed_tuple([reader_of(arg, bounds) for arg in args])
    exact, read_other, _is_simple = reader_of(args[0], bounds)

    def read(value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            raise mismatch("a list", value)
        made: list[Any] = []
        try:
            for part in value:
                made.append(part if type(part) in exact else read_other(part))
        except Mismatch as error:
            error.place.append(str(len(made)))
            raise
        return tuple(made)

    return Reader(frozenset(), read)


def _of_fixed_tuple(readers: list[Reader]) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, (list, tuple)) or len(value) != len(readers):
            raise mismatch(f"a list of {len(readers)}", value)
        made: list[Any] = []
        try:
            for part, (exact, read_other, _) in zip(value, readers, strict=True):
                made.append(part if type(part) in exact else read_other(part))
        except Mismatch as error:
            error.place.append(str(len(made)))
            raise
        return tuple(made)

    return Reader(frozenset(), read)


def _of_mapping(args: Args, bounds: Bounds | None, _: str) -> Reader:
    """Make a dictionary of an object, with numbers as keys where the type says so; a dict[...] is only checked."""
    if args == (str, Any):
        return _simple("an object", dict)
    keys, (exact, read_other, _is_simple) = reader_of(args[0]), reader_of(args[1], bounds)
    if args[0] is int:
        keys = Reader(frozenset(), _number_in_text)

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise mismatch("an object", value)
        made, key = {}, ""
        try:
            for key, part in value.items():
                made[_read(keys, key)] = part if type(part) in exact else read_other(part)
        except Mismatch as error:
            error.place.append(str(key)[:_LONGEST_REPR])
            raise
        return made

    return Reader(frozenset(), read)


def _number_in_text(key: Any) -> int:
    if not (isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 19):
        raise mismatch("a number in quotes", key)
    return int(key)


def _of_typed_dict(kind: Any, bounds: Bounds | None) -> Reader:
    """Check an object in place, and drop the keys that the class does not have."""
    hints = get_type_hints(kind, include_extras=True)
    own_fields = []
    for name, hint in hints.items():
        exact, read_other, _ = reader_of(hint, bounds, name)
        own_fields.append(_Field(name, exact, read_other, name in kind.__required_keys__))

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise mismatch("an object", value)
        present = 0
        name = ""
        try:
            for name, exact, read_other, is_required in own_fields:
                part = value.get(name, _ABSENT)
                if type(part) in exact:
                    present += 1
                elif part is not _ABSENT:
                    read_other(part)
                    present += 1
                elif is_required:
                    raise Mismatch("it is missing")
        except Mismatch as error:
            error.place.append(name)
            raise
        if present < len(value):
            for unknown in value.keys() - hints.keys():
                del value[unknown]
        return value

    return Reader(frozenset(), read)


def _of_dataclass(kind: Any, bounds: Bounds | None) -> Reader:
    """Make a dataclass of an object."""
    hints = get_type_hints(kind, include_extras=True)
    own_fields = []
    for field in fields(kind):
        exact, read_other, _ = reader_of(hints[field.name], bounds, field.name)
        is_required = field.default is MISSING and field.default_factory is MISSING
        own_fields.append(_Field(field.name, exact, read_other, is_required))

    def read(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if not isinstance(value, dict):
            raise mismatch("an object", value)
        arguments = {}
        for name, exact, read_other, is_required in own_fields:
            part = value.get(name, _ABSENT)
            if type(part) in exact:
                arguments[name] = part
            elif part is not _ABSENT:
                try:
                    arguments[name] = read_other(part)
                except Mismatch as error:
                    error.place.append(name)
                    raise
            elif is_required:
                raise Mismatch(f"{name} is missing")
        return kind(**arguments)

    return Reader(frozenset(), read)


_COMPOSED: dict[Any, Callable[[Args, Bounds | None, str], Reader]] = {
    Annotated: _of_annotated,
    Union: _of_union,
    types.UnionType: _of_union,
    Literal: _of_literal,
    tuple: _of_sequence,
    list: _of_sequence,
    Mapping: _of_mapping,
    dict: _of_mapping,
}
