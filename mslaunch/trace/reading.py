"""A trace folder: its index, checked, and the values of each output."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import Unreadable, read_text
from mslaunch.documents.typed import make
from mslaunch.errors import RequestError

INDEX = "trace.json"
VERSION = 1
MOST_BYTES = 100 << 20
_KINDS = "fiubc"


@dataclass(frozen=True, slots=True)
class Output:
    """One tensor that a module has returned."""

    name: str
    """Of the module in the network; empty for the network itself."""
    kind: str
    """The module's class."""
    call: int
    """0 for the module's first call."""
    output: str
    """The place in what the module returned; empty for the only tensor."""
    order: int
    """In the order in which modules returned: inner ones before outer ones."""
    shape: tuple[int, ...]
    dtype: str
    step: int
    """1: all values are kept; 2: every other one, and so on."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What one network has computed."""

    folder: Path
    framework: str
    notes: tuple[str, ...]
    not_called: tuple[str, ...]
    outputs: tuple[Output, ...]

    def values(self, output: Output) -> Any:
        """Return the kept values of an output, as one row."""
        path = self.folder / f"{output.order}.npy"
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                raise Unreadable("it is not a file")
            values = np.load(path, mmap_mode="r", allow_pickle=False)  # mapped: a wrong header asks for no memory
        except Exception as error:  # NumPy reads the header as Python, and lets whatever that raises through
            why = (error.strerror if isinstance(error, OSError) else None) or str(error).partition("\n")[0]
            raise RequestError(f"{path}: cannot be read: {why}. Record the trace again.") from None
        size = 1
        for length in output.shape:
            size *= length
        if values.dtype.kind not in _KINDS or values.shape != (-(-size // output.step),):
            raise RequestError(f"{path}: does not hold what {INDEX} says of {output.name!r}. Record the trace again.")
        return values


def read_trace(folder: Path) -> Trace:
    """Read a trace's index, or say why it is none."""
    path = folder / INDEX
    try:
        raw = parse_json(read_text(path, MOST_BYTES, only_files=True) or "{}")
        return _trace(folder, raw)
    except Unreadable as error:
        raise RequestError(f"{error.where(str(path))}: not the index of a trace: {error}. Record it again.") from None
    except OSError as error:
        why = error.strerror or error
        raise RequestError(
            f"{path}: cannot be read: {why}. Name a folder that trace() or torch_trace() has written."
        ) from None


def _trace(folder: Path, raw: Any) -> Trace:
    if not isinstance(raw, dict) or not raw:
        raise Unreadable("it is empty; the script has not come to the end of its `with`")
    if raw.get("version") != VERSION:
        raise Unreadable(f"it has version {str(raw.get('version'))[:20]}, this mslaunch reads {VERSION}")
    rows = raw.get("outputs")
    if isinstance(rows, list):
        rows = [{**row, "kind": row.get("class")} if isinstance(row, dict) else row for row in rows]
    index = make(_Index, {**raw, "outputs": rows})
    for output in index.outputs:
        if output.step < 1 or output.order < 0 or min(output.shape, default=0) < 0:
            raise Unreadable(f"a number of {output.name!r} is negative")
    return Trace(folder, index.framework, index.notes, index.not_called, index.outputs)


@dataclass(frozen=True, slots=True)
class _Index:
    framework: str
    notes: tuple[str, ...]
    not_called: tuple[str, ...]
    outputs: tuple[Output, ...]
