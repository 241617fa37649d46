"""RULES.yaml of `mslaunch ckpt` and `mslaunch trace`: hostile regular expressions, wrong types, impossible changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import prod
from pathlib import Path
from random import Random
from typing import Any

from fuzz.mutate import mutate_bytes, mutate_json
from fuzz.run import Border
from mslaunch.checkpoint.formats.tensor import Tensor
from mslaunch.checkpoint.moving.views import view_of
from mslaunch.checkpoint.moving.weights import Weight, weight_of
from mslaunch.weights.names import READY, apply_rules, read_rules, reverse_rules

RULES: tuple[dict[str, Any], ...] = (
    {"from": r"h\.(\d+)\.q\.weight", "to": r"layers.\1.wq", "heads": {"head_dim": 4, "from": "halves", "to": "pairs"}},
    {"from": [r"h\.(\d+)\.k\.weight", r"h.\1.v.weight"], "to": r"layers.\1.kv", "concat": 0, "sizes": [1, 1]},
    {"from": r"h\.(\d+)\.qkv\.(weight|bias)", "to": [r"\1.q.\2", r"\1.k.\2", r"\1.v.\2"], "split": 0},
    {"from": r"conv\.(.*)", "to": r"c.\1", "insert": 2},
    {"from": r"fc\.(weight)", "to": r"dense.\1", "transpose": True},
    {"from": r"one\.(.+)", "to": r"two.\1", "remove": 0},
    {"drop": r".*\.inv_freq"},
)
PIECES = (
    *("(a+)+$", "(a|a)*b", "(.*)" * 9 + "x", "((a*)*)*b", r"(\w+\s?)*$", "(?:a{0,500}){0,500}b", "a{99999999999}"),
    *("a{65536}", "(" * 300 + ")" * 300, "(" * 5000, "[[a]", "(?P<x", "(?P<1>a)", "(?<=a*)b", "(?<!a+)", r"\9"),
    *("(?i)", "(?x) a", "*", "a**", "[z-a]", "(?#", r"\p{L}", r"\N{DIGIT ONE}", "(?(1)a|b)", "(a)(?(2)b)", r"(a)\2"),
    *("a++", "()", r"\g<1>", r"\g<99>", r"\g<" + "9" * 5000 + ">", r"\g<name>", r"\g<", "\\", r"\0", r"\x", r"\777"),
    *("\0", ".*" * 200),
)
SHAPES: dict[str, tuple[int, ...]] = {
    **{f"h.{number}.{one}.weight": (8, 4) for number in range(2) for one in "qkv"},
    "h.0.qkv.weight": (12, 4),
    "h.0.qkv.bias": (12,),
    "conv.weight": (3, 2, 5),
    "fc.weight": (4, 6),
    "one.weight": (1, 3),
    "scalar": (),
    "rotary.inv_freq": (8,),
    "a" * 60: (2,),
    "a" * 3000 + "!": (2,),
}


def _weights() -> dict[str, Weight]:
    return {
        name: weight_of(name, Path("net.pth"), view_of(Tensor(name, "Float32", shape, ((0, prod(shape) * 4),))))
        for name, shape in SHAPES.items()
    }


def _mutate(random: Random, data: bytes, known: tuple[bytes, ...]) -> bytes:
    """Mostly put a hostile piece into a pattern or a name."""
    if not data.startswith(b"{"):
        return mutate_bytes(random, data, known)
    if random.random() < 0.4:
        return mutate_json(random, data, known)
    document = json.loads(data)
    for _ in range(random.choice((1, 1, 2))):
        row = random.choice(document["rules"])
        key = random.choice([key for key in ("from", "to", "drop") if key in row])
        texts = row[key] if isinstance(row[key], list) else [row[key]]
        at = random.randrange(len(texts))
        piece = random.choice(PIECES) * random.choice((1, 1, 1, 3))
        texts[at] = random.choice((piece, piece + texts[at], texts[at] + piece, f"({texts[at]}){piece}"))
        row[key] = texts if isinstance(row[key], list) else texts[0]
    return json.dumps(document).encode()


def _open(folder: Path) -> Callable[[bytes], object]:
    weights = _weights()

    def read(data: bytes) -> None:
        path = folder / "rules.yaml"
        path.write_bytes(data)
        rules = read_rules(str(path))
        for some in rules:  # one alone, since the first that matches is taken
            apply_rules(weights, [some])
        apply_rules(apply_rules(weights, rules), reverse_rules(rules))

    return read


BORDERS = (
    Border(
        "rules",
        (json.dumps({"rules": RULES}).encode(), *(path.read_bytes() for path in sorted(READY.glob("*.yaml")))),
        _mutate,
        _open,
    ),
)
