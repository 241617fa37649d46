"""One request for the stacks of all ranks: which hosts have not answered yet, and how the stacks group. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from mslaunch.diagnose import stacks
from mslaunch.shared import messages

Purpose = Literal["question", "stall", "timeout"]
"""What stacks are taken for: somebody wants to see them, no rank prints anything, or the time of the job is up."""


class StackRequest:
    """The newest request; a new one replaces one that is on its way."""

    def __init__(self) -> None:
        self.purpose: Purpose = "question"
        self.groups: tuple[stacks.Group, ...] | None = None
        self.last_looks: list[tuple[stacks.Group, ...]] = []
        """Where all ranks stood once the time of the job was up, one look after another."""
        self._waiting_for: set[str] = set()
        self._stacks: dict[int, tuple[stacks.StackFrame, ...]] = {}

    def ask(self, hosts: Iterable[str], purpose: Purpose) -> None:
        """Begin to wait for the stacks of these hosts; a question does not replace what they were taken for before."""
        self.purpose = purpose if self.purpose == "question" else self.purpose
        self._waiting_for = set(hosts)
        self._stacks, self.groups = {}, None

    def receive(self, event: messages.Stacks) -> tuple[stacks.Group, ...] | None:
        """Add the stacks of one host; return the groups when it was the last."""
        for number, text in event["stacks"].items():
            self._stacks[int(number)] = stacks.parse(text)
        self._waiting_for.discard(event["host"])
        if self._waiting_for or self.groups is not None:
            return None
        self.groups = stacks.group(self._stacks)
        return self.groups
