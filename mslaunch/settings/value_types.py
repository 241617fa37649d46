"""The kinds of values that settings have: how each is written, and what is wrong with another."""

from __future__ import annotations

import json
import re
import shlex
from typing import Annotated, Any, Literal

from mslaunch.errors import MslaunchError
from mslaunch.hosts import parse_hosts
from mslaunch.ranges import MOST, format_ranges, parse_ranges
from mslaunch.settings.environment import VARIABLE
from mslaunch.settings.setting import Before, Limits, Matching, plain
from mslaunch.shared import layout

WHAT_A_TAG_IS = "up to 64 letters, digits and any of . _ : / = + -, with a letter or digit first"
_TAG = r"[A-Za-z0-9][A-Za-z0-9._:/=+-]{0,63}"


def is_tag(text: str) -> bool:
    """Tell whether a run may have this tag."""
    return re.fullmatch(_TAG, text) is not None


_PLAIN = re.compile(r"[A-Za-z/][\w./@+=-]*")
"""A text that YAML takes as it is, also in a list."""


def _ranges(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError('write for example "0-3,6"')
    if isinstance(value, (str, int)):
        try:
            return parse_ranges(str(value), "list")
        except MslaunchError as error:
            raise ValueError(str(error).removeprefix("list: ").rstrip(".")) from None
    return value


def _map(value: Any) -> Any:
    """Read a map of numbers, or of devices as msrun writes it: {"device0": ["0-9"]}."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise ValueError('write it as {"0": "0-9", "1": "10-19"}') from None
    if not isinstance(value, dict):
        return value
    numbers = {}
    for key, some in value.items():
        numbers[str(key)] = ",".join(map(str, some)) if isinstance(some, list) else some
    return numbers


def _line(value: Any) -> Any:
    if not isinstance(value, str):  # YAML takes 30:00 for 1800, and 0123 for 83
        raise ValueError("write it in quotes, or YAML takes it for a number")
    if not value or "\n" in value or "\r" in value:
        raise ValueError("one line of text is wanted")
    return value


def _folder(value: Any) -> Any:
    parts = str(value).split("/")
    if not isinstance(value, str) or not value or value.startswith("/") or ".." in parts or ":" in value:
        raise ValueError("name a folder of the project by its relative path, for example data/cache")
    return value.rstrip("/")


def as_list(value: Any) -> Any:
    """Take a text for a list of one."""
    return (value,) if isinstance(value, str) else value


def split_hosts(value: Any) -> Any:
    """Read texts such as `n1:8` in a list of hosts, as --hosts takes them."""
    if not isinstance(value, (list, tuple)):
        return value
    entries: list[Any] = []
    for entry in value:
        if not isinstance(entry, str):
            entries.append(entry)
            continue
        try:
            entries += [{"address": host.address, "devices": host.devices} for host in parse_hosts(entry, "hosts")]
        except MslaunchError as error:
            raise ValueError(str(error).removeprefix("hosts: ").rstrip(".")) from None
    return tuple(entries)


def _numbers(value: tuple[int, ...]) -> tuple[int, ...]:
    if not value or min(value) < 0 or len(set(value)) < len(value):
        raise ValueError('name each number once, for example "0-3,6"')
    return value


def _nodes(value: Any) -> Any:
    """Read `4`, or `2:4` for at least two and at most four."""
    if isinstance(value, (list, tuple)) and len(value) == 2:
        value = f"{value[0]}:{value[1]}"
    fewest, colon, most = str(value).partition(":")
    if isinstance(value, bool) or not all(part.isascii() and part.isdigit() for part in (fewest, most or fewest)):
        raise ValueError("write a number, or two as 2:4")
    both = int(fewest[:7]), int((most if colon else fewest)[:7])
    if not 1 <= both[0] <= both[1] <= 65536:
        raise ValueError("write a number from 1 on, or two as 2:4, the smaller first")
    return both


def _variables(value: dict[str, str | None]) -> dict[str, str | None]:
    for name, text in value.items():
        if not VARIABLE.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a variable: use letters, digits and underscores only")
        if "\0" in (text or ""):
            raise ValueError(f"{name!r} cannot hold a NUL")
    return value


def _url(value: str) -> str:
    if not re.fullmatch("https?://[^ ]*[^ /][^ ]*", value) or not value.isprintable():
        raise ValueError("write the whole address, for example https://chat.example.com/hook")
    return value


def _path(value: str) -> str:
    parts = value.encode("utf-8", "surrogateescape").split(b"/")
    if sum(map(len, parts)) + len(parts) > 4096 or max(map(len, parts)) > 255:
        raise ValueError("a path is 4,095 bytes long at most, and each name in it 255")
    return value


def _command(value: Any) -> Any:
    words = shlex.split(value) if isinstance(value, str) else value
    if words in ([], ()):
        raise ValueError("name the program")
    return words


def write_setting(value: Any) -> str:
    """Write the value of a setting on one line, as the YAML takes it."""
    if value is None:
        return "not set"
    return value if isinstance(value, str) else _in_yaml(plain(value))


def _in_yaml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_name(name)}: {_in_yaml(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        if value and all(type(number) is int for number in value) and list(value) == sorted(set(value)):
            ranges = format_ranges(value)
            return f'"{ranges}"' if "," in ranges else ranges
        return "[" + ", ".join(map(_in_yaml, value)) + "]"
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _name(name: object) -> str:
    return str(name) if str(name).isalnum() else _in_yaml(name)


Count = Annotated[int, Limits(least=1)]
Ranks = Annotated[int, Limits(least=1, most=MOST)]
Index = Annotated[int, Limits(least=0)]
Devices = Annotated[tuple[int, ...], _numbers, Before(_ranges)]
Tail = Literal["all", "none"] | Devices
Codes = Annotated[tuple[int, ...], Before(_ranges)]
Variables = Annotated[dict[str, str | None], _variables]
HostVariables = Annotated[dict[str, str], _variables]
Port = Annotated[int, Limits(least=1, most=65535)]
Seconds = Annotated[float, Limits(least=0)]
Wait = Annotated[float, Limits(above=0)]
Text = Annotated[str, Matching(r"[^\0]*", "text without a NUL is wanted")]
Line = Annotated[Text, Before(_line)]
Folder = Annotated[Text, Before(_folder)]
Tag = Annotated[str, Matching(_TAG, f"a tag is {WHAT_A_TAG_IS}")]
Url = Annotated[Text, _url]
PathText = Annotated[Text, _path]
Nodes = Annotated[tuple[int, int], Before(_nodes)]
Place = Annotated[str, Matching(r"(device|rank)?[0-9]{1,5}", "name a device or a rank, such as 0, device0 or rank0")]
"""A device or a rank: device3, rank3, or 3 for whichever fits."""
NumberMap = Annotated[dict[Place, Devices], Before(_map)]
RankOrNone = Literal["auto", "none"] | Index
Lines = Annotated[tuple[Line, ...], Before(as_list)]
Folders = Annotated[tuple[Folder, ...], Before(as_list)]
Tags = Annotated[tuple[Tag, ...], Before(as_list)]
RunName = Annotated[
    str,
    Matching(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", "use letters, digits, dots, dashes and underscores only"),
    Matching(rf"(?!{layout.LATEST}$).*", "latest is what the newest run is called; give another name"),
]
Command = Annotated[tuple[Text, ...], Before(_command)]
