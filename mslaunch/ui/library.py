"""The runs of a folder, kept in memory: listed, summed up and shown again without being read again."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import Stamp, Unreadable, read_text, stamp_of
from mslaunch.errors import MslaunchError, NoSuchRun
from mslaunch.masking.documents import TELLING, secrets_of_run
from mslaunch.masking.free_text import mask_text
from mslaunch.metrics.progress import seconds_silent, step_time_of
from mslaunch.metrics.series import STEP_NAMES, Series, last_step_came
from mslaunch.run.find import runs
from mslaunch.run.metrics_file import Metrics, last_table
from mslaunch.run.paths import RunFolder
from mslaunch.run.record import ENDED
from mslaunch.run.run import Run
from mslaunch.text import plain, shorten
from mslaunch.ui.bounds import LIVE, number
from mslaunch.ui.document import describe_labels, make_document, read_arguments, read_sweep_values

LISTED = (*STEP_NAMES, "steps", "epoch", "epochs", "loss")


def read_last_numbers(path: Path) -> tuple[dict[str, Any], Mapping[str, Series]]:
    """Return what a list shows, of the first rank that told it, and the series of the rank that told a step last."""
    table = last_table(path, 1, with_steps=True)
    newest = max(table.attempts.values(), default=0)
    sources = sorted(source for source in table.sources if source.rank is not None and source.attempt == newest)
    values: dict[str, Any] = {}
    for source in reversed(sources):
        last = table.last(source)
        values |= {name: number(last[name]) for name in LISTED if name in last}
    return values, max(map(table.of, sources), key=lambda series: last_step_came(series) or 0.0, default={})


LISTED_EVERY = 1.0
ASKED_EVERY = 5.0  # whether a run that goes on is still alive; a queue is slow to answer
LONGEST_SUMMARY = 240
KEPT = 8  # runs whose numbers are in memory
VALUES_OF = 200  # newest runs whose last numbers are listed
LARGEST_RECORD = 64 << 20
_TEXTS = ("state", "started", "ended", "script", "method")


class _Cache:
    """Values that were made of files, which are made again when the files have changed."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[object, Any]] = {}

    def get(self, name: str, stamp: object, make: Callable[[], Any]) -> Any:
        """Return a value; `stamp` says which state of its files it belongs to."""
        before = self._values.get(name)
        if before is None or before[0] != stamp:
            before = self._values[name] = (stamp, make())
        return before[1]


@dataclass(slots=True)
class _Entry:
    """What is known of one run."""

    run: Run
    record: Stamp | None = None
    checked: float = float("-inf")
    summary: dict[str, Any] = field(default_factory=dict)
    cache: _Cache = field(default_factory=_Cache)


@dataclass(slots=True)
class _OpenRun:
    """A run whose numbers are in memory."""

    metrics: Metrics
    lock: threading.Lock = field(default_factory=threading.Lock)
    tag: str = ""
    text: bytes = b""


