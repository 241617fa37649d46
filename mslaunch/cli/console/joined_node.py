"""A node that joins a launcher elsewhere: shows that it has joined, what becomes of its ranks, and the same verdict."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from mslaunch.cli.console.console import verdict_text
from mslaunch.cli.console.describe import describe_end
from mslaunch.cli.parsing.common import say
from mslaunch.launcher.membership import join

if TYPE_CHECKING:
    from mslaunch.transports.join.find_launcher import Member


def follow(member: Member, as_json: bool = False, for_ever: bool = False) -> int:
    """Take part in one run; return the exit code that the launcher has as well."""
    for note in member.part.notes:
        say(note)
    began = time.monotonic()
    code, record, text = join(member, say, None if for_ever else member.part.timeout)
    for line in text.splitlines():
        say(line)
    if record is not None:
        say(describe_end(record, time.monotonic() - began))
        if verdict := verdict_text(record, False):
            say(f"the paths below are those of the launcher at {member.part.place}")
            print(verdict, end="", flush=True)
        if as_json:
            print(json.dumps(record.to_dict(), indent=1))
    return code
