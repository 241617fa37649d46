"""Reads a pickle as a description: tensors, storages and containers. Nothing is imported or called."""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable
from typing import Any

from mslaunch.checkpoint.formats.tensor import MalformedFile
from mslaunch.weights.pickled_values import (
    SHOWN,
    Opaque,
    StorageRef,
    TensorRef,
    allowed_name,
    call,
    kind_of,
    make_object,
    make_opaque,
    plain_key,
    refer,
)

MOST_OPCODES = 1 << 20
"""About two seconds; a file with 10,000 tensors has 300,000."""
MOST_MARKS = 1000


def read_pickle(file: io.BytesIO) -> tuple[Any, dict[str, StorageRef]]:
    """Read one pickle up to its end, and every storage that it refers to, also from what is dropped.

    A name that is in none of the tables is refused.
    """
    reader = _Reader()
    return reader.read(file), reader.storages


class _Reader:
    """The stack machine of a pickle, over descriptions."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.storages: dict[str, StorageRef] = {}
        self.work = 0
        """Instructions, and the items that calls have read."""

    def read(self, file: io.BytesIO) -> Any:
        try:
            for opcode, argument, _ in pickletools.genops(file):
                self.count(1)
                if opcode.name == "STOP":
                    return self.stack.pop()
                self.step(opcode.name, argument)
        except MalformedFile:
            raise
        except (ValueError, IndexError, KeyError, TypeError, OverflowError, AttributeError) as error:
            message = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else str(error)
            raise MalformedFile(f"its pickle cannot be read: {message[:SHOWN]}") from None
        raise MalformedFile("its pickle has no end")

    def count(self, steps: int) -> None:
        self.work += steps
        if self.work > MOST_OPCODES:
            raise MalformedFile(f"its pickle has over {MOST_OPCODES:,} instructions")

    def step(self, name: str, argument: Any) -> None:
        if name in _VALUES:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif name in _STEPS:
            _STEPS[name](self, argument)
        elif name not in ("PROTO", "FRAME"):
            raise MalformedFile(f"its pickle uses {name}, which a state_dict does not need")

    def mark(self, _: Any) -> None:
        if len(self.marks) >= MOST_MARKS:
            raise MalformedFile(f"its pickle is nested deeper than {MOST_MARKS} levels")
        self.marks.append(self.stack)
        self.stack = []

    def to_mark(self) -> list[Any]:
        items = self.stack
        self.stack = self.marks.pop()
        return items

    def last(self, count: int) -> tuple[Any, ...]:
        if len(self.stack) < count:
            raise IndexError("a value is missing")
        items = tuple(self.stack[-count:])
        del self.stack[-count:]
        return items

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, Opaque):
            return
        if not isinstance(target, dict):
            raise MalformedFile(f"its pickle sets items of {kind_of(target)}")
        if len(items) % 2:
            raise IndexError("a key without value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[plain_key(key)] = value

    def append_items(self, items: list[Any]) -> None:
        if isinstance(self.stack[-1], Opaque):
            return
        if not isinstance(self.stack[-1], list):
            raise MalformedFile(f"its pickle appends to {kind_of(self.stack[-1])}")
        self.stack[-1].extend(items)

    def add_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, Opaque):
            raise MalformedFile(f"its pickle adds to {kind_of(target)}")
        make_opaque(target.path, items)

    def put(self, index: int | None) -> None:
        self.memo[len(self.memo) if index is None else index] = self.stack[-1]

    def stack_global(self, _: Any) -> None:
        module, name = self.last(2)
        if not (isinstance(module, str) and isinstance(name, str)):
            raise MalformedFile("its pickle names something with what is no text")
        self.stack.append(allowed_name(f"{module}.{name}"))

    def reduce(self, _: Any) -> None:
        callee, arguments = self.last(2)
        if isinstance(arguments, tuple):
            self.count(sum(len(argument) for argument in arguments if isinstance(argument, (list, tuple))))
        self.stack.append(call(callee, arguments))

    def build(self, _: Any) -> None:
        """Leave out the attributes of a state_dict (its versions), of a tensor or of an object."""
        target, _state = self.last(2)
        if not isinstance(target, (dict, TensorRef, Opaque)):
            raise MalformedFile(f"its pickle sets attributes of {kind_of(target)}")
        self.stack.append(target)

    def persistent(self, _: Any) -> None:
        reference = refer(self.stack.pop())
        if isinstance(reference, StorageRef):
            self.storages[reference.key] = reference
        self.stack.append(reference)


_VALUES = frozenset(
    (
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
        *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    )
)
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
    "EMPTY_SET": lambda: Opaque("builtins.set"),
}


def _make_dict(reader: _Reader, _: Any) -> None:
    items = reader.to_mark()
    reader.stack.append({})
    reader.set_items(items)


def _push(make: Callable[[_Reader, Any], Any]) -> Callable[[_Reader, Any], None]:
    def push(reader: _Reader, argument: Any) -> None:
        value = make(reader, argument)  # first: this may change which stack is the present one
        reader.stack.append(value)

    return push


_STEPS: dict[str, Callable[[_Reader, Any], object]] = {
    "MARK": _Reader.mark,
    "POP": lambda reader, _: reader.last(1),
    "POP_MARK": lambda reader, _: reader.to_mark(),
    "DUP": _push(lambda reader, _: reader.stack[-1]),
    "TUPLE": _push(lambda reader, _: tuple(reader.to_mark())),
    "TUPLE1": _push(lambda reader, _: reader.last(1)),
    "TUPLE2": _push(lambda reader, _: reader.last(2)),
    "TUPLE3": _push(lambda reader, _: reader.last(3)),
    "LIST": _push(lambda reader, _: reader.to_mark()),
    "DICT": _make_dict,
    "FROZENSET": _push(lambda reader, _: make_opaque("builtins.frozenset", reader.to_mark())),
    "APPEND": lambda reader, _: reader.append_items(list(reader.last(1))),
    "APPENDS": lambda reader, _: reader.append_items(reader.to_mark()),
    "SETITEM": lambda reader, _: reader.set_items(list(reader.last(2))),
    "SETITEMS": lambda reader, _: reader.set_items(reader.to_mark()),
    "ADDITEMS": lambda reader, _: reader.add_items(reader.to_mark()),
    "PUT": _Reader.put,
    "BINPUT": _Reader.put,
    "LONG_BINPUT": _Reader.put,
    "MEMOIZE": _Reader.put,
    "GET": _push(lambda reader, index: reader.memo[index]),
    "BINGET": _push(lambda reader, index: reader.memo[index]),
    "LONG_BINGET": _push(lambda reader, index: reader.memo[index]),
    "GLOBAL": _push(lambda _, path: allowed_name(path.replace(" ", "."))),
    "STACK_GLOBAL": _Reader.stack_global,
    "INST": _push(lambda _, path: make_object(allowed_name(path.replace(" ", ".")))),
    "REDUCE": _Reader.reduce,
    "BUILD": _Reader.build,
    "BINPERSID": _Reader.persistent,
    "NEWOBJ": _push(lambda reader, _: make_object(reader.last(2)[0])),
    "NEWOBJ_EX": _push(lambda reader, _: make_object(reader.last(3)[0])),
    "OBJ": _push(lambda reader, _: make_object(reader.to_mark()[0])),
}
