"""A channel to an agent through the standard streams of a child process: the agent itself, ssh, or another tool."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

from mslaunch.shared import wire
from mslaunch.shared.guard import processes_with
from mslaunch.transports.code_bundle import AGENT_BOOT, agent_stream
from mslaunch.transports.streams import Sender, write_fully

KEPT_STDERR = 1 << 16
CLOSE_SECONDS = 15.0
EXIT_SECONDS = 1.0
DRAIN_MS = 100


def agent_command(python: str, host: str) -> list[str]:
    """The command that starts an agent from what a ProcessChannel sends it first; nothing has to be installed there.

    `host` is the host's name, or a variable on the host that holds it, such as $SLURMD_NODENAME.
    """
    return [python, "-I", "-S", "-u", "-c", AGENT_BOOT, host]


class ProcessChannel:
    """The stream to one host's agent, through a process that was started for it."""

    def __init__(
        self,
        host: str,
        process: subprocess.Popen[bytes],
        first: bytes,
        stderr: IO[bytes] | None = None,
        hint: str = "",
    ) -> None:
        self.hosts: tuple[str, ...] = (host,)
        self.hint = hint
        self.is_open = True
        self.agent_pid: int | None = None
        self._process = process
        self._stderr = stderr
        self._decoder = wire.Decoder()
        self._has_answered = False
        assert process.stdin is not None
        assert process.stdout is not None
        self._output = process.stdout
        stdin = process.stdin
        self._sender = Sender(lambda data: write_fully(stdin.fileno(), data), stdin.close)
        self._sender.send(first)

    @classmethod
    def start(
        cls, host: str, argv: Sequence[str], env: Mapping[str, str] | None = None, hint: str = ""
    ) -> ProcessChannel:
        """Start a command that ends in `agent_command` on the host, and send the agent's program through it."""
        process, stderr = start_process(argv, env)
        return cls(host, process, agent_stream(), stderr, hint)

    def fileno(self) -> int:
        return self._output.fileno()

    def receive(self) -> list[dict[str, Any]] | None:
        data = self.read()
        if not data:
            return None
        messages = self._decoder.feed(data)
        for message in messages:
            self._has_answered = True
            if message.get("ev") == "hello":
                self.agent_pid = message.get("pid")
        return messages

    def read(self) -> bytes:
        """Return what has come, nothing when the stream has ended."""
        data = os.read(self._output.fileno(), 1 << 16)
        if self._stderr is not None and os.fstat(self._stderr.fileno()).st_size > 2 * KEPT_STDERR:
            self._stderr.truncate(0)  # shells may write to it for days
        self.is_open = bool(data)
        return data

    def send(self, message: Mapping[str, object]) -> None:
        self._sender.send(wire.encode(message))

    def flush(self) -> None:
        self._sender.flush()

    def why_it_ended(self) -> str:
        if self._has_answered:
            return f"its agent ended, or the connection to it, before the job began. {self.hint}".strip()
        return why_no_agent(self.error_output())

    def error_output(self) -> str:
        """What the process and its host wrote to standard error."""
        if self._stderr is None:
            return ""
        self._stderr.seek(max(0, os.fstat(self._stderr.fileno()).st_size - KEPT_STDERR))
        return self._stderr.read().decode(errors="replace").strip()

    def exit_code(self) -> int | None:
        """Return how the process ended, now that its stream has."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_SECONDS)
        return self._process.returncode

    def is_finished(self) -> bool:
        """Tell whether nothing more is to come."""
        return self._process.poll() is not None

    def close(self) -> None:
        """End the stream, which ends the agent; a process that does not end by itself is ended."""
        lost, self.is_open = not self.is_open, False
        self._sender.close()
        if not lost:
            self._drain()
        self._end_process()
        self._output.close()
        if self._stderr is not None:
            self._stderr.close()

    def _end_process(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def abort(self) -> None:
        """End the process at once."""
        self.is_open = False
        self.close()

    def _drain(self) -> None:
        """Wait for the process to end. What it still writes is read: a full pipe would keep it."""
        poll = select.poll()
        poll.register(self._output, select.POLLIN)
        until = time.monotonic() + CLOSE_SECONDS
        while not self.is_finished() and time.monotonic() < until:
            if poll.poll(DRAIN_MS) and not self.read():
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(max(0.0, until - time.monotonic()))
                return


def start_process(
    argv: Sequence[str], env: Mapping[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    """Start a process for a channel; return it with the file of its standard error."""
    stderr = tempfile.TemporaryFile("a+b")  # noqa: SIM115 -- as long as the channel
    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr.fileno(),
        env=env,
        start_new_session=True,  # Ctrl-C is for the launcher
        bufsize=0,
    )
    return process, stderr


_NO_PYTHON = ("No such file", "not found", "Permission denied")


def why_no_agent(error_output: str) -> str:
    """Say why an agent ended before it had said anything, by what was written to standard error there."""
    for line in reversed(error_output.splitlines()):
        if any(words in line for words in _NO_PYTHON):
            return f"the agent could not start: {line}. Name a Python that is there with launch.python."
    return f"the agent could not start: {error_output or 'it ended without a word. It needs Python 3.9 or newer'}."


_MARK = "MSLAUNCH_GUARDED_BY"
_MAIN = "import sys; sys.path.append(sys.argv[1]); from mslaunch.transports.process import main; main(sys.argv[2])"


def guarded(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment for children that are to end when this process ends, however that happens."""
    return {**(os.environ if environment is None else environment), _MARK: _start(os.getpid())}


@cache
def _start(pid: int) -> str:
    """Start the guard of this process; return its mark. The pipe to it is never closed by us."""
    mark = f"{pid}-{os.urandom(4).hex()}"
    read, _write = os.pipe()
    subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _MAIN, str(Path(__file__).parents[2]), mark],
        stdin=read,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(read)
    return mark


def main(mark: str) -> None:
    """Wait until the launcher is gone, then end whatever carries its mark."""
    sys.stdin.read()
    for pid in processes_with(f"{_MARK}={mark}"):
        with suppress(OSError):
            os.kill(pid, signal.SIGTERM)
