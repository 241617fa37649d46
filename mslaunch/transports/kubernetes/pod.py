"""What runs in the launcher's pod: unpacks the code, runs the launcher, and writes the run's files to the pod's log."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

from mslaunch import layout
from mslaunch.transports.kubernetes.frames import Frame, Scan, encode

LOOK_EVERY = 0.5
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
        signals.pass_to(child)
        scan = Scan(Path(run_dir), log)
        while (code_of_launcher := child.poll()) is None:
            for frame in scan.new():
                _write(frame)
            time.sleep(LOOK_EVERY)
        for frame in scan.new():
            _write(frame)
        exit_code = code_of_launcher if code_of_launcher >= 0 else 128 - code_of_launcher
        _write(scan.end(exit_code))
    return exit_code


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
    """Ends this process, PID 1 of its container, by a signal; passes signals on once the launcher runs."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        for number in _PASSED_ON:
            signal.signal(number, self._handle)

    def pass_to(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._child is not None:
            with suppress(OSError):
                os.kill(self._child.pid, number)
        elif number != signal.SIGUSR1:
            sys.exit(128 + number)


def _write(frame: Frame) -> None:
    """Write a piece; what the launcher prints is written plainly as well, for whoever reads the pod's log."""
    line = encode(frame)
    if frame.file == layout.LAUNCHER_LOG:
        text = frame.data.decode(errors="replace").replace("mslaunch-file ", "mslaunch file ")
        line = f"{text}\n{line}" if not text.endswith("\n") else text + line
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
