"""Hosts that are named and reached over SSH: one OpenSSH client process a host, nothing installed there."""

from __future__ import annotations

import heapq
import random
import re
import select
import shlex
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Generic, TypeVar

from mslaunch.errors import HostsNotReady, MslaunchError, RequestError
from mslaunch.hosts import Host, is_this_machine
from mslaunch.open_files import raise_limit
from mslaunch.shared.running_clock import RunningClock
from mslaunch.transports.base import Access, Opened, Tell, Transport, ignore
from mslaunch.transports.code_bundle import agent_stream
from mslaunch.transports.ssh.channel import AgentChannel, Ssh, SshChannel
from mslaunch.transports.streams import Waiting, close_all

AT_ONCE = 32
STALL_SECONDS = 15.0
"""A host that is late is waited for as long as others get ready: what is slow then is this machine."""
SHELL_SECONDS = 60.0
"""What a host may take until it runs a command that needs no agent."""
_TURN_MS = 200

C = TypeVar("C", bound=SshChannel)
T = TypeVar("T")
RunCommand = Callable[[Sequence[str]], "str | None"]
"""Runs a command on a host; returns what it printed, or None where it failed."""


class SshTransport(Transport):
    """What `ssh` reaches without a password, with everything that ~/.ssh/config says."""

    name = "ssh"
    label = "SSH"

    def open(self, hosts: tuple[Host, ...], access: Access) -> Opened:
        raise_limit(len(hosts))
        with Ssh(access.accept_new_keys) as ssh:
            program = agent_stream()
            results = Connecting(
                hosts,
                lambda host: AgentChannel(ssh, host, host.python or access.python, program),
                access.connect_timeout,
                self.tell,
            ).run()
            channels = []
            reached = []
            for host, channel in zip(hosts, results, strict=True):
                if not isinstance(channel, str):
                    channels.append(channel)
                    reached.append(replace(host, address=channel.address()))
        return Opened(channels, tuple(reached), tuple(problems_of(hosts, results)))


class Connecting(Generic[C]):
    """Channels that are being set up: a limited number at once, each with its own clock, again where sshd was busy."""

    def __init__(self, hosts: Sequence[Host], start: Callable[[Host], C], limit: float, tell: Tell) -> None:
        """`limit` is what a host may take, from the start of its first ssh."""
        self._hosts = hosts
        self._start = start
        self._limit = limit
        self._waiting_notes = Waiting(tell)
        self._clock = RunningClock()
        self._progress = 0.0
        self._waiting = [(0.0, index) for index in range(len(hosts))]  # a heap, by the time of the start
        self._tries = [0] * len(hosts)
        self._began: dict[int, float] = {}
        self._pending: dict[int, tuple[int, C]] = {}
        self._results: dict[int, C | str] = {}
        self._poll = select.poll()

    def run(self) -> list[C | str]:
        """Start a channel to every host and wait for its first answer; return it, or why there is none."""
        try:
            while len(self._results) < len(self._hosts):
                self._start_next()
                for end, _ in self._poll.poll(_TURN_MS):
                    self._receive(end)
                self._clock.advance()
                self._check_clocks()
                late = {host.name for index, host in enumerate(self._hosts) if index not in self._results}
                self._waiting_notes.look(self._clock.now, late)
        except BaseException:
            for _, channel in self._pending.values():
                channel.abort()
            for result in self._results.values():
                if not isinstance(result, str):
                    result.abort()
            raise
        return [self._results[index] for index in range(len(self._hosts))]

    def _start_next(self) -> None:
        while self._waiting and len(self._pending) < AT_ONCE and self._waiting[0][0] <= self._clock.now:
            _, index = heapq.heappop(self._waiting)
            channel = self._start(self._hosts[index])
            self._began.setdefault(index, self._clock.now)
            self._pending[channel.fileno()] = (index, channel)
            self._poll.register(channel.fileno(), select.POLLIN)

    def _receive(self, end: int) -> None:
        index, channel = self._pending[end]
        messages = channel.receive()
        if messages:
            self._set_result(end, channel)
        elif messages is None:
            if not self._is_late(index) and self._tries[index] < channel.retries():
                self._drop(end)
                self._tries[index] += 1
                pause = random.uniform(0.1, 0.4) * 1.5 ** self._tries[index]
                heapq.heappush(self._waiting, (self._clock.now + pause, index))
            else:
                self._set_result(end, channel.why_it_ended())
            channel.close()

    def _check_clocks(self) -> None:
        if self._clock.now - self._progress < min(STALL_SECONDS, self._limit):
            return
        for end, (index, channel) in list(self._pending.items()):
            if self._is_late(index):
                self._set_result(end, f"no answer within {self._limit:g} s (launch.connect_timeout). {channel.hint}")
                channel.abort()

    def _is_late(self, index: int) -> bool:
        return self._clock.now - self._began[index] > self._limit

    def _drop(self, end: int) -> None:
        self._poll.unregister(end)
        del self._pending[end]

    def _set_result(self, end: int, result: C | str) -> None:
        self._results[self._pending[end][0]] = result
        self._progress = self._clock.now
        self._drop(end)


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


def run_commands(
    hosts: Sequence[Host], work: Callable[[Host, RunCommand], T], accept_new_keys: bool = False
) -> list[T]:
    """Do the same on all hosts at once, without an agent; `work` gets a function that runs a command on its host."""
    if is_this_machine(tuple(hosts)):
        raise RequestError("commands cannot be run on hosts through this machine.")
    raise_limit(len(hosts))
    with Ssh(accept_new_keys) as ssh:
        shells = Connecting(hosts, lambda host: RemoteShell(ssh, host), SHELL_SECONDS, ignore).run()
    opened = [shell for shell in shells if not isinstance(shell, str)]

    def work_on(host: Host, shell: RemoteShell) -> T | str:
        try:
            return work(host, shell.run)
        except MslaunchError:
            raise
        except OSError as error:
            return f"{error}. {shell.hint}"

    try:
        if problems := problems_of(hosts, shells):
            raise HostsNotReady(problems)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = list(pool.map(work_on, hosts, opened))
        if problems := problems_of(hosts, answers):
            raise HostsNotReady(problems)
        return [answer for answer in answers if not isinstance(answer, str)]
    finally:
        close_all(opened)


def problems_of(hosts: Sequence[Host], results: Sequence[object]) -> list[str]:
    """Return the texts among what each host gave, with the host's name."""
    return [f"{host.name}: {text}" for host, text in zip(hosts, results, strict=True) if isinstance(text, str)]