class Library:
    """The runs of one folder. Every method may be called from any thread."""

    def __init__(self, runs_dir: str, may_stop: bool = False) -> None:
        self.runs_dir = runs_dir
        self._may_stop = may_stop
        self._lock = threading.RLock()
        self._listed = float("-inf")
        self._entries: dict[str, _Entry] = {}
        self._open: OrderedDict[str, _OpenRun] = OrderedDict()
        self._sweeps = _Cache()

    def find(self, name: str) -> Run:
        """Return the run of exactly this name; a name is looked up, and never part of a path."""
        self._list(name)
        entry = self._entries.get(name)
        if entry is None:
            raise NoSuchRun(name, self.runs_dir, list(self._entries))
        return entry.run

    def _list(self, name: str | None = None) -> None:
        now = time.monotonic()
        with self._lock:
            if now - self._listed < LISTED_EVERY and (name is None or name in self._entries):
                return
            entries = {entry.run.path: entry for entry in self._entries.values()}
            listed = runs(self.runs_dir)
            self._entries = {run.name: entries.get(run.path) or _Entry(run) for run in listed}
            self._listed = now

    def summaries(self) -> list[dict[str, Any]]:
        """Return every run in a few words, the newest first."""
        self._list()
        with self._lock:
            newest = list(self._entries.items())[::-1]
        self._ask([entry for _, entry in newest])
        with self._lock:
            listed = [{"name": plain(name), **entry.summary, **self._labels(entry)} for name, entry in newest]
            for (_, entry), row in list(zip(newest, listed, strict=True))[:VALUES_OF]:
                row.update(self._numbers(entry) | self._given(entry))
        return [row for row in listed if "state" in row]

    def secrets(self, name: str) -> tuple[str, ...]:
        """Return what must not be shown of a run."""
        run = self.find(name)
        with self._lock:
            return self._secrets(self._entries.get(name) or _Entry(run))

    def _secrets(self, entry: _Entry) -> tuple[str, ...]:
        path = entry.run.path
        stamps = tuple(stamp_of(path / name) for name in TELLING)
        secrets: tuple[str, ...] = entry.cache.get("secrets", stamps, partial(secrets_of_run, path, os.environ))
        return secrets

    def _ask(self, entries: Iterable[_Entry]) -> None:
        """Bring summaries up to date; a queue, which may be slow, is asked while nothing is locked."""
        with self._lock:
            due = [(entry, entry.record) for entry in entries if self._is_due(entry)]
        for entry, record in due:
            try:
                state = {"state": entry.run.state}
            except MslaunchError:
                state = {}
            with self._lock:
                if entry.record == record:
                    entry.summary = {**entry.summary, **state} if state else {}

    def _is_due(self, entry: _Entry) -> bool:
        """Read a record that has changed; tell whether it is time to ask if a run that goes on is still alive."""
        stamp, now = stamp_of(entry.run.folder.record), time.monotonic()
        if stamp != entry.record:
            entry.record, entry.summary, entry.checked = stamp, _read_summary(entry.run.folder), float("-inf")
            if entry.summary.get("summary"):
                text = mask_text(entry.summary["summary"], self._secrets(entry))
                entry.summary["summary"] = shorten(text, LONGEST_SUMMARY)
        if not entry.summary or entry.summary["state"] in ENDED or now - entry.checked <= ASKED_EVERY:
            return False
        entry.checked = now
        return True

    def _numbers(self, entry: _Entry) -> dict[str, Any]:
        path, silent = entry.run.folder.metrics, None
        values, series = entry.cache.get("numbers", stamp_of(path), partial(read_last_numbers, path))
        if entry.summary.get("state") == "running":
            silent = seconds_silent(series, step_time_of(series), time.time())
        return {"values": values, "silent": None if silent is None else round(silent)}

    def _given(self, entry: _Entry) -> dict[str, str]:
        """Return what tells a run from others of the same script."""
        folder, sweep = entry.run.folder, entry.run.folder.sweep
        read = partial(read_arguments, folder, self._secrets(entry))
        given = {"arguments": entry.cache.get("arguments", stamp_of(folder.plan), read)}
        if sweep is not None:
            labels = self._sweeps.get(str(sweep.path), stamp_of(sweep.record), partial(read_sweep_values, sweep.path))
            given["sweep"] = labels.get(folder.run_id, "")
        return given

    def _labels(self, entry: _Entry) -> dict[str, Any]:
        stamp, labels = stamp_of(entry.run.folder.labels), {}
        if stamp:
            describe = partial(describe_labels, entry.run.folder, self._secrets(entry))
            labels = entry.cache.get("labels", stamp, describe)
        return labels

    def document(self, name: str, ranks: Sequence[int] = ()) -> tuple[str, bytes]:
        """Return the document of a run as JSON, and a tag that changes with it."""
        run = self.find(name)
        with self._lock:
            opened = self._open.pop(name, None) or _OpenRun(Metrics(run.folder.metrics))
            self._open[name] = opened
            while len(self._open) > KEPT:
                self._open.popitem(last=False)[1].metrics.close()
        with opened.lock:
            opened.metrics.update()
            tag = self.tag([name], ranks)
            if tag != opened.tag:
                made = make_document(run, opened.metrics.table, time.time(), LIVE, self.secrets(name), ranks)
                made["may_stop"] = self._may_stop
                opened.text = json.dumps(made, separators=(",", ":"), allow_nan=False).encode()
                opened.tag = tag
            return opened.tag, opened.text

    def tag(self, names: Sequence[str], ranks: Sequence[int] = ()) -> str:
        """Say what is shown of runs: their files, whether they are alive, and, while one is, the time."""
        made_from: list[Any] = [tuple(ranks)]
        for name in names:
            run = self.find(name)
            entry = self._entries.get(name) or _Entry(run)
            self._ask([entry])
            state = entry.summary.get("state", "")
            tick = 0 if state in ENDED else int(time.monotonic() / 10)
            folder = run.folder
            files = (folder.record, folder.events, folder.metrics, folder.plan, folder.labels)
            made_from += [name, state, tick, *map(stamp_of, files)]
        return hashlib.sha256(repr(made_from).encode("utf-8", "replace")).hexdigest()[:24]


def _read_summary(folder: RunFolder) -> dict[str, Any]:
    """Read what a list shows of run.json; nothing where it is none. Checking all of it would take ten times as long."""
    try:
        raw = parse_json(read_text(folder.record, LARGEST_RECORD, only_files=True))
    except (OSError, Unreadable):
        return {}
    if not isinstance(raw, dict) or not isinstance(raw.get("state"), str):
        return {}
    texts = {name: plain(value)[:200] if isinstance(value := raw.get(name), str) else None for name in _TEXTS}
    verdict = raw.get("verdict")
    why = verdict.get("summary") if isinstance(verdict, dict) else None
    ranks, code, seconds = raw.get("world_size"), raw.get("exit_code"), raw.get("seconds")
    return {
        **texts,
        "script": texts["script"] or "",
        "ranks": ranks if type(ranks) is int else None,
        "code": code if type(code) is int else None,
        "seconds": seconds if type(seconds) is float else None,
        "summary": plain(why.split("\n")[0])[: 10 * LONGEST_SUMMARY] if isinstance(why, str) else None,
    }
