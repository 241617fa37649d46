"""A terminal for tests: a pseudo-terminal of a given width, or a real screen in tmux."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import termios
import uuid
from dataclasses import dataclass

import pytest

from tests.conftest import TIMEOUT, Bench, wait_for


def run_in_terminal(bench: Bench, *args: str, columns: int = 80) -> str:
    """Run one command to its end in a terminal; return everything that it has written there."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {**bench.env, "TERM": "xterm"}
    process = subprocess.Popen(
        [bench.program, *args], cwd=bench.folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    written = b""
    try:
        while data := os.read(ours, 1 << 16):
            written += data
    except OSError:  # the last process has closed its side
        pass
    os.close(ours)
    process.wait(TIMEOUT)
    return written.decode().replace("\r\n", "\n")


def settings_of(tty: str) -> str:
    return subprocess.run(["stty", "-g", "-F", tty], capture_output=True, text=True, check=True).stdout


@dataclass(frozen=True)
class Tmux:
    """One session of tmux with a server of its own."""

    socket: str

    def run(self, *args: str) -> str:
        done = subprocess.run(["tmux", "-L", self.socket, *args], capture_output=True, text=True, timeout=TIMEOUT)
        return done.stdout

    def screen(self) -> list[str]:
        """Return the lines on the screen, without empty ones."""
        return [line for line in self.run("capture-pane", "-p", "-t", "0").splitlines() if line.strip()]

    def press(self, *keys: str) -> None:
        """Press keys, by the names that tmux has for them."""
        self.run("send-keys", "-t", "0", *keys)

    def ask(self, *names: str) -> list[str]:
        """Return what tmux knows about the terminal: alternate_on, cursor_flag, pane_tty and so on."""
        return self.run("display-message", "-p", "-t", "0", " ".join(f"#{{{name}}}" for name in names)).split()

    def settings(self) -> str:
        """Return the settings of the terminal, as stty writes them."""
        return settings_of(*self.ask("pane_tty"))

    def text(self) -> str:
        """Return everything that the screen has shown and that scrolled away, lines that tmux has wrapped as one."""
        return self.run("capture-pane", "-p", "-J", "-S", "-5000", "-t", "0")


def start_in_tmux(bench: Bench, *args: str, columns: int, lines: int = 24) -> Tmux:
    """Start one command in a terminal that shows it; it stays open after the command has ended."""
    if not shutil.which("tmux"):
        pytest.skip("tmux is not installed (Debian: tmux)")
    made = Tmux(f"mslaunch-{uuid.uuid4().hex[:8]}")
    command = f"{shlex.join([bench.program, *args])}; echo ended with $?; exec sleep 600"
    size = ("-x", str(columns), "-y", str(lines))
    subprocess.run(
        ["tmux", "-f", "/dev/null", "-u", "-L", made.socket, "new-session", "-d", *size, command],
        cwd=bench.folder,
        env={**bench.env, "LC_ALL": "C.UTF-8"},
        check=True,
        timeout=TIMEOUT,
    )
    return made


def wait_for_the_end(made: Tmux) -> str:
    """Wait until the command has ended; return everything that was shown."""
    wait_for(lambda: re.search(r"^ended with \d+", made.text(), re.MULTILINE), "the command in tmux to end", TIMEOUT)
    return made.text()
