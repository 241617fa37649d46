"""One request for the stacks of all ranks: which hosts have not answered yet, and how the stacks group. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from mslaunch.diagnose import stacks
from mslaunch.shared import messages

Purpose = Literal["question", "stall", "timeout"]
"""What stacks are taken for: somebody wants to see them, no rank prints anything, or the time of the job is up."""


@dataclass(slots=True)
class StackRequest:
    """The newest request; a new one replaces one that is on its way."""

    purpose: Purpose = "question"
    groups: tuple[stacks.Group, ...] | None = None
    last_looks: list[tuple[stacks.Group, ...]] = field(default_factory=list)
    """Where all ranks stood once the time of the job was up, one look after another."""
    waiting_for: set[str] = field(default_factory=set)
    frames: dict[int, tuple[stacks.StackFrame, ...]] = field(default_factory=dict)

    def ask(self, hosts: Iterable[str], purpose: Purpose) -> None:
        """Begin to wait for the stacks of these hosts; a question does not replace what they were taken for before."""
        self.purpose = purpose if self.purpose == "question" else self.purpose
        self.waiting_for = set(hosts)
        self.frames, self.groups = {}, None

    def receive(self, event: messages.Stacks) -> tuple[stacks.Group, ...] | None:
        """Add the stacks of one host; return the groups when it was the last."""
        for number, text in event["stacks"].items():
            self.frames[int(number)] = stacks.parse(text)
        self.waiting_for.discard(event["host"])
        if self.waiting_for or self.groups is not None:
            return None
        self.groups = stacks.group(self.frames)
        return self.groups
