"""Finds the scales of float8 weights, by the names that Hugging Face's checkpoints give them, and joins the two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import ceil

from mslaunch.checkpoint.moving import views
from mslaunch.checkpoint.moving.views import FLOATS, Scale, TensorView
from mslaunch.checkpoint.moving.weights import Weight
from mslaunch.checkpoint.sharding.strategy import Shape
from mslaunch.errors import RequestError

_NAMES = ("_scale_inv", "_scale")
"""The endings of the names of scales; both hold factors, whatever the name suggests."""
_BLOCK = 128
"""Rows and columns of a block that has one scale (DeepSeek-V3, Qwen3-FP8)."""
_FLOAT8 = tuple(dtype for dtype in FLOATS if dtype.startswith("Float8"))
_OF_INPUTS = ("input", "act")
_WAY_OUT = "Write the weights as bfloat16 with the program that made them, and import those."


def join_scales(weights: Mapping[str, Weight]) -> dict[str, Weight]:
    """Multiply float8 weights by the scales that stand beside them, when they are read; the scales are used up."""
    made = dict(weights)
    scales: dict[str, str] = {}
    for name in weights:
        layer, _, last = name.rpartition(".")
        if "scale" in last and not any(word in last for word in _OF_INPUTS):
            scales[layer] = name
    for name, weight in weights.items():
        if weight.dtype in _FLOAT8:
            scale = next((candidate for word in _NAMES if (candidate := f"{name}{word}") in weights), None)
            other = scales.get(name.rpartition(".")[0])
            if scale is not None:
                made[name] = _joined(weight, weights[scale])
                made.pop(scale, None)
            elif other is not None:  # a plain cast would be wrong
                what = f"its float8 values may be scaled by {other}, which is not understood"
                raise RequestError(f"{name}: {what}. {_WAY_OUT}")
    return made


def is_scaled(weight: Weight) -> bool:
    return any(view.scale is not None for *_, view in weight.pieces)


def _joined(weight: Weight, factors: Weight) -> Weight:
    if factors.dtype not in FLOATS or factors.dtype in _FLOAT8 or len(weight.pieces) != 1 or len(factors.pieces) != 1:
        raise RequestError(f"{factors.name}: scales of type {factors.dtype} are not understood. {_WAY_OUT}")
    (_, path, view), (box, own, values) = factors.pieces[0], weight.pieces[0]
    view = _same_dimensions(view, len(weight.shape))
    blocks = _blocks(weight.shape, view.shape)
    if blocks is None:
        both = f"{factors.name} ({factors.words()}) is no scale for each row or block of {_BLOCK}x{_BLOCK} of"
        raise RequestError(f"{both} {weight.name} ({weight.words()}). {_WAY_OUT}")
    scale = Scale(path, view, blocks, (0,) * len(blocks))
    return replace(weight, dtype="Float32", pieces=((box, own, replace(values, cast="Float32", scale=scale)),))


def _same_dimensions(view: TensorView, count: int) -> TensorView:
    """One scale for all values has none or one dimension, one for each row too."""
    while len(view.shape) < count:
        view = views.rearrange(view, partial(views.inserted, len(view.shape)))
    if count == 0 and view.shape == (1,):
        view = views.remove_dimension(view, 0)
    return view


def _blocks(shape: Shape, scales: Shape) -> tuple[int, ...] | None:
    """Return how many values of each dimension have one scale; None where the shapes do not fit."""
    if len(shape) != len(scales):
        return None
    blocks = []
    for size, count in zip(shape, scales, strict=True):
        choices = {1: max(size, 1), ceil(size / _BLOCK): _BLOCK, size: 1}
        if count not in choices:
            return None
        blocks.append(choices[count])
    return tuple(blocks)
