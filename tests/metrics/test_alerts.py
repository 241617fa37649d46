"""What is told of the numbers of a running job: once, of the right rank, and nothing about healthy ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pytest

from mslaunch.metrics.alerts import Alert, Alerts
from mslaunch.metrics.rows import Number, Row, Source

HOSTS = {rank: f"n{rank // 2}" for rank in range(4)}
GB = 10**9


def rank(number: int) -> Source:
    return Source(0, number)


def watch(numbers: Callable[[int, int], Mapping[str, Number]], looks: int = 20, ranks: int = 4) -> list[Alert]:
    """Have every rank tell its numbers at each look, two seconds apart; return what is told."""
    alerts = Alerts(HOSTS)
    told = []
    for look in range(looks):
        now = 2.0 * look + 2
        told += alerts.see([Row(now, rank(one), numbers(one, look)) for one in range(ranks)])
        told += alerts.check(now)
    return told


def losses(*numbers: float) -> list[Alert]:
    alerts = Alerts(HOSTS)
    return alerts.see([Row(float(step), rank(1), {"step": step, "loss": loss}) for step, loss in enumerate(numbers)])


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_told_once(loss: float) -> None:
    """With the rank, its host and the step."""
    assert [alert.text for alert in losses(2.5, loss, loss)] == [f"rank 1 on n0: loss is {loss} at step 1"]


def test_only_one_rank_is_named_where_all_have_such_a_loss() -> None:
    """After an AllReduce all have it."""
    told = watch(lambda one, look: {"step": look, "loss": math.nan})
    assert [alert.kind for alert in told] == ["loss not finite"]


def test_a_loss_that_jumps_is_told() -> None:
    """Far beyond what it did before."""
    told = losses(*[1.0 + 0.01 * (step % 5) for step in range(30)], 50.0)
    assert [alert.text for alert in told] == ["rank 1 on n0: loss jumped from about 1.02 to 50 at step 30"]


@pytest.mark.parametrize(
    "course",
    [
        [10 / (step + 1) for step in range(200)],
        [2 + math.sin(step) + (step * 7919 % 13) / 10 for step in range(200)],
        [0.0] * 50,
        [5.0] * 30 + [1e-6] * 30,
    ],
)
def test_a_loss_that_falls_or_wavers_is_no_jump(course: list[float]) -> None:
    """Noise, a plateau and a fall are what training is."""
    assert losses(*course) == []


def test_a_stopped_rank_is_told() -> None:
    """The others are not, nor is it told again."""
    told = watch(lambda one, look: {"stopped": int(one == 2), "cpu": 0.5, "step": look})
    assert [(alert.kind, alert.source.rank) for alert in told] == [("stopped", 2)]
    assert "`kill -CONT`" in told[0].text


def test_a_rank_that_waits_for_a_core_is_told() -> None:
    """Its step time is that of its peers: the collective makes them equal."""
    told = watch(lambda one, look: {"cpu_wait": 0.6 if one == 3 else 0.04, "step": look, "step_time": 1.0})
    assert [(alert.kind, alert.source.rank) for alert in told] == [("starved", 3)]


def test_a_rank_that_waits_for_a_core_is_told_on_a_full_machine() -> None:
    """All wait there; the one that gets a third of what the others get is slow all the same."""
    told = watch(lambda one, look: {"cpu_wait": 0.95 if one == 3 else 0.8, "step": look})
    assert [(alert.kind, alert.source.rank) for alert in told] == [("starved", 3)]


@pytest.mark.parametrize(("cpu", "kinds"), [(0.02, []), (0.2, ["starved"])])
def test_a_rank_that_sleeps_does_not_starve(cpu: float, kinds: list[str]) -> None:
    """It wants a core for moments only, and waits for most of them; one that would use a core does starve."""
    told = watch(lambda one, look: {"cpu_wait": 0.85 if one == 3 else 0.3, "cpu": cpu, "step": look})
    assert [alert.kind for alert in told] == kinds


def test_a_machine_that_is_full_starves_nobody_in_particular() -> None:
    """All ranks wait for cores alike."""
    assert watch(lambda one, look: {"cpu_wait": 0.5 + 0.05 * one, "step": look}) == []


def test_a_rank_that_computes_while_the_others_wait_is_told() -> None:
    """Only once the ranks have made steps: imports and compilation end at different times."""
    told = watch(lambda one, look: {"cpu": 0.99 if one == 1 else 0.1, "step": look})
    assert [(alert.kind, alert.source.rank) for alert in told] == [("alone at work", 1)]
    assert watch(lambda one, look: {"cpu": 0.99 if one == 1 else 0.1}) == []


def test_a_rank_of_a_pair_that_computes_alone_is_told() -> None:
    """With two ranks the other one is the measure."""
    told = watch(lambda one, look: {"cpu": 0.99 if one == 0 else 0.1, "step": look}, ranks=2)
    assert [(alert.kind, alert.source.rank) for alert in told] == [("alone at work", 0)]


def test_a_rank_whose_steps_take_longer_is_told() -> None:
    """Where no collective makes them equal; a few steps of a busy machine say nothing."""
    told = watch(lambda one, look: {"step": 5 * look, "step_time": 2.0 if one == 0 else 1.0})
    assert [(alert.kind, alert.source.rank) for alert in told] == [("slow", 0)]
    assert watch(lambda one, look: {"step": look, "step_time": 2.0 if one == 0 else 1.0}, looks=8) == []


def test_a_moment_is_no_alarm() -> None:
    """A rank that saves a checkpoint once, or is stopped for one look."""
    assert watch(lambda one, look: {"cpu": 1.0 if one == 0 and look == 5 else 0.1, "step": look}) == []
    assert watch(lambda one, look: {"stopped": int(one == 0 and look == 5)}) == []


def test_numbers_of_long_ago_are_not_compared() -> None:
    """A rank that tells nothing more is not slow by what it told before."""
    alerts = Alerts(HOSTS)
    alerts.see([Row(0.0, rank(0), {"stopped": 1, "step": 1})])
    assert [alerts.check(now) for now in range(2, 100, 2)] == [[]] * 49


def test_a_rank_that_has_ended_is_no_measure() -> None:
    """Its last numbers stand still."""
    alerts = Alerts(HOSTS)
    alerts.see([Row(1.0, rank(0), {"cpu": 0.0, "step": 1})])
    alerts.forget(rank(0))
    for look in range(10):
        now = 2.0 * look + 2
        alerts.see([Row(now, rank(1), {"cpu": 1.0, "step": look})])
        assert alerts.check(now) == []


@pytest.mark.parametrize(
    ("source", "values", "text"),
    [
        (Source(0, None, "n0"), {"swap_rate": 5e6}, "n0 swaps 5 MB/s"),
        (Source(0, None, "n0"), {"disk_free": GB // 2, "disk_total": 100 * GB}, "n0 has 500 MB of 100 GB left"),
        (Source(0, None, "n0", 3), {"temperature": 97}, "device 3 of n0 is at 97 °C"),
    ],
)
def test_a_host_or_device_in_trouble_is_told(source: Source, values: Mapping[str, Number], text: str) -> None:
    """Each once, however long it lasts."""
    alerts = Alerts(HOSTS)
    told = []
    for look in range(10):
        told += alerts.see([Row(2.0 * look, source, values)]) + alerts.check(2.0 * look + 2)
    assert [alert.text.startswith(text) for alert in told] == [True]


def test_an_idle_device_among_busy_ones_is_told() -> None:
    """After a while: devices are idle between two epochs too."""
    alerts = Alerts(HOSTS)
    told = []
    for look in range(20):
        rows = [Row(2.0 * look, Source(0, None, "n0", one), {"utilisation": 0 if one == 1 else 90}) for one in range(4)]
        told += alerts.see(rows) + alerts.check(2.0 * look + 2)
    assert [(alert.kind, alert.source.device) for alert in told] == [("idle", 1)]
