"""What comes from hosts is checked here, before anything else looks at it: by the types of `messages`."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Collection, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from mslaunch.shared import messages
from mslaunch.shared.wire import UnreadableRecord
from mslaunch.transports.base import Channel

LARGEST = {"code": 255, "signal": 255, "crashed": 255, "port": 65535}
"""Numbers that are bounded by what they mean."""
EARLIEST = -6e10  # a time in the year 68: a clock may be set to any, and dates begin with the year 1
LEAST = {"time": EARLIEST}
"""Of numbers that may be negative."""
LARGEST_INT = 2**63 - 1
LARGEST_FLOAT = 1e11  # a time in the year 5138: dates end in 9999
LONGEST_NAME = 64

Rule = tuple[frozenset[type], float, float, Callable[[Any], bool] | None]
"""The types that a value may have, the least and the largest number, a check of what a list or a dictionary holds."""
_MISSING = object()


class Rejected(Exception):
    """A host has sent what it must not send; the text says what, after the host's name."""


def receive_checked(channel: Channel) -> list[messages.Message] | None:
    """Receive events of a channel's own hosts; None when the stream has ended."""
    received = channel.receive()
    for event in received or ():
        check_event(event, channel.hosts)
    return received


def check_event(event: messages.Message, hosts: Collection[str]) -> None:
    """Make sure that an event is of one of these hosts and has the fields of its type, and no others.

    Of an event that this version does not know, only name and host are checked.
    """
    if isinstance(event, UnreadableRecord):
        raise Rejected(f"sent {event.why}")
    name, host = event.get("ev"), event.get("host")
    if type(host) is not str or host not in hosts:
        raise Rejected(f"sent an event of {_short(host)}, for which it may not speak")
    if type(name) is not str or len(name) > LONGEST_NAME:
        raise Rejected(f"sent an event with the name {_short(name)}")
    shape = _SHAPES.get(name)
    if shape is None:
        return
    known = 0
    for field, kinds, least, largest, holds, is_required in shape:
        value = event.get(field, _MISSING)
        kind = type(value)
        if kind in kinds:
            known += 1
            if kind is int or kind is float:
                if least <= value <= largest:
                    continue
            elif holds is None or value is None or holds(value):
                continue
        elif value is _MISSING and not is_required:
            continue
        words = "is missing" if value is _MISSING else f"is {_short(value)}"
        raise Rejected(f"sent a wrong event: {field} of {name} {words}")
    if known < len(event):
        for field in event.keys() - _FIELDS[name]:
            del event[field]


def _short(value: object) -> str:
    return reprlib.repr(value)[:LONGEST_NAME]


def _rule(hint: Any, name: str = "") -> Rule:
    """Derive a rule from a type of `messages`."""
    if get_origin(hint) in (Union, UnionType):
        rules = [_rule(part, name) for part in get_args(hint)]
        kinds = frozenset[type]().union(*(rule[0] for rule in rules))
        least, largest = min(rule[1] for rule in rules), max(rule[2] for rule in rules)
        return kinds, least, largest, next((rule[3] for rule in rules if rule[3]), None)
    if get_origin(hint) is Annotated or is_typeddict(hint):  # the first has a check of its own
        return frozenset({dict}), 0, 0, _holds_fields(_fields(hint)) if is_typeddict(hint) else hint.__metadata__[0]
    if get_origin(hint) is Literal:
        hint = str
    if get_origin(hint) is list:
        return frozenset({list}), 0, 0, _holds_items(_rule(get_args(hint)[0]))
    if get_origin(hint) is dict:
        items = _holds_items(_rule(get_args(hint)[1]))
        return frozenset({dict}), 0, 0, lambda value: items(value.values())
    if hint is float:
        return frozenset({int, float}), LEAST.get(name, 0.0), LARGEST.get(name, LARGEST_FLOAT), None
    return frozenset({NoneType if hint is None else hint}), 0, LARGEST.get(name, LARGEST_INT), None


def _follows(value: Any, rule: Rule) -> bool:
    kinds, least, largest, holds = rule
    kind = type(value)
    if kind is int or kind is float:
        return kind in kinds and least <= value <= largest
    return kind in kinds and (holds is None or value is None or holds(value))


def _holds_items(rule: Rule) -> Callable[[Any], bool]:
    return lambda items: all(_follows(item, rule) for item in items)


def _holds_fields(fields: Mapping[str, tuple[Rule, bool]]) -> Callable[[Any], bool]:
    return lambda value: all(
        _follows(value[name], rule) if name in value else not is_required
        for name, (rule, is_required) in fields.items()
    )


def _fields(kind: Any) -> dict[str, tuple[Rule, bool]]:
    hints = get_type_hints(kind, include_extras=True)
    return {name: (_rule(hint, name), name in kind.__required_keys__) for name, hint in hints.items()}


_SHAPES = {
    name: tuple((field, *rule, is_required) for field, (rule, is_required) in _fields(kind).items())
    for name, kind in messages.AGENT_EVENTS.items()
}
_FIELDS = {name: frozenset(field for field, *_ in shape) for name, shape in _SHAPES.items()}
