"""Which ranks have imported MindSpore and called init(), and which wait there for which others. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from mslaunch.launcher.attempt.decisions import Order
from mslaunch.text import named_ranks

JOINED_EVERY = 0.2  # agents need not hear of each of 10,000 ranks that is through init()


@dataclass(slots=True)
class Joining:
    """How far each rank is on its way into the group."""

    has_others: bool
    """Whether there are agents that do not see by themselves how far the ranks of others are."""
    import_began: bool = False
    joined_sent: float | None = None
    """When agents last heard of ranks that have joined."""
    imported: set[int] = field(default_factory=set)
    """Ranks that have loaded MindSpore."""
    called: set[int] = field(default_factory=set)
    """Ranks that have called init()."""
    waiting: dict[int, float] = field(default_factory=dict)
    """Ranks that are in init(), and since when."""
    joined: set[int] = field(default_factory=set)
    """Ranks that are through init()."""
    absent: dict[int, float] = field(default_factory=dict)
    """Ranks that have ended with code 0 without init(), and when."""

    def enter(self, rank: int, now: float) -> None:
        self.called.add(rank)
        self.waiting[rank] = now

    def leave(self, rank: int, now: float) -> list[Order]:
        """A rank is through init(); agents hear of that now and then."""
        self.called.add(rank)
        self.waiting.pop(rank, None)
        self.joined.add(rank)
        is_recent = self.joined_sent is not None and now - self.joined_sent < JOINED_EVERY
        if not self.has_others or is_recent:
            return []
        self.joined_sent = now
        return [Order("joined")]

    def begin_import(self) -> list[Order]:
        """A rank imports MindSpore; the first one needs the scheduler, wherever that is."""
        is_first = not self.import_began
        self.import_began = True
        return [Order("scheduler")] if is_first and self.has_others else []

    def end(self, rank: int, code: int | None, now: float) -> None:
        """A rank has ended: it waits no more, and others may wait for it in vain."""
        self.waiting.pop(rank, None)
        if code == 0 and rank not in self.called:
            self.absent[rank] = now

    def hopeless_since(self) -> float | None:
        """Return since when ranks wait in init() for one that has ended without it; None where none does."""
        if not self.absent or not self.waiting:
            return None
        return max(min(self.absent.values()), min(self.waiting.values()))

    def describe_absent(self) -> str:
        """Name the ranks that have ended without init(), and those that wait for them."""
        have, them = ("have", "them") if len(self.absent) > 1 else ("has", "it")
        wait = "wait" if len(self.waiting) > 1 else "waits"
        gone, left = named_ranks(sorted(self.absent)), named_ranks(sorted(self.waiting))
        return f"{gone} {have} ended without init(); {left} {wait} for {them} in init()"

    def describe_missing(self, running: Collection[int], seconds: float) -> str:
        """Say who is waited for, where ranks have been in init() for so long."""
        missing = [rank for rank in running if rank not in self.called]
        if missing:
            have = "have" if len(missing) > 1 else "has"
            return f"{named_ranks(missing)} {have} not joined after {seconds:.0f} s; the others wait in init()"
        waiting = sorted(self.waiting)
        are = "are" if len(waiting) > 1 else "is"
        which = "all ranks are" if self.waiting.keys() >= set(running) else f"{named_ranks(waiting)} {are}"
        return f"{which} in init(), which has not returned after {seconds:.0f} s"

    def describe_alone(self, ranks: int) -> str | None:
        """Say that no rank of a job that used MindSpore has called init(); None where one has, or it is not known."""
        if ranks < 2 or not self.imported or self.called:
            return None
        return f"{ranks} ranks ran, none called init(): each worked alone"
