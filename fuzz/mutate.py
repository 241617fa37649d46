"""Mutations of valid samples: of bytes, of text and of JSON values, all drawn from one random source."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from random import Random
from typing import Any

_TOKEN = re.compile(rb"[A-Za-z_]+|\d+|\s+|.", re.DOTALL)

LARGEST = 200_000
"""Bytes of a case: the time that reading takes may grow with them."""

NUMBERS: tuple[Any, ...] = (
    *(0, -1, 1, 2, 7, 255, 256, 65535, 65536, 65537, 10**6, 2**31, -(2**31), 2**63 - 1, 2**63, 2**64, -(2**63) - 1),
    *(10**12, 10**30, 10**400, 0.5, -0.5, 1e-320, 1e18, 1e308, -1e308, float("nan"), float("inf"), float("-inf")),
)
TEXTS = (
    *("", " ", "0", "-1", "1e999", "nan", "inf", "null", "true", "~", "a/b", "../../x", "/dev/zero", "*", "[", "{"),
    *("\0", "\x1b[31m", "\n", "\r\n", "\t", "\ud800", "\udcff", "\U0001f600", "\u0660", "\u2028", "\ufeff", "%s"),
    *("{0}", "2026-01-01T00:00:00", "9999-12-31T23:59:59+00:00", "0001-01-01T00:00:00+00:00", "localhost", "<<"),
)
TOKENS = (
    *(b"", b" ", b"\n", b"\r", b"\0", b"\x1e", b"\x7f", b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf"),
    *(b"\x1b[", b"-1", b"0", b"65536", b"99999999999999999999", b"9" * 5000, b"1e999", b"1e400", b"NaN", b"-0"),
    *(b"Infinity", b"0x" + b"f" * 2000, b"1:" * 300 + b"1", b"1:" * 300 + b"1.5", b"0-99999", b"null", b"true"),
    *(b"{}", b"[]", b'""', b"&a", b"*a", b"<<", b"!!int", b"!!float", b"!!bool", b"!!timestamp", b"!!set", b"? "),
    *(b"!!binary", b": ", b"- ", b'"\\ud800"', b'"\\u0000"', b"2026-13-45", b"9999-99-99", b"@", b"%", b"\xd9\xa3"),
    *(b"0000-00-00-00:00:00.000.000", b"0001-01-01-00:00:00.000.000", b"9999-12-31-23:59:59.999.999"),
)


def _deep(random: Random) -> bytes:
    opening = random.choice((b"[", b"{", b'{"a":', b"[[", b"- ", b"a: "))
    return opening * random.choice((50, 101, 1000, 100_000))


def _flip(random: Random, data: bytearray) -> None:
    for _ in range(random.choice((1, 1, 2, 8))):
        data[random.randrange(len(data))] = random.randrange(256)


def _cut(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data))
    del data[at : at + random.choice((1, 2, 8, len(data)))]


def _repeat(random: Random, data: bytearray) -> None:
    """Write a piece several times: duplicated keys and lines, very long names and numbers."""
    at = random.randrange(len(data))
    piece = bytes(data[at : at + random.choice((1, 1, 2, 20, 200))])
    times = random.choice((1, 1, 2, 2, 5, 10, 50, 100, 100, 300, 1000, LARGEST // len(piece)))
    data[at:at] = piece * min(times, LARGEST // len(piece))


def _insert(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data) + 1)
    data[at:at] = _deep(random) if random.random() < 0.05 else random.choice(TOKENS)


def _replace_token(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data))
    found = _TOKEN.search(data, at)
    if found:
        data[found.start() : found.end()] = random.choice(TOKENS)


def _move_line(random: Random, data: bytearray) -> None:
    """Move, drop or copy a line."""
    lines = bytes(data).split(b"\n")
    line = lines.pop(random.randrange(len(lines)))
    for _ in range(random.choice((0, 1, 1, 2))):
        lines.insert(random.randrange(len(lines) + 1), line)
    data[:] = b"\n".join(lines)


def _splice(random: Random, data: bytearray, other: bytes) -> None:
    """Go on with the rest of another sample."""
    data[random.randrange(len(data)) :] = other[random.randrange(len(other) + 1) :]


_OF_BYTES: tuple[Callable[[Random, bytearray], None], ...] = (
    *(_flip, _flip, _cut, _repeat, _insert, _insert, _replace_token, _replace_token, _move_line),
)


def mutate_bytes(random: Random, data: bytes, samples: tuple[bytes, ...]) -> bytes:
    """Change a sample in a few places."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 3, 5))):
        if not changed:
            break
        if random.random() < 0.05:
            _splice(random, changed, random.choice(samples))
        else:
            random.choice(_OF_BYTES)(random, changed)
    return bytes(changed)


def _value(random: Random) -> Any:
    """A value that is probably of the wrong type."""
    kind = random.randrange(8)
    if kind < 3:
        return random.choice(NUMBERS)
    if kind < 5:
        return random.choice(TEXTS)
    if kind == 5:
        return random.choice(TEXTS) * random.choice((1, 50, 5000))
    if kind == 6:
        return random.choice((None, True, False, [], {}, [[]], [{}], {"a": 1}, [1, 2], ["a"], {"": None}))
    return _nest(random)


def _nest(random: Random) -> Any:
    value: Any = 0
    for _ in range(random.choice((2, 50, 101, 150))):
        value = [value] if random.random() < 0.5 else {"a": value}
    return value


def _change_place(random: Random, place: Any) -> None:
    """Change one value, or remove, copy, rename or add one."""
    keys: list[Any] = list(place) if isinstance(place, dict) else list(range(len(place)))
    if not keys:
        return
    key = random.choice(keys)
    kind = random.randrange(8)
    if kind < 4:
        place[key] = _value(random)
    elif kind == 4:
        del place[key]
    elif kind == 5:
        place[key] = place[random.choice(keys)]
    elif isinstance(place, dict):
        place[random.choice(TEXTS) if kind == 6 else f"{key}x"] = place.pop(key) if kind == 6 else _value(random)
    else:
        place.extend([place[key]] * random.choice((1, 3, 100)))


def _places(value: Any) -> list[Any]:
    found, queue = [], [value]
    while queue:
        one = queue.pop()
        if isinstance(one, (dict, list)):
            found.append(one)
            queue += one.values() if isinstance(one, dict) else one
    return found


def mutate_value(random: Random, value: Any) -> Any:
    """Return a JSON value, changed in place."""
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        places = _places(value)
        if not places or random.random() < 0.01:
            return _value(random)
        _change_place(random, random.choice(places))
    return value


def mutate_json(random: Random, data: bytes, samples: tuple[bytes, ...]) -> bytes:
    """Change a JSON text by its values, its bytes, or both."""
    how = random.random()
    if how < 0.6:
        changed = json.dumps(mutate_value(random, json.loads(data))).encode("utf-8", "surrogatepass")
        data = changed if len(changed) <= LARGEST else data
    return data if 0.1 <= how < 0.6 else mutate_bytes(random, data, samples)


def mutate_records(end: bytes) -> Callable[[Random, bytes, tuple[bytes, ...]], bytes]:
    """Return the mutation of a stream of JSON records that end so: of one record's values, or of any bytes."""

    def mutate(random: Random, data: bytes, samples: tuple[bytes, ...]) -> bytes:
        if random.random() < 0.4:
            return mutate_bytes(random, data, samples)
        records = data.split(end)
        index = random.choice([at for at, record in enumerate(records) if b"{" in record])
        records[index] = mutate_json(random, records[index], (records[index],))
        return end.join(records)

    return mutate
