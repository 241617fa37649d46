"""The command line of ssh: the user's own configuration, plus what a launcher needs."""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from mslaunch.errors import NotReadyError
from mslaunch.hosts import Host

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
