"""The numbers of one attempt as they come: the last ones of each rank, the rows to keep, and what to tell. Pure."""

from __future__ import annotations

from mslaunch import messages
from mslaunch.metrics.alerts import Alert, Alerts
from mslaunch.metrics.rows import Number, Row, Source, parse_values
from mslaunch.plan.model import Plan

NOT_FINITE = "loss not finite"


class Numbers:
    """Takes the metrics of all hosts."""

    def __init__(self, plan: Plan) -> None:
        self._attempt = plan.attempt
        self._alerts = Alerts({int(worker.rank or 0): worker.host for worker in plan.workers})
        self._new: list[Row] = []
        self.last: dict[int, dict[str, Number]] = {}
        """The last numbers of every rank by name."""

    def receive(self, event: messages.Metrics) -> list[Alert]:
        """Take what a host has told; return what a person should be told of it."""
        rows = [self._row(event["host"], row) for row in event["rows"]]
        self._new += rows
        for row in rows:
            if row.source.rank is not None:
                last = self.last.setdefault(row.source.rank, {})
                last.update({name: number for name in row.values if (number := row.last(name)) is not None})
        return self._alerts.see(rows)

    def _row(self, host: str, row: messages.MetricRow) -> Row:
        rank = row["rank"]
        of_host = (None, None) if rank is not None else (host, row["device"])
        return Row(row["time"], Source(self._attempt, rank, *of_host), parse_values(row["values"]))

    def shown(self, preferred: int) -> dict[str, Number]:
        """Return the numbers of this rank, or of the first one that told any: with a pipeline, the last ranks do."""
        return self.last.get(preferred) or next(iter(self.last.values()), {})

    def check(self, wall: float) -> list[Alert]:
        """Compare the ranks, hosts and devices from time to time; return what a person should be told."""
        return self._alerts.check(wall)

    def rank_ended(self, rank: int) -> None:
        self._alerts.forget(Source(self._attempt, rank))

    def pop_rows(self) -> list[Row]:
        """Return the rows that are to be kept, each once."""
        rows, self._new = self._new, []
        return rows
