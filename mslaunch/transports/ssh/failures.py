"""What ssh says when a host cannot be reached, and what to do about it: one row for each kind of failure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mslaunch.hosts import Host
from mslaunch.words import command_words

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


def find_rule(said: str) -> Rule:
    """Return the row for what ssh said."""
    return _find(said)[0]


def _find(said: str) -> tuple[Rule, str | None]:
    """Return the row for what ssh said, and the words that its pattern found.

    ssh's own messages are short lines: what else a host has written is cut, since searching it would take too long.
    """
    printable = ("".join(filter(str.isprintable, line[:LONGEST_LINE])).strip() for line in said.splitlines())
    lines = [line for line in printable if line]
    for rule in RULES:
        for line in lines[-MOST_LINES:] if rule is not RULES[-1] else lines[-1:]:
            if match := rule.pattern.search(line):
                return rule, match[1]
    return RULES[-1], None


def explain(host: Host, said: str, user: str) -> str:
    """Say why a host cannot be reached, and what to do."""
    rule, found = _find(said)
    where = f"{host.address}{f' port {host.port}' if host.port else ''}"
    found = found or (user if "the login of" in rule.sentence else "ssh ended without a message")
    found = found.strip().rstrip(".")
    forget = command_words("ssh-keygen", "-R", found)
    return rule.sentence.format(found=found, ssh=login_words(host), forget=forget, where=where)


def login_words(host: Host) -> str:
    """Return the command that logs in to a host."""
    return command_words("ssh", *(["--"] if host.name.startswith("-") else []), host.name)
