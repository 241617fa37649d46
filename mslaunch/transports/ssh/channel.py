"""The channel to one host's agent through an ssh process."""

from __future__ import annotations

import shlex
import threading
from dataclasses import replace

from mslaunch.hosts import Host
from mslaunch.transports import process_guard
from mslaunch.transports.process import ProcessChannel, agent_command, start_process
from mslaunch.transports.ssh import failures
from mslaunch.transports.ssh.settings import Ssh, read_address, user_name

ENDED = b"\x18mslaunch-ended\x18"
"""Written by the host's shell after the command. No message contains it: JSON escapes control characters."""
_PRINT_ENDED = r"printf '\030mslaunch-ended\030'"
LINGER_SECONDS = 1.0


class SshChannel(ProcessChannel):
    """A command on a host, through ssh.

    Something that a shell's start-up files left behind may hold the host's standard error, and ssh waits for it after
    the command has ended. The command's end is therefore marked in its output.
    """

    def __init__(self, ssh: Ssh, host: Host, command: str, first: bytes) -> None:
        argv = ssh.command(host, f"{command}; {_PRINT_ENDED}")
        process, stderr = start_process(argv, process_guard.guarded(ssh.environment))
        super().__init__(host.name, process, first, stderr)
        self.host = host
        self.hint = f"Try {failures.login_words(host)}."
        self._tail = b""
        self.has_ended = False

    def read(self) -> bytes:
        data = super().read()
        seen = self._tail + data
        self._tail = seen[-len(ENDED) :]
        if not self.has_ended and ENDED in seen:
            self.has_ended = True
            self._end_soon()
        return data

    def _end_soon(self) -> None:
        """Give ssh a moment to pass on the host's last words and to end, then end it: the stream ends with it."""
        timer = threading.Timer(LINGER_SECONDS, self._process.kill)
        timer.daemon = True
        timer.start()

    def is_finished(self) -> bool:
        return self.has_ended or super().is_finished()

    def retries(self) -> int:
        """How often it is worth to start again, now that the stream has ended before the command began."""
        return failures.find_rule(self.error_output()).retries if self._ssh_failed() else 0

    def why_it_ended(self) -> str:
        """Say why the stream has ended before the job began."""
        if self._ssh_failed():
            return failures.explain(self.host, self.error_output(), self.host.user or user_name())
        return super().why_it_ended()

    def _ssh_failed(self) -> bool:
        return not self.has_ended and self.exit_code() == failures.SSH_FAILED


class AgentChannel(SshChannel):
    """An agent on a host; meanwhile ssh is asked for the host's real address."""

    def __init__(self, ssh: Ssh, host: Host, python: str, program: bytes) -> None:
        super().__init__(ssh, host, shlex.join(agent_command(python, host.name)), program)
        self._lookup = ssh.look_up(host)
        self._address: str | None = None

    def address(self) -> str:
        """Return the address behind the host's name."""
        if self._address is None:
            self._address = read_address(self.host, self._lookup)
        return self._address

    def why_it_ended(self) -> str:
        self.host = replace(self.host, address=self.address())
        return super().why_it_ended()

    def close(self) -> None:
        super().close()
        self._lookup.kill()
        self._lookup.wait()
        if self._lookup.stdout is not None:
            self._lookup.stdout.close()
