"""Taking the stacks of running ranks, by the signal that every rank has a handler for."""

from __future__ import annotations

import os
import signal
import time

from mslaunch.shared import layout, processes

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from collections.abc import Mapping

STACK_SIGNAL = signal.SIGRTMIN + 7  # a real-time signal: SIGUSR1 belongs to Slurm, SIGUSR2 to users
PATIENCE = 2.0
NATIVE_PATIENCE = 10.0
QUIET = 0.3
LONGEST = 1 << 18
ALL_TOGETHER = 1 << 22


class StackTaking:
    """One round: ask all ranks, wait until their files are quiet, have py-spy add native frames where it is there."""

    def __init__(self, ranks: Mapping[int, tuple[int, str]], env: Mapping[str, str]) -> None:
        self.files = {rank: os.path.join(folder, layout.STACK) for rank, (_, folder) in ranks.items()}
        self._ranks = ranks
        self._env = env
        self._before = {rank: _size_and_time(path)[0] for rank, path in self.files.items()}
        self._until = time.monotonic() + PATIENCE
        self._native: list[int] | None = None
        for pid, _ in ranks.values():
            if processes.handles(pid, STACK_SIGNAL):  # one that has no handler yet would die of it
                processes.signal_all([pid], STACK_SIGNAL)

    def is_over(self) -> bool:
        now = time.monotonic()
        if self._native is None:
            if now < self._until and not all(self._is_written(rank) for rank in self.files):
                return False
            self._native = self._start_native()
            self._until = now + NATIVE_PATIENCE
        self._native = [pid for pid in self._native if os.path.exists(f"/proc/{pid}/exe")]
        if self._native and now >= self._until:
            processes.signal_all(self._native, signal.SIGKILL)
            self._native = []
        return not self._native

    def read(self) -> dict[int, str]:
        """Return what each rank wrote in this round, in bounds."""
        stacks = {}
        longest = min(LONGEST, ALL_TOGETHER // max(1, len(self.files)))
        for rank, path in self.files.items():
            try:
                with open(path, "rb") as file:
                    file.seek(self._before[rank])
                    stacks[rank] = file.read(longest).decode("utf-8", "replace")
            except OSError:
                stacks[rank] = ""
        return stacks

    def _is_written(self, rank: int) -> bool:
        pid, _ = self._ranks[rank]
        if not processes.handles(pid, STACK_SIGNAL):
            return True
        size, written = _size_and_time(self.files[rank])
        return size > self._before[rank] and time.time() - written > QUIET

    def _start_native(self) -> list[int]:
        import shutil

        py_spy = shutil.which("py-spy", path=self._env.get("PATH"))
        if not py_spy:
            return []
        started = []
        for rank, (pid, folder) in self._ranks.items():
            argv = [py_spy, "dump", "--native", "--pid", str(pid)]
            try:
                started.append(processes.start(argv, dict(self._env), folder, self.files[rank]))
            except OSError:  # the Python frames are there without it
                break
        return started


def _size_and_time(path: str) -> tuple[int, float]:
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0.0
    return status.st_size, status.st_mtime
