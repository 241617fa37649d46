"""The event `metrics` at the launcher's border: a host speaks for its own ranks, and values are numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mslaunch.hosts import Host
from mslaunch.launcher.attempt.attempt import start_orders
from mslaunch.launcher.attempt.event_check import Rejected, check_event
from mslaunch.launcher.connect import Cluster
from mslaunch.plan.make import make_plan
from mslaunch.plan.model import LinePattern, Plan, from_json, to_json
from mslaunch.signals import SignalSource
from mslaunch.transports.local import LocalTransport
from tests.launcher.test_attempt import Replay, ScriptedChannel, ScriptedTransport
from tests.plan.test_make import facts_of, spec_of

HOSTS = (Host("n1", "10.0.0.1", (0, 1)), Host("n2", "10.0.0.2", (0, 1)))
SKEW = 100.0


def plan_of(**flags: Any) -> Plan:
    return make_plan(spec_of(workers=4, **flags), HOSTS, facts_of(HOSTS))


def row(rank: Any = 2, device: Any = None, **values: Any) -> dict[str, Any]:
    return {"time": 500.0, "rank": rank, "device": device, "values": values or {"step": 3, "loss": 0.5}}


def event(*rows: Any) -> dict[str, Any]:
    return {"ev": "metrics", "host": "n2", "time": 501.0, "rows": list(rows)}


@pytest.fixture
def replay(tmp_path: Path) -> Iterator[Replay]:
    """An attempt on n1 (ranks 0 and 1) and n2 (ranks 2 and 3), whose clock is wrong."""
    made = Replay(plan_of(), {host.name: ScriptedChannel(host.name) for host in HOSTS}, SignalSource(), tmp_path)
    cluster = Cluster(ScriptedTransport(), list(made.channels.values()), skew={"n2": SKEW})
    made.attempt.connections.cluster = made.attempt.transfer.cluster = cluster
    yield made.start()
    made.attempt.connections.close()
    made.signals.close()
    for channel in made.channels.values():
        channel.release()


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [row(), row(3, loss="nan", lr=-1e-300), row(loss="inf", grad="-inf")],
        [row(None, None, load=3.5, memory_total=10**13), row(None, 7, utilisation=97)],
        [row(**{f"m{number}": number for number in range(64)})],
        [row(**{"acc/top-1.x": -2.5})],
    ],
)
def test_right_rows_pass(rows: list[Any]) -> None:
    """Of ranks, of devices and of the host."""
    check_event(event(*rows), ["n2"])


@pytest.mark.parametrize(
    "wrong",
    [
        7,
        {},
        row("2"),
        row(-1),
        row(True),
        row(2, "0"),
        {**row(), "time": None},
        {**row(), "values": None},
        {**row(), "values": [1]},
        row(loss=None),
        row(loss=True),
        row(loss=[1]),
        row(loss="0.5"),
        row(loss="NaN"),
        row(loss=math.nan),
        row(loss=math.inf),
        row(loss=2**63),
        row(**{"": 1}),
        row(**{"a b": 1}),
        row(**{"1a": 1}),
        row(**{"a" * 65: 1}),
        row(**{"a\n": 1}),
        row(time=1),
        row(attempt=1),
        row(count=1),
        row(**{f"m{number}": number for number in range(65)}),
    ],
    ids=str,
)
def test_a_wrong_row_is_rejected(wrong: Any) -> None:
    """Neither names nor values that metrics.jsonl could not hold come further."""
    with pytest.raises(Rejected, match="rows of metrics"):
        check_event(event(row(), wrong), ["n2"])


def test_a_host_tells_metrics_of_its_own_ranks_only(replay: Replay) -> None:
    """Those of another host's rank cut it off."""
    replay.channels["n2"].incoming.append([event(row(2), row(1))])
    replay.turns(1)
    assert replay.state.ending.failures[0].summary == "n2 sent metrics of rank 1, which is not its own"


def test_times_of_rows_are_corrected_for_the_clock_of_the_host(replay: Replay) -> None:
    """As the event's own is, and no metrics are written into events.jsonl."""
    replay.channels["n2"].incoming.append([event(row(2))])
    replay.turns(1)
    (seen,) = replay.shown_events("metrics")
    assert (seen["time"], seen["rows"][0]["time"]) == (401.0, 400.0)
    assert "metrics" not in [recorded["ev"] for recorded in replay.recorded]


def test_agents_are_told_what_to_measure() -> None:
    """The table, and what the job adds; nothing where that is asked."""
    plan = plan_of(metrics=[{"name": "acc", "regex": r"acc: ([\d.]+)"}])
    assert plan.metrics == (LinePattern("acc", r"acc: ([\d.]+)"),)
    assert from_json(to_json(plan)) == plan
    orders = dict(start_orders(plan, {}, LocalTransport()))
    told = orders["n2"]["metrics"]
    assert told is not None
    assert told["patterns"][-1]["fields"] == ["acc"]
    assert told["patterns"][-1]["literals"] == ["acc: "]
    off = plan_of(metrics=False)
    assert from_json(to_json(off)) == off
    assert dict(start_orders(off, {}, LocalTransport()))["n1"]["metrics"] is None
