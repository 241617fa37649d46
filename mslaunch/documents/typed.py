"""Plain values of JSON made into dataclasses by their annotations; other types are refused with their place."""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from mslaunch.documents.limits import Unreadable

T = TypeVar("T")
Reader = Callable[[Any], Any]
_SHOWN = 40


class _Wrong(Exception):
    """A value is not of its type; the place is added on the way out."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.place: list[str] = []


def make(kind: type[T], raw: object) -> T:
    """Make a dataclass of an object of JSON, or raise Unreadable.

    Keys that the class does not have are left out: a later version may have added them.
    """
    try:
        made: T = _reader(cast(Hashable, kind))(raw)
    except _Wrong as error:
        place = "".join(f"[{part}]" if part.isdecimal() else f".{part}" for part in reversed(error.place))
        raise Unreadable(f"{place.lstrip('.')}: {error}" if place else str(error)) from None
    return made


@cache
def _reader(kind: Any) -> Reader:
    """Return the function that reads a value of a type."""
    if is_dataclass(kind):
        return _object(kind)
    origin = get_origin(kind)
    return _SIMPLE[kind] if origin is None else _COMPOSED[origin](get_args(kind))


def _wrong(wanted: str, value: object) -> _Wrong:
    shown = repr(value)
    return _Wrong(f"{wanted} is expected, got {shown[:_SHOWN]}{'…' if len(shown) > _SHOWN else ''}")


def _simple(wanted: str, *kinds: type) -> Reader:
    def read(value: Any) -> Any:
        if type(value) not in kinds:  # a bool is an int for isinstance
            raise _wrong(wanted, value)
        return value

    return read


_SIMPLE: dict[Any, Reader] = {
    str: _simple("text", str),
    int: _simple("a whole number", int),
    float: _simple("a number", int, float),
    bool: _simple("true or false", bool),
    type(None): _simple("null", type(None)),
    Any: lambda value: value,
}


def _checked(args: tuple[Any, ...]) -> Reader:
    """What Annotated adds are functions that say what is expected instead of a value, or None where it is right."""

    read, checks = _reader(args[0]), args[1:]

    def read_and_check(value: Any) -> Any:
        result = read(value)
        for check in checks:
            if wanted := check(result):
                raise _wrong(wanted, value)
        return result

    return read_and_check


def _one_of(args: tuple[Any, ...]) -> Reader:
    readers = [_reader(arg) for arg in args]

    def read(value: Any) -> Any:
        problems = []
        for one in readers:
            try:
                return one(value)
            except _Wrong as error:
                problems.append(error)
        # The one that got farthest is the one that was meant.
        raise max(problems, key=lambda error: len(error.place))

    return read


def _literal(words: tuple[Any, ...]) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, (str, int)) or value not in words:
            raise _wrong(f"one of {', '.join(map(str, words))}", value)
        return value

    return read


def _listed(args: tuple[Any, ...]) -> Reader:
    if args[1:] != (...,):
        return _of_length([_reader(arg) for arg in args])
    read = _reader(args[0])

    def read_all(value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            raise _wrong("a list", value)
        found: list[Any] = []
        try:
            for one in value:
                found.append(read(one))
        except _Wrong as error:
            error.place.append(str(len(found)))
            raise
        return tuple(found)

    return read_all


def _of_length(readers: list[Reader]) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, (list, tuple)) or len(value) != len(readers):
            raise _wrong(f"a list of {len(readers)}", value)
        return tuple(one(part) for one, part in zip(readers, value, strict=True))

    return read


def _mapped(args: tuple[Any, ...]) -> Reader:
    read_key = _number_in_text if args[0] is int else _reader(args[0])  # keys of JSON are text, numbers too
    read = _reader(args[1])

    def read_all(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _wrong("an object", value)
        found, key = {}, ""
        try:
            for key, one in value.items():
                found[read_key(key)] = read(one)
        except _Wrong as error:
            error.place.append(str(key)[:_SHOWN])
            raise
        return found

    return read_all


def _number_in_text(key: Any) -> int:
    if not (isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 19):
        raise _wrong("a number in quotes", key)
    return int(key)


def _object(kind: Any) -> Reader:
    hints = get_type_hints(kind, include_extras=True)
    known = [(one.name, _reader(hints[one.name]), _is_needed(one)) for one in fields(kind)]

    def read(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if not isinstance(value, dict):
            raise _wrong("an object", value)
        found = {}
        for name, read_one, needed in known:
            if name in value:
                try:
                    found[name] = read_one(value[name])
                except _Wrong as error:
                    error.place.append(name)
                    raise
            elif needed:
                raise _Wrong(f"{name} is missing")
        return kind(**found)

    return read


_COMPOSED: dict[Any, Callable[[tuple[Any, ...]], Reader]] = {
    Annotated: _checked,
    Union: _one_of,
    types.UnionType: _one_of,
    Literal: _literal,
    tuple: _listed,
    Mapping: _mapped,
}


def _is_needed(field: Any) -> bool:
    return field.default is MISSING and field.default_factory is MISSING
