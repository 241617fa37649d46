"""float8 weights with scales beside them: imported values are multiplied, or the file is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mslaunch.checkpoint.moving.casts import to_numbers
from tests.beds.sharded import content_of, contents_of, json_strategy, safetensors_bytes
from tests.conftest import Bench

Array = np.ndarray[Any, np.dtype[Any]]
RANDOM = np.random.default_rng(5)


def float8(*shape: int) -> Array:
    """Bits of numbers, none of which is NaN."""
    return RANDOM.integers(0, 0x7F, shape, np.uint8) | RANDOM.choice([0, 0x80], shape).astype(np.uint8)


def write(path: Path, tensors: dict[str, Array]) -> None:
    """Write a .safetensors; bytes are float8."""
    kinds = {"uint8": "F8_E4M3", "float32": "F32", "int8": "I8"}
    header, at = {}, 0
    for name, values in tensors.items():
        end = at + values.nbytes
        header[name] = {"dtype": kinds[str(values.dtype)], "shape": list(values.shape), "data_offsets": [at, end]}
        at = end
    path.write_bytes(safetensors_bytes(header, b"".join(values.tobytes() for values in tensors.values())))


def floats(*shape: int) -> Array:
    return np.asarray(RANDOM.random(shape, np.float32) / 1000, np.float32)


BITS = float8(300, 200)
SCALES: dict[str, tuple[str, Array, Callable[[Array], Array]]] = {
    "blocks of 128": ("w_scale_inv", floats(3, 2), lambda one: one.repeat(128, 0).repeat(128, 1)[:300, :200]),
    "each row": ("w_scale", floats(300, 1), lambda one: one),
    "each row, one dimension": ("w_scale", floats(300), lambda one: one[:, None]),
    "all": ("w_scale", floats(), lambda one: one),
    "all, one dimension": ("w_scale", floats(1), lambda one: one),
}
NUMBERS = to_numbers(BITS, "Float8_e4m3fn")


@pytest.mark.parametrize("kind", SCALES)
def test_values_are_multiplied_by_their_scales(bench: Bench, kind: str) -> None:
    """Each block, row or tensor by its own; the scales are no parameters of their own any more."""
    name, scale, spread = SCALES[kind]
    write(bench.folder / "a.safetensors", {"w": BITS, name: scale, "n": floats(3)})
    done = bench.mslaunch("ckpt", "import", "a.safetensors", "--to", "a.ckpt", "--dtype", "float32")
    assert (done.returncode, done.stderr) == (0, "")
    made = content_of(bench.folder / "a.ckpt")
    assert made.keys() == {"w", "n"}
    assert made["w"] == ("Float32", (300, 200), (NUMBERS * spread(scale)).tobytes())
    assert bench.mslaunch("ckpt", "diff", "a.safetensors", "a.ckpt").returncode == 0


RULES: dict[str, tuple[str, Callable[[Array], dict[str, Array]]]] = {
    "transposed": ("{from: w, to: w, transpose: true}", lambda one: {"w": one.T}),
    "cut": ("{from: w, to: [a, b, c], split: 0}", lambda one: dict(zip("abc", np.split(one, 3), strict=True))),
    "cut, transposed": (
        "{from: w, to: [a, b], split: 1, transpose: true}",
        lambda one: dict(zip("ab", np.split(one.T, 2, 1), strict=True)),
    ),
    "one more dimension": ("{from: w, to: w, insert: 1}", lambda one: {"w": one[:, None]}),
    "heads": (
        "{from: w, to: w, heads: {head_dim: 100, from: halves, to: pairs}}",
        lambda one: {"w": one.reshape(3, 2, 50, 200).transpose(0, 2, 1, 3).reshape(300, 200)},
    ),
    "put together": ("{from: [w, v], to: both, concat: 0}", lambda one: {"both": np.concatenate([one, one])}),
}


@pytest.mark.parametrize("kind", RULES)
def test_scales_follow_the_values(bench: Bench, kind: str) -> None:
    """Whatever a rule does to the values, each is multiplied by its own scale."""
    rule, change = RULES[kind]
    _, scale, spread = SCALES["blocks of 128"]
    more = {"v": BITS, "v_scale_inv": scale} if kind == "put together" else {}
    write(bench.folder / "a.safetensors", {"w": BITS, "w_scale_inv": scale, **more})
    bench.write("rules.yaml", f"rules: [{rule}]")
    args = ("--to", "a.ckpt", "--dtype", "float32", "--names", "rules.yaml")
    assert bench.mslaunch("ckpt", "import", "a.safetensors", *args).returncode == 0
    made = {name: data for name, (_, _, data) in content_of(bench.folder / "a.ckpt").items()}
    assert made == {name: values.tobytes() for name, values in change(NUMBERS * spread(scale)).items()}


def test_shards_get_their_own_scales(bench: Bench) -> None:
    """Each rank's slice is multiplied by what belongs to it."""
    _, scale, spread = SCALES["blocks of 128"]
    write(bench.folder / "a.safetensors", {"w": BITS, "w_scale_inv": scale})
    (bench.folder / "s.json").write_bytes(json_strategy({"w": {"dev_matrix": [2], "tensor_map": [-1, 0]}}))
    args = ("--strategy", "s.json", "-o", "shards", "--dtype", "float32")
    assert bench.mslaunch("ckpt", "import", "a.safetensors", *args).returncode == 0
    shards = contents_of(bench.folder / "shards")
    whole = NUMBERS * spread(scale)
    assert [shards[rank]["w"][2] for rank in range(2)] == [whole[:, :100].tobytes(), whole[:, 100:].tobytes()]


