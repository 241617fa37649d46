"""Traces of networks, as `mslaunch trace compare` reads them: the index, and the values of an output."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import typer

from fuzz.mutate import mutate_bytes, mutate_json
from fuzz.run import Border
from mslaunch.cli.trace import compare

KEPT = {"values": 0, "shape": [2, 3], "dtype": "float32", "step": 1, "kept": 6}
NUMBERS = {"mean": 2.5, "std": 1.7, "min": 0, "max": 5, "norm": 7.4, "not_finite": 0}
ROW = {"class": "Dense", "call": 0, "place": "", **KEPT, **NUMBERS}
PART = {**ROW, "name": "part", "order": 2, "values": 1, "shape": [3, 5], "step": 11}
INDEX = {
    "version": 2,
    "framework": "mindspore",
    "ended_by": "RuntimeError: out of memory",
    "notes": ["recorded in PyNative mode"],
    "not_called": ["head"],
    "inputs": [{**ROW, "name": "fc", "place": "0", "order": 0}],
    "outputs": [{**ROW, "name": "fc", "order": 0}, {**ROW, "name": "", "order": 1, "call": 1}, PART],
}


def _values() -> bytes:
    made = io.BytesIO()
    np.save(made, np.arange(6, dtype=np.float32))
    return made.getvalue()


def _mutate(random: Random, data: bytes, known: tuple[bytes, ...]) -> bytes:
    return (mutate_json if data.startswith(b"{") else mutate_bytes)(random, data, known)


def _open(folder: Path) -> Callable[[bytes], object]:
    def read(data: bytes) -> None:
        for name in ("a", "b"):
            shutil.rmtree(folder / name, ignore_errors=True)
            (folder / name).mkdir()
            (folder / name / "trace.json").write_text(json.dumps(INDEX))
            for order in range(2):
                (folder / name / f"{order}.npy").write_bytes(_values())
        (folder / "b" / ("0.npy" if data.startswith(b"\x93") else "trace.json")).write_bytes(data)
        for as_json in (False, True):
            with contextlib.suppress(typer.Exit):  # its code says whether they differ
                compare(str(folder / "a"), str(folder / "b"), as_json=as_json)

    return read


BORDERS = (Border("traces", (json.dumps(INDEX).encode(), _values()), _mutate, _open),)
