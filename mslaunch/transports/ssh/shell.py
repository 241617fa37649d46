"""A shell on a host that runs one command after the other, through one ssh process."""

from __future__ import annotations

import re
import select
import shlex
import time
from collections.abc import Sequence
from typing import Any

from mslaunch.hosts import Host
from mslaunch.transports.ssh.channel import SshChannel
from mslaunch.transports.ssh.settings import Ssh

COMMAND_SECONDS = 30.0
MOST_BYTES = 10 << 20
_RESULT = re.compile(rb"\A(.*?)\x1e(\d{1,3})\x1e", re.DOTALL)
_PRINT_RESULT = r"printf '\036%d\036' $?"


class RemoteShell(SshChannel):
    """`sh` on a host; what it answers to each command ends in the command's exit code."""

    def __init__(self, ssh: Ssh, host: Host) -> None:
        super().__init__(ssh, host, "sh", f"{_PRINT_RESULT}\n".encode())
        self._answer = b""

    def receive(self) -> list[dict[str, Any]] | None:
        """Return an answer that is complete."""
        data = self.read()
        self._answer += data
        if len(self._answer) > MOST_BYTES:
            return None  # no command that is run has so much to say
        if match := _RESULT.match(self._answer):
            self._answer = self._answer[match.end() :]
            return [{"output": match[1], "exit_code": int(match[2])}]
        return [] if data else None

    def run(self, command: Sequence[str]) -> str | None:
        """Run a command; return what it printed, or None where it failed."""
        self._sender.send(f"({shlex.join(command)}) </dev/null 2>/dev/null; {_PRINT_RESULT}\n".encode())
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        until = time.monotonic() + COMMAND_SECONDS
        while time.monotonic() < until:
            if not poll.poll(1000):
                continue
            answers = self.receive()
            if answers is None:
                raise ConnectionError("the connection ended")
            if answers:
                text: str = answers[0]["output"].decode(errors="replace")
                return text if answers[0]["exit_code"] == 0 else None
        raise TimeoutError(f"no answer to `{shlex.join(command)}` within {COMMAND_SECONDS:.0f} s")
