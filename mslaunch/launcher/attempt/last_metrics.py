"""The numbers of one attempt as they come: the last ones of each rank, the rows to keep, and what to tell. Pure."""

from __future__ import annotations

import math

from mslaunch.metrics.alerts import Alert, Alerts
from mslaunch.metrics.rows import Number, Row, Source, parse_values
from mslaunch.metrics.series import SIGNS_OF_STEPS, step_of
from mslaunch.plan.model import Plan
from mslaunch.shared import messages
from mslaunch.text import named_ranks

NOT_FINITE = "loss not finite"


class Numbers:
    """Takes the metrics of all hosts."""

    def __init__(self, plan: Plan) -> None:
        self._attempt = plan.attempt
        self.alerts = Alerts({int(worker.rank or 0): worker.host for worker in plan.workers})
        self._new: list[Row] = []
        self.last: dict[int, dict[str, Number]] = {}
        """The last numbers of every rank by name."""
        self.step_came: dict[int, float] = {}
        """When the last step of every rank came, by the clock of `receive`: those of hosts differ."""
        self._not_finite: dict[int, Number | None] = {}
        """Since which step the loss of a rank is NaN or infinite."""

    def receive(self, event: messages.MetricsEvent, now: float) -> list[Alert]:
        """Take what a host has told; return what a person should be told of it."""
        rows = [self._row(event["host"], row) for row in event["rows"]]
        self._new += rows
        for row in rows:
            if row.source.rank is not None:
                last = self.last.setdefault(row.source.rank, {})
                if not SIGNS_OF_STEPS.isdisjoint(row.values):
                    self.step_came[row.source.rank] = now - max(0.0, event["time"] - row.time)
                last.update(row.last_values())
                if math.isfinite(last.get("loss", 0)):
                    self._not_finite.pop(row.source.rank, None)
                else:
                    self._not_finite.setdefault(row.source.rank, step_of(last))
        return self.alerts.see(rows)

    def _row(self, host: str, row: messages.MetricRow) -> Row:
        rank = row["rank"]
        of_host = (None, None) if rank is not None else (host, row["device"])
        return Row(row["time"], Source(self._attempt, rank, *of_host), parse_values(row["values"]))

    def shown(self, preferred: int, now: float) -> tuple[dict[str, Number], float | None]:
        """Return the numbers of this rank, or of the first one that told any, and how long ago its last step came.

        With a pipeline, the last ranks tell them.
        """
        rank = preferred if self.last.get(preferred) else next(iter(self.last), preferred)
        came = self.step_came.get(rank)
        return self.last.get(rank, {}), None if came is None else now - came

    def describe_losses(self) -> list[str]:
        """Say of which ranks the last loss is not finite: with such a loss a job has learned nothing since then."""
        if not self._not_finite:
            return []
        steps = [step for step in self._not_finite.values() if step is not None]
        since = f" since step {min(steps):g}" if steps else ""
        loss = self.last[min(self._not_finite)]["loss"]
        return [f"loss is {loss}{since} ({named_ranks(self._not_finite)})"]

    def rank_ended(self, rank: int) -> None:
        self.alerts.forget(Source(self._attempt, rank))

    def pop_rows(self) -> list[Row]:
        """Return the rows that are to be kept, each once."""
        rows, self._new = self._new, []
        return rows
