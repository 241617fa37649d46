"""What an agent measures and sends: metrics from the ranks' logs and reports, resources of ranks, devices and host."""

from __future__ import annotations

import time

from mslaunch.agent.metrics.line_patterns import LinePatterns
from mslaunch.agent.metrics.log_metrics import LogMetrics, StepCounter, spread_rows
from mslaunch.agent.metrics.resources import DeviceMetrics, Resources
from mslaunch.shared.metric_values import checked, to_wire
from mslaunch.shared.visible_devices import environment_of_ranks

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mslaunch.agent.launcher_stream import LauncherStream
    from mslaunch.agent.metrics.log_metrics import Timed
    from mslaunch.agent.ranks import Children
    from mslaunch.shared import messages

    Method = Callable[..., None]

BYTES = 1 << 22  # of all logs, a second; of longer ones some pieces are read
LEAST_BYTES = 1 << 17  # of a log, per look
MOST_WAITING = 1 << 20  # nothing is measured while so many bytes wait for the launcher
FIRST_RESOURCES = 1.0  # seconds after the first look, which only tells from where on to count
MOST_REPORTED = 200  # rows of a rank's reports that are kept for the next event


def _harmless(method: Method) -> Method:
    """Have the job go on whatever goes wrong in a method of AttemptMetrics: an agent that dies would cost it."""

    def guarded(self: AttemptMetrics, *arguments: Any) -> None:
        if not self.is_broken:
            try:
                method(self, *arguments)
            except OSError:  # no more files or processes now; the next look may find some
                pass
            except Exception as error:  # something is wrong that another look would not mend
                self.is_broken = True
                self._output.note(f"metrics are not measured any more: {type(error).__name__}: {error}")

    return guarded


class AttemptMetrics:
    """Measures one attempt."""

    def __init__(self, order: messages.RunOrder, output: LauncherStream, children: Children) -> None:
        settings = order["metrics"]
        assert settings is not None
        ranks = {planned["rank"]: planned for planned in order["processes"] if planned["rank"] is not None}
        self._output = output
        self._children = children
        self._every = settings["every"]
        self._most = settings["most"]
        self._resources_every = settings["resources"]
        self._limit = max(LEAST_BYTES, int(BYTES * self._every) // max(1, len(ranks)))
        patterns = LinePatterns(settings["patterns"], output.note)
        self._logs = {rank: LogMetrics(planned["log"], patterns) for rank, planned in ranks.items()}
        self._reported: dict[int, list[Timed]] = {}
        self._reported_steps: dict[int, StepCounter] = {}
        self._resources = Resources(order["run_dir"])
        devices = {planned["device_id"] for planned in ranks.values() if planned["device_id"] is not None}
        self._devices = DeviceMetrics(settings["devices"], devices, environment_of_ranks(order))
        self.is_broken = False
        self._looked = 0.0
        self._resources_at: float | None = None

    @_harmless
    def look(self, now: float) -> None:
        if now - self._looked < self._every or self._output.waiting > MOST_WAITING:
            return
        self._looked = now
        rows = [row for rank in self._logs for row in self._rows_of(rank)]
        self._send(rows + self._resource_rows(now))

    @_harmless
    def send_now(self, rank: int) -> None:
        """Send what is known of a rank: its last steps come before its failure."""
        if rank in self._logs:
            self._send(self._rows_of(rank))

    @_harmless
    def finish(self, rank: int) -> None:
        if rank in self._logs:
            self._send(self._rows_of(rank, is_last=True))
            del self._logs[rank]
            if not self._logs:
                self._devices.close()

    @_harmless
    def receive(self, rank: int, rows: list[Any]) -> None:
        """Keep what a rank reports until the next look."""
        reported = self._reported.setdefault(rank, [])
        for when, payload in rows:
            values = checked(payload)
            if values:
                reported.append((when, values))
        if len(reported) > MOST_REPORTED:
            self._reported[rank] = spread_rows(reported, MOST_REPORTED // 2)

    @_harmless
    def stop_asking(self) -> None:
        """The job ends: no tool of the devices may hold that up."""
        self._devices.close()

    def _resource_rows(self, now: float) -> list[messages.MetricRow]:
        """Look at the processes and the host where it is time to, and take what the devices' tool has answered."""
        if not self._logs:
            return []
        when = round(time.time(), 3)
        rows = [_row(when, None, device, values) for device, values in self._devices.look(now).items()]
        pids = {rank: pid for rank, (pid, _) in self._children.running_ranks.items()}
        if self._resources_at is None:
            self._resources.look(pids)
            self._resources_at = now + min(FIRST_RESOURCES, self._resources_every)
        elif now >= self._resources_at:
            self._resources_at = now + self._resources_every
            rows += [_row(when, rank, None, values) for rank, values in self._resources.look(pids)]
        return rows

    def _rows_of(self, rank: int, is_last: bool = False) -> list[messages.MetricRow]:
        rows = self._logs[rank].read(self._most, self._limit, is_last)
        if rank in self._reported:
            reported = spread_rows(self._reported.pop(rank), self._most)
            self._reported_steps.setdefault(rank, StepCounter()).add_to_all(reported)
            rows += reported
        return [{"time": when, "rank": rank, "device": None, "values": values} for when, values in rows]

    def _send(self, rows: list[messages.MetricRow]) -> None:
        if rows:
            self._output.event("metrics", time=time.time(), rows=rows)


def _row(when: float, rank: int | None, device: int | None, values: dict[str, float]) -> messages.MetricRow:
    return {"time": when, "rank": rank, "device": device, "values": {n: to_wire(value) for n, value in values.items()}}
