"""What a checkpoint is not written with: types that MindSpore does not read, and impossible names."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from tests.conftest import Bench


def write(path: Path, name: str, dtype: str, size: int) -> None:
    head = json.dumps({name: {"dtype": dtype, "shape": [2], "data_offsets": [0, size]}}).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + bytes(size))


@pytest.mark.parametrize(("dtype", "size"), [("C64", 16), ("F4", 1)])
def test_a_type_that_mindspore_does_not_read_is_refused(bench: Bench, dtype: str, size: int) -> None:
    """By the parameter's name; nothing is written."""
    write(bench.folder / "a.safetensors", "w", dtype, size)
    done = bench.mslaunch("ckpt", "convert", "a.safetensors", "-o", "x.ckpt")
    assert done.returncode == 2
    assert done.stderr.startswith(f"mslaunch: w: {dtype} is a type that MindSpore's checkpoints do not have.")
    assert [path.name for path in bench.folder.iterdir()] == ["a.safetensors"]


@pytest.mark.parametrize(("name", "words"), [("", "a parameter has no name"), ("n" * 1_100_000, "nn…: a name of ")])
def test_an_impossible_name_is_refused(bench: Bench, name: str, words: str) -> None:
    """Its readers would not take it, ours among them."""
    write(bench.folder / "a.safetensors", name, "F32", 8)
    done = bench.mslaunch("ckpt", "import", "a.safetensors", "--to", "x.ckpt")
    assert done.returncode == 2
    assert words in done.stderr
    assert [path.name for path in bench.folder.iterdir()] == ["a.safetensors"]
