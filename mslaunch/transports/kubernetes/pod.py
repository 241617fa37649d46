"""What runs in the launcher's pod: unpacks the code, runs the launcher, and writes the run's files to the pod's log."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType

from mslaunch.errors import signal_code
from mslaunch.shared import layout
from mslaunch.transports.kubernetes.frames import Frame, Scan, encode

LOOK_EVERY = 0.5
REPEAT_AFTER = 512 << 10
"""Bytes of the pod's log after which small files are sent again: readers get the newest part of it only."""
NEVER_ROTATED = 768 << 10
"""A log of so many bytes is whole: nodes rotate logs of a megabyte or more."""
ROTATION = 12.0
"""Seconds in which a node rotates a log that has become too large: the kubelet looks every 10 s."""
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


def main(run_dir: str, project: str, code: str, *command: str) -> int:
    """Run the launcher to its end; return its exit code."""
    signals = _Signals()
    try:
        _unpack(Path(code), Path(project))
    except (OSError, tarfile.TarError) as error:
        sys.exit(f"mslaunch: the code cannot be put into {project}: {error}")
    with tempfile.TemporaryDirectory() as own:
        log = Path(own) / layout.LAUNCHER_LOG
        with log.open("wb") as output:
            child = subprocess.Popen(
                command, cwd=project, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        signals.child = child
        output_of_pod = _Output(Scan(Path(run_dir), log))
        while (exit_code := child.poll()) is None:
            output_of_pod.write_new()
            time.sleep(LOOK_EVERY)
        exit_code = exit_code if exit_code >= 0 else signal_code(-exit_code)
        output_of_pod.write_end(exit_code, signals)
    return exit_code


class _Output:
    """The pod's log, as what was written to it."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self._written = 0
        self._repeat_at = REPEAT_AFTER

    def write_new(self) -> None:
        """Write what is new in the run's folder, and the small files again from time to time."""
        for frame in self._scan.new():
            self._write(frame)
            if self._written > self._repeat_at:
                self._repeat()

    def write_end(self, exit_code: int, signals: _Signals) -> None:
        """Write the rest, and the end; once more after a rotation, by which readers would lose it."""
        self.write_new()
        if self._written > NEVER_ROTATED:
            self._write_last(exit_code)
            signals.came.wait(ROTATION)
        self._write_last(exit_code)

    def _write_last(self, exit_code: int) -> None:
        if self._written > NEVER_ROTATED:
            for frame in self._scan.tails():
                self._write(frame)
        self._write(self._scan.end(exit_code))

    def _repeat(self) -> None:
        """Send the small files again; seldom where that is much by itself."""
        before = self._written
        for frame in self._scan.small():
            self._write(frame)
        self._repeat_at = self._written + max(REPEAT_AFTER, 8 * (self._written - before))

    def _write(self, frame: Frame) -> None:
        """Write a piece; what the launcher prints is written plainly as well, for whoever reads the pod's log."""
        line = encode(frame)
        if frame.file == layout.LAUNCHER_LOG:
            text = frame.data.decode(errors="replace").replace("mslaunch-file ", "mslaunch file ")
            line = f"{text}\n{line}" if not text.endswith("\n") else text + line
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
        self._written += len(line) + 1


def _unpack(code: Path, project: Path) -> None:
    """Put the code where the submitter has it; an archive, or a folder of the image or of a volume."""
    if code.is_dir():
        for path in code.iterdir():  # not the folder itself: the mount point is not the pod's user's
            if path.is_dir() and not path.is_symlink():
                shutil.copytree(path, project / path.name, symlinks=True, dirs_exist_ok=True)
            else:
                shutil.copy2(path, project / path.name, follow_symlinks=False)
        return
    with tarfile.open(code) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(project, filter="data")
        else:
            archive.extractall(project)


class _Signals:
    """Ends this process, PID 1 of its container, by a signal; passes signals on while the launcher runs."""

    def __init__(self) -> None:
        self.child: subprocess.Popen[bytes] | None = None
        self.came = threading.Event()
        for number in _PASSED_ON:
            signal.signal(number, self._handle)

    def _handle(self, number: int, _: FrameType | None) -> None:
        self.came.set()
        if self.child is not None:
            self.child.send_signal(number)  # does nothing once it has ended
        elif number != signal.SIGUSR1:
            sys.exit(signal_code(number))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
