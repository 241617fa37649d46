"""What in the numbers of a running job a person should be told, once: losses, ranks, hosts and devices. Pure.

A collective makes the step times of all ranks equal: a slow rank is seen by what it does meanwhile. It waits for a core
while the others do not, or computes while the others wait for it.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from mslaunch.metrics.rows import Number, Row, Source
from mslaunch.metrics.series import STEPS_SEEN, StepsSeen, step_of
from mslaunch.text import byte_count, seconds_words

CHECK_EVERY = 2.0
STALE = 30.0  # seconds after which a number says nothing about now
LOSSES_WATCHED = 64  # ranks whose losses are compared with their own past; one that is not finite is told of any
PAST = 20  # losses that a jump is judged by
LEAST_WANTED = 0.3  # cores that a rank would use if it waited for none
LEAST_STEPS = 30  # fewer say nothing about how fast a rank is
JUMP = 10.0  # times as far from the median as any of the past ones

Values = Mapping[str, Number]
Medians = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Alert:
    """One thing to tell."""

    kind: str
    source: Source
    text: str


@dataclass(frozen=True, slots=True)
class AlertRule:
    """What is told of a source when it has held in so many looks in a row, each with new numbers.

    `holds` and `words` are given the source's own numbers and the medians of its peers.
    """

    kind: str
    looks: int
    holds: Callable[[Values, Medians], bool]
    words: Callable[[Values, Medians], str]


def sleeps(own: Values) -> bool:
    """Tell whether a rank wants so little of a core that its waits, short and many, say nothing."""
    return own.get("cpu", math.inf) < LEAST_WANTED * (1 - own.get("cpu_wait", 0))


def _starved(own: Values, peers: Medians) -> bool:
    wait, of_peers = own.get("cpu_wait", 0), peers.get("cpu_wait", 1)
    if sleeps(own):
        return False
    return wait >= 0.25 and (wait >= of_peers + 0.2 or 1 - wait <= (1 - of_peers) / 3)  # on a full machine all wait


def _alone_at_work(own: Values, peers: Medians) -> bool:
    return "step" in own and own.get("cpu", 0) >= 0.5 and own["cpu"] >= 3 * peers.get("cpu", math.inf)


def _slow(own: Values, peers: Medians) -> bool:
    if own.get(STEPS_SEEN, 0) < LEAST_STEPS:
        return False
    return own.get("step_time", 0) >= 1.5 * peers.get("step_time", math.inf)


def _disk_is_full_soon(own: Values, _: Medians) -> bool:
    free, total = own.get("disk_free"), own.get("disk_total")
    return free is not None and total is not None and (free < 1e9 or (free < 1e10 and free < 0.02 * total))


RANK_RULES = (
    AlertRule(
        "stopped",
        2,
        lambda own, _: own.get("stopped", 0) == 1,
        lambda *_: "is stopped (SIGSTOP, Ctrl-Z or a debugger), so its peers wait: `kill -CONT` continues it",
    ),
    AlertRule(
        "starved",
        3,
        _starved,
        lambda own, peers: (
            f"gets too little CPU: {100 * own['cpu_wait']:.0f} % of the time its threads wait for a core (its peers: "
            f"{100 * peers['cpu_wait']:.0f} %): look for other programs on its cores, a CPU limit or `--numa`"
        ),
    ),
    AlertRule(
        "alone at work",
        4,
        _alone_at_work,
        lambda own, peers: (
            f"computes while its peers wait for it: it uses {own['cpu']:.1f} cores, they use {peers['cpu']:.1f}; "
            "`mslaunch stacks` shows what it does"
        ),
    ),
    AlertRule(
        "slow",
        3,
        _slow,
        lambda own, peers: (
            f"is slow: {seconds_words(own['step_time'])} a step, its peers take {seconds_words(peers['step_time'])}"
        ),
    ),
)
HOST_RULES = (
    AlertRule(
        "swapping",
        3,
        lambda own, _: own.get("swap_rate", 0) >= 1e6,
        lambda own, _: (
            f"swaps {byte_count(int(own['swap_rate']))}/s, which slows every rank there: "
            "use fewer ranks or smaller batches, or end other programs"
        ),
    ),
    AlertRule(
        "disk",
        1,
        _disk_is_full_soon,
        lambda own, _: (
            f"has {byte_count(int(own['disk_free']))} of {byte_count(int(own['disk_total']))} left on the disk of the "
            "run's folder: free some, or checkpoints and logs will be lost"
        ),
    ),
)
DEVICE_RULES = (
    AlertRule(
        "hot",
        2,
        lambda own, _: own.get("temperature", 0) >= 90,
        lambda own, _: f"is at {own['temperature']:.0f} °C and may slow down: look at its cooling",
    ),
    AlertRule(
        "idle",
        10,
        lambda own, peers: own.get("utilisation", 100) <= 2 and peers.get("utilisation", 0) >= 30,
        lambda _, peers: f"does nothing, while its peers are at {peers['utilisation']:.0f} %",
    ),
)


class _SourceState:
    """The last numbers of one source, when each came, and for how many looks in a row each rule has held."""

    def __init__(self) -> None:
        self.values: dict[str, Number] = {}
        self.at: dict[str, float] = {}
        self.rows = 0
        self.steps = StepsSeen()
        self.looked = 0
        self.held: Counter[str] = Counter()

    def add(self, row: Row) -> None:
        self.rows += 1
        self.values.update(row.last_values())
        self.at.update(dict.fromkeys(row.values, row.time))
        self.steps.add(row)

    def fresh(self, now: float) -> dict[str, Number]:
        values = {name: number for name, number in self.values.items() if now - self.at[name] < STALE}
        return {**values, STEPS_SEEN: self.steps.count}


class Alerts:
    """Looks at rows as they come, and at all sources together from time to time."""

    def __init__(self, host_of: Mapping[int, str]) -> None:
        self._host_of = host_of
        self._states: dict[Source, _SourceState] = {}
        self._losses: dict[Source, deque[float]] = {}
        self._told: set[tuple[str, Source | None]] = set()
        self._checked = 0.0

    def forget(self, source: Source) -> None:
        """A rank has ended: what it last told says nothing more about now."""
        self._states.pop(source, None)

    def see(self, rows: Iterable[Row]) -> list[Alert]:
        """Take rows; return what has to be told of them at once."""
        alerts: list[Alert] = []
        for row in rows:
            state = self._states.setdefault(row.source, _SourceState())
            state.add(row)
            loss = row.last("loss")
            if loss is not None:
                alerts += self._look_at_loss(row, float(loss), state)
        return alerts

    def check(self, now: float) -> list[Alert]:
        """Compare all sources, every few seconds; return what has to be told."""
        if now - self._checked < CHECK_EVERY:
            return []
        self._checked = now
        kinds: dict[tuple[AlertRule, ...], dict[Source, dict[str, Number]]] = {}
        for source, state in self._states.items():
            kinds.setdefault(_rules(source), {})[source] = state.fresh(now)
        return [alert for rules, sources in kinds.items() for alert in self._compare(rules, sources)]

    def _compare(self, rules: tuple[AlertRule, ...], sources: dict[Source, dict[str, Number]]) -> list[Alert]:
        medians = _medians(sources.values())
        alerts: list[Alert] = []
        for source, own in sources.items():
            state = self._states[source]
            is_new, state.looked = state.rows > state.looked, state.rows
            for rule in rules:
                if not rule.holds(own, medians):
                    state.held[rule.kind] = 0
                elif is_new:
                    state.held[rule.kind] += 1
                    if state.held[rule.kind] >= rule.looks:
                        alerts += self._tell(rule.kind, source, f"{self._name(source)} {rule.words(own, medians)}")
        return alerts

    def _look_at_loss(self, row: Row, loss: float, state: _SourceState) -> list[Alert]:
        step = step_of(state.values)
        where = f" at step {step:g}" if step is not None else ""
        name = self._name(row.source)
        if not math.isfinite(loss):
            return self._tell("loss not finite", row.source, f"{name}: loss is {loss}{where}", once_a_job=True)
        if row.source not in self._losses and len(self._losses) >= LOSSES_WATCHED:
            return []
        past = self._losses.setdefault(row.source, deque(maxlen=PAST))
        before = list(past)
        past.append(loss)
        if len(before) < PAST:
            return []
        middle = median(before)
        spread = max(abs(number - middle) for number in before)
        if loss - middle <= JUMP * max(spread, 0.05 * abs(middle)):
            return []
        text = f"{name}: loss jumped from about {middle:.4g} to {loss:.4g}{where}"
        return self._tell("loss jumped", row.source, text, once_a_job=True)

    def _tell(self, kind: str, source: Source, text: str, once_a_job: bool = False) -> list[Alert]:
        key = (kind, None if once_a_job else source)
        if key in self._told:
            return []
        self._told.add(key)
        return [Alert(kind, source, text)]

    def _name(self, source: Source) -> str:
        if source.rank is not None:
            return f"rank {source.rank} on {self._host_of.get(source.rank, 'an unknown host')}"
        return f"device {source.device} of {source.host}" if source.device is not None else f"{source.host}"


def _rules(source: Source) -> tuple[AlertRule, ...]:
    if source.rank is not None:
        return RANK_RULES
    return HOST_RULES if source.device is None else DEVICE_RULES


def _medians(sources: Iterable[Mapping[str, Number]]) -> dict[str, float]:
    """Return the median of every number that at least two sources have told; of two, the lower one."""
    numbers: dict[str, list[float]] = {}
    for values in sources:
        for name, number in values.items():
            if math.isfinite(number):
                numbers.setdefault(name, []).append(number)
    return {name: sorted(some)[(len(some) - 1) // 2] for name, some in numbers.items() if len(some) > 1}