REFUSED: dict[str, tuple[dict[str, Array], tuple[str, ...], str]] = {
    "no type": (
        {"w": BITS, "w_scale_inv": floats(3, 2)},
        (),
        "w: MindSpore's checkpoints have no float8. Give --dtype bfloat16: its values are multiplied by their scales.",
    ),
    "other blocks": (
        {"w": BITS, "w_scale_inv": floats(5, 4)},
        ("--dtype", "bfloat16"),
        "w_scale_inv (Float32 5x4) is no scale for each row or block of 128x128 of w (Float8_e4m3fn 300x200). Write",
    ),
    "another type": (
        {"w": BITS, "w_scale": np.ones((3, 2), np.int8)},
        ("--dtype", "bfloat16"),
        "w_scale: scales of type Int8 are not understood. Write",
    ),
    "another name": (
        {"a.weight": BITS, "a.scale_weight": floats(1), "a.scale_input": floats(1)},
        ("--dtype", "bfloat16"),
        "a.weight: its float8 values may be scaled by a.scale_weight, which is not understood. Write the weights as",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_scales_that_are_not_understood_are_refused(bench: Bench, kind: str) -> None:
    """A plain cast would give wrong weights."""
    tensors, args, words = REFUSED[kind]
    write(bench.folder / "a.safetensors", tensors)
    done = bench.mslaunch("ckpt", "import", "a.safetensors", "--to", "a.ckpt", *args)
    assert (done.returncode, words in done.stderr, len(done.stderr.splitlines())) == (2, True, 1)
    assert not (bench.folder / "a.ckpt").exists()


def test_scales_of_inputs_do_not_stand_for_those_of_weights(bench: Bench) -> None:
    """They belong to what a layer is given; the weight is cast as it is."""
    write(bench.folder / "a.safetensors", {"a.weight": BITS, "a.input_scale": floats(1)})
    done = bench.mslaunch("ckpt", "import", "a.safetensors", "--to", "a.ckpt", "--dtype", "float32")
    assert done.returncode == 0
    assert content_of(bench.folder / "a.ckpt")["a.weight"][2] == NUMBERS.tobytes()
