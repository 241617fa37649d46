"""Taking part in a job that another process launches, for nodes that join it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mslaunch.errors import signal_code

if TYPE_CHECKING:
    from mslaunch.run.record import RunRecord
    from mslaunch.transports.join.node import Member


def agent_member(tell: Callable[[str], None], **flags: Any) -> Member:
    """A node that only lends its devices to the launcher at an address, from the settings that it was given."""
    from mslaunch.plan.methods import find_method
    from mslaunch.plan.spec import JobSpec
    from mslaunch.settings.resolve import resolve
    from mslaunch.settings.yaml_config import JobConfig
    from mslaunch.transports.join import lending_member

    given = {name: value for name, value in flags.items() if value is not None}
    settings = resolve(given, os.environ, JobConfig())
    return lending_member(
        JobSpec(settings.values, settings.sources, JobConfig(), find_method(settings)), os.environ, tell
    )


def join(member: Member, tell: Callable[[str], None], seconds: float | None) -> tuple[int, RunRecord | None, str]:
    """Take part in a job that another process launches; return the exit code, the run's record, or why there is none.

    `seconds` is how long the launcher is waited for; None is for ever.
    """
    from mslaunch.errors import RecordUnreadable
    from mslaunch.run.record import from_dict
    from mslaunch.signals import Signals
    from mslaunch.transports.join.node import Accepted, EarlyAgent, connect_unless_ended, take_part

    with Signals() as signals:
        early = EarlyAgent()
        try:
            accepted = connect_unless_ended(member, tell, seconds, signals)
        except BaseException:
            early.close()
            raise
        if not isinstance(accepted, Accepted):
            early.close()
            return signal_code(accepted), None, f"{accepted.name} ended this node before it joined {member.part.place}"
        tell(f"joined {member.part.place} as node {accepted.rank} ({accepted.name}), run {accepted.run}")
        ended = take_part(accepted, early, signals, tell)
    if ended.record is None:
        return ended.exit_code, None, ended.text
    try:
        return ended.exit_code, from_dict(ended.record, member.part.place), ended.text
    except RecordUnreadable as error:
        return ended.exit_code, None, str(error)
