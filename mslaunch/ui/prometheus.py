"""The last numbers of runs that go on, as Prometheus scrapes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from mslaunch.errors import MslaunchError
from mslaunch.metrics.rows import Source
from mslaunch.run.metrics_file import last_values
from mslaunch.ui.curves import kind_of
from mslaunch.ui.library import Library

LABELS = {"rank": ("rank",), "host": ("host",), "device": ("host", "device")}
"""What tells the sources of each kind apart, beside the run and the name of the number."""


class RunCollector(Collector):
    """Collects anew with every scrape."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def collect(self) -> Iterator[GaugeMetricFamily]:
        summaries = self._library.summaries()
        states = GaugeMetricFamily("mslaunch_runs", "Runs of the folder, by state.", labels=["state"])
        for state, count in Counter(run["state"] for run in summaries).items():
            states.add_metric([state], count)
        families = {
            kind: GaugeMetricFamily(
                f"mslaunch_{kind}_value",
                f"Last number that a {kind} of a running job told, by its name.",
                labels=["run", *labels, "metric"],
            )
            for kind, labels in LABELS.items()
        }
        for run in summaries:
            if run["state"] == "running":
                self._add(families, run)
        yield states
        yield from families.values()

    def _add(self, families: dict[str, GaugeMetricFamily], summary: dict[str, Any]) -> None:
        try:
            run = self._library.find(summary["name"])
        except MslaunchError:
            return
        numbers = last_values(run.folder.metrics, summary["ranks"] or 1)
        newest: dict[tuple[Any, ...], Source] = {}
        for source in numbers:
            newest[source[1:]] = max(source, newest.get(source[1:], source), key=lambda candidate: candidate.attempt)
        for source in newest.values():
            kind = kind_of(source)
            who = [str(getattr(source, label)) for label in LABELS[kind]]
            for name, value in numbers[source].items():
                families[kind].add_metric([run.name, *who, name], float(value))


def scrape(library: Library) -> bytes:
    """Return everything in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(RunCollector(library))
    return generate_latest(registry)
