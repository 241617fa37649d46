"""The command line of ssh, why it fails, and the channel to one host's agent through it."""

from __future__ import annotations

import getpass
import os
import pwd
import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mslaunch.errors import NotReadyError
from mslaunch.hosts import Host
from mslaunch.text import command_words
from mslaunch.transports.process import ProcessChannel, agent_command, guarded, start_process

OPTIONS = (
    "BatchMode=yes",  # never ask
    "ConnectTimeout=15",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=720",  # launch.host_lost_after decides when a host is lost, not ssh
    "ClearAllForwardings=yes",
    "ControlMaster=no",  # a master of ours would outlive the launcher; one that is there already is used
    "RemoteCommand=none",
    "LogLevel=INFO",  # its messages are what failures are told by
)
IDENTITIES = ("id_rsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk")
SYSTEM_CONFIG = "/etc/ssh/ssh_config"
LOOKUP_SECONDS = 10.0


class Ssh:
    """How ssh is called for all hosts of a job; a context, since a configuration of its own may be needed."""

    def __init__(self, accept_new_keys: bool, environment: Mapping[str, str] = os.environ) -> None:
        program = shutil.which("ssh", path=environment.get("PATH"))
        if program is None:
            raise NotReadyError(
                "ssh is not on PATH, and hosts are reached with it. Install OpenSSH's client (Debian: openssh-client)."
            )
        self.environment = {**environment, "SSH_ASKPASS_REQUIRE": "never"}  # ProxyJump's own ssh does not get BatchMode
        self._argv = [program, "-T", "-x"]
        self._memory: int | None = None
        if (text := config_for_home(environment)) is not None:
            self._memory = os.memfd_create("ssh_config")
            os.write(self._memory, text.encode())
            self._argv += ["-F", f"/proc/{os.getpid()}/fd/{self._memory}"]  # the ssh of a ProxyJump reads it too
        strict = "accept-new" if accept_new_keys else "yes"
        for option in (*OPTIONS, f"StrictHostKeyChecking={strict}"):
            self._argv += ["-o", option]

    def __enter__(self) -> Ssh:
        return self

    def __exit__(self, *_: object) -> None:
        if self._memory is not None:
            os.close(self._memory)

    def command(self, host: Host, command: str) -> list[str]:
        """Return the command line that runs a shell command on a host."""
        return [*self._argv, *_login(host), "--", host.name, command]

    def look_up(self, host: Host) -> subprocess.Popen[bytes]:
        """Start to ask ssh what it knows about a host; `read_address` reads the answer."""
        return subprocess.Popen(
            [*self._argv, *_login(host), "-G", "--", host.name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self.environment,
            start_new_session=True,
        )


def _login(host: Host) -> list[str]:
    return [*(["-p", str(host.port)] if host.port else []), *(["-l", host.user] if host.user else [])]


def user_name() -> str:
    """Name this user as ssh would; in a container there may be only a number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def read_address(host: Host, lookup: subprocess.Popen[bytes]) -> str:
    """Return the address behind a name of ~/.ssh/config, which means nothing to MindSpore."""
    try:
        answer, _ = lookup.communicate(timeout=LOOKUP_SECONDS)
    except subprocess.TimeoutExpired:
        lookup.kill()
        lookup.communicate()
        return host.name
    return address_of(host, answer)


def address_of(host: Host, answer: bytes) -> str:
    """Return the address that an answer of `ssh -G` holds, the host's name where it holds none."""
    lines = answer.decode(errors="replace").split("\n")
    address = next((line[9:].strip() for line in lines if line.startswith("hostname ")), host.name)
    usable = (
        address.isascii()
        and address.isprintable()
        and not any(map(str.isspace, address))
        and address != host.name.lower()
    )
    return address if address and usable else host.name


def config_for_home(environment: Mapping[str, str]) -> str | None:
    """Return a configuration for a $HOME that is not the one of the password database, which ssh would use."""
    home = environment.get("HOME")
    try:
        if not home or home == pwd.getpwuid(os.getuid()).pw_dir:
            return None
    except KeyError:  # ssh itself will say that there is no such user
        return None
    folder = Path(home) / ".ssh"
    lines = [f'Include "{path}"\nMatch all' for path in (folder / "config", Path(SYSTEM_CONFIG)) if path.exists()]
    lines.append(f'UserKnownHostsFile "{folder}/known_hosts" "{folder}/known_hosts2"')
    lines += [f'IdentityFile "{folder / name}"' for name in IDENTITIES if (folder / name).exists()]
    return "\n".join(lines) + "\n"


SSH_FAILED = 255
"""ssh's exit code for its own failures; any other is the command's."""
BUSY_RETRIES = 8
REFUSED_RETRIES = 2
MOST_LINES = 200
LONGEST_LINE = 300


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern of ssh's words, and the sentence for it: `found` is the pattern's group."""

    pattern: re.Pattern[str]
    sentence: str
    retries: int = 0
    """How often it is worth another try: sshd drops connections when many come at once (MaxStartups)."""


_UNREACHED = "cannot be reached at {where}: {found}. Try {ssh}."

RULES = tuple(
    Rule(re.compile(pattern), *rest)
    for pattern, *rest in (
        (
            r"(?:Host key for|host key for) (\S+) has changed",
            "its host key has CHANGED since it was written to known_hosts. If that is right, remove the old one with "
            "{forget} and connect once with ssh; if not, somebody may be in between.",
        ),
        (
            r"host key is known for (\S+) and you have requested strict|Host key verification failed",
            "its host key is unknown. Connect once with {ssh} and compare it, or give --accept-new-host-keys.",
        ),
        (
            r"(?:(\S+)@[^\s@]+: Permission denied|Too many authentication failures)",
            "refuses the login of {found}. Try {ssh}; it must work without a password.",
        ),
        (r"ssh: Could not resolve hostname (\S+: [^\r\n]+)", _UNREACHED),
        (r"ssh: connect to host \S+ port \d+: (Connection refused)", _UNREACHED, REFUSED_RETRIES),
        (r"ssh: connect to host \S+ port \d+: ([^\r\n]+)", _UNREACHED),
        (
            r"((?:kex|ssh)_exchange_identification: [^\r\n]+|Connection (?:closed|reset) by [^\r\n]+"
            r"|Connection timed out during banner exchange|Not allowed at this time)",
            _UNREACHED,
            BUSY_RETRIES,
        ),
        (r"(.+)", _UNREACHED),
    )
)
"""The first that fits counts: a failure of a ProxyJump shows before what follows from it."""


def find_rule(output: str) -> Rule:
    """Return the row for what ssh said."""
    return _find(output)[0]


def _find(output: str) -> tuple[Rule, str | None]:
    """Return the row for what ssh said, and the words that its pattern found.

    ssh's own messages are short lines: what else a host has written is cut, since searching it would take too long.
    """
    printable = ("".join(filter(str.isprintable, line[:LONGEST_LINE])).strip() for line in output.splitlines())
    lines = [line for line in printable if line]
    for rule in RULES:
        for line in lines[-MOST_LINES:] if rule is not RULES[-1] else lines[-1:]:
            if match := rule.pattern.search(line):
                return rule, match[1]
    return RULES[-1], None


def explain(host: Host, output: str, user: str) -> str:
    """Say why a host cannot be reached, and what to do."""
    rule, reason = _find(output)
    where = f"{host.address}{f' port {host.port}' if host.port else ''}"
    if not reason:
        reason = user if "the login of" in rule.sentence else "ssh ended without a message"
    reason = reason.strip().rstrip(".")
    forget = command_words("ssh-keygen", "-R", reason)
    return rule.sentence.format(found=reason, ssh=login_words(host), forget=forget, where=where)


def login_words(host: Host) -> str:
    """Return the command that logs in to a host."""
    return command_words("ssh", *(["--"] if host.name.startswith("-") else []), host.name)


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
        process, stderr = start_process(argv, guarded(ssh.environment))
        super().__init__(host.name, process, first, stderr)
        self.host = host
        self.hint = f"Try {login_words(host)}."
        self._tail = b""
        self.has_ended = False

    def read(self) -> bytes:
        data = super().read()
        seen = self._tail + data
        self._tail = seen[-len(ENDED) :]
        if not self.has_ended and ENDED in seen:
            self.has_ended = True
            # ssh gets a moment to pass on the host's last words and to end; the stream ends with it.
            timer = threading.Timer(LINGER_SECONDS, self._process.kill)
            timer.daemon = True
            timer.start()
        return data

    def is_finished(self) -> bool:
        return self.has_ended or super().is_finished()

    def retries(self) -> int:
        """How often it is worth to start again, now that the stream has ended before the command began."""
        return find_rule(self.error_output()).retries if self._ssh_failed() else 0

    def why_it_ended(self) -> str:
        """Say why the stream has ended before the job began."""
        if self._ssh_failed():
            return explain(self.host, self.error_output(), self.host.user or user_name())
        return super().why_it_ended()

    def _ssh_failed(self) -> bool:
        return not self.has_ended and self.exit_code() == SSH_FAILED


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
