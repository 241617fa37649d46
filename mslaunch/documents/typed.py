"""Values checked by annotations: dataclasses are made of objects, TypedDicts are checked in place."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NoReturn,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from mslaunch.documents.limits import Unreadable

T = TypeVar("T")
Args = tuple[Any, ...]
Read = Callable[[Any], Any]
_LONGEST_REPR = 40
_MOST_MISMATCHES = 100
ABSENT = object()


class Mismatch(Exception):
    """A value does not have its type; readers add the place, the innermost part first."""

    def __init__(self, message: str, value: object = ABSENT, has_right_type: bool = False) -> None:
        super().__init__(message)
        self.value = value
        self.has_right_type = has_right_type
        self.place: list[str] = []
        self.others: list[Mismatch] = []
        """What else is wrong with the value."""

    def inside(self, key: object) -> Mismatch:
        """Add the key, or the number in a list, that leads to the value."""
        for mismatch in (self, *self.others):
            mismatch.place.append(str(key)[:_LONGEST_REPR])
        return self


class Reader(NamedTuple):
    """Reads values of one annotation."""

    exact: frozenset[type]
    """The types of values that are right as they are; who reads a value tests this before a call, for speed."""
    read: Read
    """Reads a value of any other type, or raises Mismatch."""
    is_simple: bool = False
    """Whether `read` refuses every value."""


def make(kind: type[T], raw: object) -> T:
    """Make a value of a type from JSON, or raise Unreadable.

    Keys that a dataclass does not have are left out: a later version may have added them.
    """
    try:
        made: T = read_with(RECORDS.reader_of(kind), raw)
    except Mismatch as error:
        place = "".join(f"[{part}]" if part.isdecimal() else f".{part}" for part in reversed(error.place))
        raise Unreadable(f"{place.lstrip('.')}: {error}" if place else str(error)) from None
    return made


def read_with(reader: Reader, value: Any) -> Any:
    """Read a value, or raise Mismatch."""
    if type(value) in reader.exact:
        return value
    return reader.read(value)


def all_mismatches(parts: Iterable[tuple[object, Reader, Any]]) -> Mismatch:
    """Return what is wrong with the parts of a value, of which one is: each has a key, a reader and a value."""
    mismatches: list[Mismatch] = []
    for key, reader, part in parts:
        try:
            read_with(reader, part)
        except Mismatch as error:
            mismatches.append(error.inside(key))
        if len(mismatches) >= _MOST_MISMATCHES:
            break
    return joined(mismatches)


def joined(mismatches: list[Mismatch]) -> Mismatch:
    """Return the first of several mismatches, which has the others."""
    first = mismatches[0]
    for error in mismatches[1:]:
        first.others += [error, *error.others]
    return first


def simple(expected: str, *kinds: type) -> Reader:
    """Return a reader that accepts values of exactly these types: for isinstance, a bool is an int."""

    def read(value: Any) -> NoReturn:
        raise RECORDS.mismatch(expected, value)

    return Reader(frozenset(kinds), read, is_simple=True)


_NULL = simple("null", type(None))


class Readers:
    """The readers of annotations: those of the records that programs write, and nobody by hand."""

    lists: Any = (list, tuple)
    """What can be read as a list."""
    simple: Mapping[Any, Reader] = {
        str: simple("text", str),
        int: simple("a whole number", int),
        float: simple("a number", int, float),
        bool: simple("true or false", bool),
        None: _NULL,
        type(None): _NULL,
        Any: Reader(frozenset(), lambda value: value),
    }

    def __init__(self) -> None:
        self._made: dict[tuple[Any, str], Reader] = {}
        self._composed: dict[Any, Callable[[Args, str], Reader]] = {
            Annotated: self.of_annotated,
            Union: self._of_union,
            types.UnionType: self._of_union,
            Literal: self.of_literal,
            tuple: self._of_sequence,
            list: self._of_sequence,
            Mapping: self._of_mapping,
            dict: self._of_mapping,
        }

    def reader_of(self, hint: Any, name: str = "") -> Reader:
        """Return the reader of an annotation; `name` is that of the field that holds the value."""
        reader = self._made.get((hint, name))
        if reader is None:
            reader = self._made[hint, name] = self._make_reader(hint, name)
        return reader

    def _make_reader(self, hint: Any, name: str) -> Reader:
        if is_dataclass(hint):
            return self.of_dataclass(hint)
        if is_typeddict(hint):
            return self._of_typed_dict(hint)
        origin = get_origin(hint)
        if origin is None:
            return self.of_simple(hint, name)
        return self._composed[origin](get_args(hint), name)

    def mismatch(self, expected: str, value: object) -> Mismatch:
        """Say what was expected instead of a value, which is cut where it is long."""
        shortened = repr(value)
        if len(shortened) > _LONGEST_REPR:
            shortened = f"{shortened[:_LONGEST_REPR]}…"
        return Mismatch(f"{expected} is expected, got {shortened}")

    def of_simple(self, kind: Any, _: str) -> Reader:
        return self.simple[kind]

    def of_annotated(self, args: Args, name: str) -> Reader:
        """Apply functions in Annotated, which return what is expected instead of a value, None where it is right."""
        reader, checks = self.reader_of(args[0], name), args[1:]

        def read(value: Any) -> Any:
            checked = read_with(reader, value)
            for check in checks:
                if expected := check(checked):
                    raise self.mismatch(expected, value)
            return checked

        return Reader(frozenset(), read)

    def _of_union(self, args: Args, name: str) -> Reader:
        readers = [self.reader_of(arg, name) for arg in args]
        exact = frozenset[type]().union(*(reader.exact for reader in readers))
        complex_readers = [reader for reader in readers if not reader.is_simple]
        if len(complex_readers) < 2:
            reader = (complex_readers or readers)[0]
            return Reader(exact, reader.read, is_simple=not complex_readers)

        def read(value: Any) -> Any:
            mismatches = []
            for reader in complex_readers:
                try:
                    return read_with(reader, value)
                except Mismatch as error:
                    mismatches.append(error)
            # The deepest ones belong to the type that the value was meant to have.
            nearest = max(map(_nearness, mismatches))
            raise joined([error for error in mismatches if _nearness(error) == nearest])

        return Reader(exact, read)

    def of_literal(self, choices: Args, _: str) -> Reader:
        def read(value: Any) -> Any:
            if not isinstance(value, (str, int)) or value not in choices:
                raise self.mismatch(f"one of {', '.join(map(str, choices))}", value)
            return value

        return Reader(frozenset(), read)

    def _of_sequence(self, args: Args, _: str) -> Reader:
        """Make a tuple of a list, of a certain length where the type says so; a list[...] is only checked."""
        readers = [self.reader_of(arg) for arg in args if arg is not ...]
        is_fixed = args[1:] not in ((), (...,))

        def read(value: Any) -> Any:
            if not isinstance(value, self.lists):
                raise self.mismatch("a list", value)
            if is_fixed and len(value) != len(readers):
                raise self.mismatch(f"a list of {len(readers)}", value)
            own_readers = readers if is_fixed else readers * len(value)
            pairs = zip(own_readers, value, strict=True)
            try:
                return tuple([part if type(part) in exact else other(part) for (exact, other, _), part in pairs])
            except Mismatch:
                raise all_mismatches(zip(range(len(value)), own_readers, value, strict=True)) from None

        return Reader(frozenset(), read)

    def _of_mapping(self, args: Args, _: str) -> Reader:
        """Make a dictionary of an object, with numbers as keys where the type says so; a dict[...] is only checked."""
        keys, values = self.reader_of(args[0]), self.reader_of(args[1])
        if args[0] is int:
            keys = Reader(frozenset(), self._number_in_text)
        exact, read_other, _is_simple = values
        if keys.is_simple and args[1] is Any:
            return simple("an object", dict)

        def read(value: Any) -> Any:
            if not isinstance(value, (dict, Mapping)):
                raise self.mismatch("an object", value)
            try:
                return {
                    read_with(keys, key): part if type(part) in exact else read_other(part)
                    for key, part in value.items()
                }
            except Mismatch:
                parts: list[tuple[object, Reader, Any]] = []
                for key, part in value.items():
                    parts += [(key, keys, key), (key, values, part)]
                raise all_mismatches(parts) from None

        return Reader(frozenset(), read)

    def _number_in_text(self, key: Any) -> int:
        if not (isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 19):
            raise self.mismatch("a number in quotes", key)
        return int(key)

    def _of_typed_dict(self, kind: Any) -> Reader:
        """Check an object in place, and drop the keys that the class does not have."""
        hints = get_type_hints(kind, include_extras=True)
        own_fields = [(name, *self.reader_of(hint, name)) for name, hint in hints.items()]

        def read(value: Any) -> Any:
            if type(value) is not dict:
                raise self.mismatch("an object", value)
            present = 0
            for name, exact, read_other, _ in own_fields:
                part = value.get(name, ABSENT)
                if part is ABSENT:
                    if name in kind.__required_keys__:
                        raise Mismatch("it is missing").inside(name)
                    continue
                present += 1
                if type(part) not in exact:
                    try:
                        read_other(part)
                    except Mismatch as error:
                        raise error.inside(name) from None
            if present < len(value):
                for unknown in value.keys() - hints.keys():
                    del value[unknown]
            return value

        return Reader(frozenset(), read)

    def of_dataclass(self, kind: Any) -> Reader:
        """Make a dataclass of an object."""
        hints = get_type_hints(kind, include_extras=True)
        own_fields = []
        for field in fields(kind):
            is_required = field.default is MISSING and field.default_factory is MISSING
            own_fields.append((field.name, is_required, *self.reader_of(hints[field.name], field.name)))

        def read(value: Any) -> Any:
            if isinstance(value, kind):
                return value
            if not isinstance(value, dict):
                raise self.mismatch("an object", value)
            arguments = {}
            for name, is_required, exact, read_other, _ in own_fields:
                part = value.get(name, ABSENT)
                if type(part) in exact:
                    arguments[name] = part
                elif part is not ABSENT:
                    try:
                        arguments[name] = read_other(part)
                    except Mismatch as error:
                        raise error.inside(name) from None
                elif is_required:
                    raise Mismatch(f"{name} is missing")
            return kind(**arguments)

        return Reader(frozenset(), read)


def _nearness(error: Mismatch) -> tuple[int, bool]:
    return len(error.place), error.has_right_type


RECORDS = Readers()
