"""How far a training is, read from the lines that MindSpore's callbacks print."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

_STEP = re.compile(r"epoch:\s*(\d{1,18}),?\s+step:\s*(\d{1,18}),?\s+loss(?:\s+is|:)\s*([-+\w.]{1,40})", re.IGNORECASE)
_PER_STEP = re.compile(r"per step time:\s*(\d{1,18}(?:\.\d{1,18})?)\s*ms")

TAIL_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Progress:
    """The last step that was seen, and how fast steps go by."""

    epoch: int | None = None
    step: int | None = None
    loss: str | None = None
    steps_per_second: float | None = None
    seen: float | None = None

    def read(self, line: str, now: float) -> Progress:
        """Return the progress after one more line."""
        if found := _PER_STEP.search(line):
            per_step = float(found[1])
            return replace(self, steps_per_second=1000 / per_step) if per_step else self
        found = _STEP.search(line)
        if not found:
            return self
        epoch, step = int(found[1]), int(found[2])
        rate = self.steps_per_second
        if epoch == self.epoch and step > (self.step or 0) and now > (self.seen or now):
            rate = (step - (self.step or 0)) / (now - (self.seen or now))
        return Progress(epoch, step, found[3], rate, now)

    def words(self) -> list[str]:
        """Say it in the parts of a status line."""
        parts = []
        if self.epoch is not None:
            parts.append(f"epoch {self.epoch} step {self.step}")
        if self.loss is not None:
            parts.append(f"loss {_short(self.loss)}")
        if self.steps_per_second is not None:
            parts.append(f"{self.steps_per_second:.1f} steps/s")
        return parts


def _short(loss: str) -> str:
    try:
        return f"{float(loss):.5g}"
    except ValueError:
        return loss


def last_loss(log: Path) -> str | None:
    """Return the last loss in the last megabyte of a rank's log, None where there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return None
    found = _STEP.findall(text)
    return found[-1][2] if found else None
