"""What an agent measures and sends: metrics from the ranks' logs and reports, resources of ranks, devices and host."""

from __future__ import annotations

import time

from mslaunch.agent.line_patterns import LinePatterns
from mslaunch.agent.log_metrics import LogMetrics, spread_rows
from mslaunch.agent.metric_values import checked

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from typing import Any

    from mslaunch import messages
    from mslaunch.agent.log_metrics import Timed
    from mslaunch.agent.output import Output

BYTES = 1 << 22  # of all logs, a second; of longer ones some pieces are read
LEAST_BYTES = 1 << 17  # of a log, per look
MOST_WAITING = 1 << 20  # nothing is measured while so many bytes wait for the launcher
MOST_REPORTED = 200  # rows of a rank's reports that are kept for the next event


class Metrics:
    """Measures one attempt. `logs` are those of this host's ranks."""

    def __init__(self, order: messages.MetricsOrder, logs: dict[int, str], output: Output) -> None:
        self._output = output
        self._every = order["every"]
        self._most = order["most"]
        self._limit = max(LEAST_BYTES, int(BYTES * self._every) // max(1, len(logs)))
        patterns = LinePatterns(order["patterns"], lambda text: output.event("agent-note", text=text))
        self._logs = {rank: LogMetrics(log, patterns) for rank, log in logs.items()}
        self._reported: dict[int, list[Timed]] = {}
        self._looked = 0.0

    def look(self, now: float) -> None:
        """Measure what it is time to measure, and send it."""
        if now - self._looked < self._every or self._output.waiting > MOST_WAITING:
            return
        self._looked = now
        self._send([row for rank in self._logs for row in self._rows_of(rank)])

    def finish(self, rank: int) -> None:
        """Send what is left of a rank that has ended."""
        if rank in self._logs:
            self._send(self._rows_of(rank, is_last=True))
            del self._logs[rank]

    def receive(self, rank: int, rows: list[Any]) -> None:
        """Keep what a rank reports until the next look."""
        kept = self._reported.setdefault(rank, [])
        kept += [(when, values) for when, told in rows if (values := checked(told))]
        if len(kept) > MOST_REPORTED:
            self._reported[rank] = spread_rows(kept, MOST_REPORTED // 2)

    def _rows_of(self, rank: int, is_last: bool = False) -> list[messages.MetricRow]:
        found = self._logs[rank].read(self._most, self._limit, is_last)
        found += spread_rows(self._reported.pop(rank, []), self._most)
        return [{"time": when, "rank": rank, "device": None, "values": values} for when, values in found]

    def _send(self, rows: list[messages.MetricRow]) -> None:
        if rows:
            self._output.event("metrics", time=time.time(), rows=rows)
