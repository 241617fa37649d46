"""Taking times: commands in turns, warm, and the median of each."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROUNDS = 5
BIN = Path(sys.executable).parent
MSLAUNCH = str(BIN / "mslaunch")
MSRUN = str(BIN / "msrun")
TORCHRUN = os.environ.get("TORCHRUN") or shutil.which("torchrun") or str(BIN.parent.parent / ".venv-torch/bin/torchrun")


@dataclass(frozen=True)
class Row:
    """One figure beside its limit."""

    what: str
    ours: str
    peer: str
    figure: float
    limit: float
    unit: str = "x"

    @property
    def held(self) -> bool:
        return self.figure <= self.limit

    def text(self) -> str:
        mark = "ok" if self.held else "MISSED"
        figure = f"{self.figure:.2f} {self.unit} (limit {self.limit:.2f})"
        return f"{self.what:<46} {self.ours:>9}  {self.peer:>22}  {figure:<28} {mark}"


@contextmanager
def workplace(**scripts: str) -> Iterator[Path]:
    """A folder with the scripts that are to be launched."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in scripts.items():
            (Path(folder) / f"{name}.py").write_text(text)
        yield Path(folder)


def seconds(command: list[str], folder: Path, env: Mapping[str, str] | None = None) -> float:
    """Run a command once and return how long it took; one that fails makes the figure worthless, so it raises."""
    start = time.perf_counter()
    subprocess.run(
        command,
        cwd=folder,
        # msrun starts whatever `python` is first on PATH.
        env={**os.environ, "GLOG_v": "3", "PATH": f"{BIN}:{os.environ['PATH']}", **(env or {})},
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - start


def medians(commands: Mapping[str, Callable[[], float]], rounds: int = ROUNDS) -> dict[str, float]:
    """Take turns, after one warm-up of each, and return the median of each."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(rounds + 1):
        for name, run in commands.items():
            taken = run()
            if turn:
                times[name].append(taken)
    return {name: statistics.median(values) for name, values in times.items()}
