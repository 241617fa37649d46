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
from typing import TypeVar

K = TypeVar("K")
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


def seconds(
    command: list[str], folder: Path, env: Mapping[str, str] | None = None, limit: float | None = None
) -> float:
    """Run a command once and return how long it took; one that fails makes the figure worthless, so it raises."""
    start = time.perf_counter()
    process = _start(command, folder, env)
    try:
        _check(command, process.wait(limit))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
    return time.perf_counter() - start


def own_cpu(command: list[str], folder: Path, env: Mapping[str, str] | None = None) -> float:
    """Run a command once and return the CPU time of its process alone, without the processes that it started."""
    process = _start(command, folder, env)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    _check(command, process.wait())
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _start(command: list[str], folder: Path, env: Mapping[str, str] | None) -> subprocess.Popen[bytes]:
    # Where Python may write no bytecode, each command would compile all of mslaunch, which no installation does.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.Popen(
        command,
        cwd=folder,
        # msrun starts whatever `python` is first on PATH.
        env={**inherited, "GLOG_v": "3", "PATH": f"{BIN}:{os.environ['PATH']}", **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _check(command: list[str], code: int) -> None:
    if code:
        raise subprocess.CalledProcessError(code, command)


def medians(commands: Mapping[K, Callable[[], float]], rounds: int = ROUNDS) -> dict[K, float]:
    """Take turns, after one warm-up of each, and return the median of each."""
    times: dict[K, list[float]] = {name: [] for name in commands}
    for turn in range(rounds + 1):
        for name, run in commands.items():
            taken = run()
            if turn:
                times[name].append(taken)
    return {name: statistics.median(values) for name, values in times.items()}
