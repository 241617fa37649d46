"""Makes the pictures of README.md and docs/ from a real run in a terminal: `make screenshots`."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
FOLDER = Path("/tmp/demo")  # its name can be seen in the picture
WIDTH = 108
LINES = 50
COMMAND = ("mslaunch", "train", "--workers", "3", "train.py")
VIEW = ("mslaunch", "train", "--view", "--workers", "4", "steps.py")
VIEW_LINES = 30
_DRAWN = re.compile("\x1b\\[(\\d+);1H(.*?)\x1b\\[0m\x1b\\[K", re.DOTALL)


def main() -> None:
    try:
        FOLDER.mkdir()
    except FileExistsError:
        sys.exit(f"{FOLDER} exists and would show in the picture: remove it first.")
    try:
        for source in (ROOT / "tools" / "screenshot_job").glob("*.py"):
            shutil.copy(source, FOLDER)
        IMAGES.mkdir(exist_ok=True)
        (IMAGES / "verdict.svg").write_text(picture(COMMAND, kept_lines(output_of(COMMAND, FOLDER))))
        (IMAGES / "watch.svg").write_text(picture(VIEW, last_screen(output_of(VIEW, FOLDER, VIEW_LINES))))
    finally:
        shutil.rmtree(FOLDER)


def output_of(command: tuple[str, ...], folder: Path, lines: int = LINES) -> str:
    """Run a command in a terminal of its own and return all that it writes there."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", lines, WIDTH, 0, 0))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {"PATH": path, "HOME": str(folder), "TERM": "xterm-256color", "GLOG_v": "3"}
    with subprocess.Popen(command, cwd=folder, env=env, stdin=its, stdout=its, stderr=its) as process:
        os.close(its)
        written = b"".join(iter(lambda: _read(ours), b""))
        process.wait()
    os.close(ours)
    return written.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the last process has closed the terminal
        return b""


def picture(command: tuple[str, ...], lines: list[str]) -> str:
    """The SVG of a terminal; colours stay."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ {' '.join(command)}", style="bold"))
    for line in lines:
        console.print(Text.from_ansi(line), soft_wrap=False)
    svg = console.export_svg(title="mslaunch")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # nothing is loaded from elsewhere


def kept_lines(output: str) -> list[str]:
    """What a terminal shows in the end: a line that is erased and written again (the live line) counts once."""
    kept = []
    for line in output.replace("\r\n", "\n").split("\n"):
        text = re.split(r"\r|\x1b\[\d*K", line)[-1]
        kept.append(re.sub(r"\x1b\[[\d;?]*[A-HJKhl]", "", text))
    return kept


def last_screen(output: str) -> list[str]:
    """What the view of a run has shown last, before it closed."""
    drawn = {int(row): text for row, text in _DRAWN.findall(output)}
    return [drawn.get(row, "") for row in range(1, max(drawn) + 1)]


if __name__ == "__main__":
    main()
