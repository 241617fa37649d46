"""What is known of the first failure of a run. Light: records hold it, and lists of runs read many records."""

from __future__ import annotations

import signal as signals
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Step:
    """One process of a chain, and the line that shows why it is there."""

    rank: int | None
    host: str | None
    device: int | None
    log: str | None
    line: int | None


@dataclass(frozen=True, slots=True)
class Tie:
    """Ranks that failed so close to the first one that nobody can tell which was first, all with the same words."""

    ranks: tuple[int, ...]
    summary: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The first failure of a run, and what is known about it."""

    rank: int | None = None
    """The rank that failed first; None where no rank is to blame."""
    host: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    cause: str = "unknown"
    """How it failed: exception, exit, signal, stalled, timeout, host lost and so on."""
    summary: str = ""
    advice: str | None = None
    log: str | None = None
    line: int | None = None
    traceback: str | None = None
    pattern: str | None = None
    """The id of the known failure that its log shows."""
    ties: tuple[Tie, ...] = ()
    """Other ranks that may have been the first: the clocks cannot tell. They are in `also_failed` as well."""
    also_failed: tuple[int, ...] = ()
    """Other ranks that failed by themselves."""
    victims: tuple[int, ...] = ()
    """Ranks that were ended because of it."""
    step: tuple[int, int] | None = None
    """The last epoch and step that was printed before it."""
    chain: tuple[Step, ...] = ()
    """Who waited for whom, the culprit last."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"
