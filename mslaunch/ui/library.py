"""The runs of a folder, kept in memory: listed, summed up and shown again without being read again."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mslaunch.diagnose.masked_documents import TELLING
from mslaunch.diagnose.masked_text import mask_text
from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import Unreadable, open_file, read_text
from mslaunch.errors import MslaunchError, NoSuchRun
from mslaunch.metrics.rows import read_row
from mslaunch.store.layout import RunFolder
from mslaunch.store.metrics import Metrics
from mslaunch.store.record import ENDED
from mslaunch.store.run import Run, runs
from mslaunch.store.run_secrets import secrets_of
from mslaunch.ui import curves
from mslaunch.ui.bounds import LIVE
from mslaunch.ui.document import describe_labels, make_document
from mslaunch.words import plain

LISTED_EVERY = 1.0
ASKED_EVERY = 5.0  # whether a run that goes on is still alive; a queue is slow to answer
LONGEST_SUMMARY = 160
KEPT = 8  # runs whose numbers are in memory
VALUES_OF = 200  # newest runs whose last numbers are listed
END = 1 << 16  # bytes of metrics.jsonl that the last numbers are looked for in
LARGEST_RECORD = 64 << 20
_TEXTS = ("state", "started", "ended", "script", "method")
_LISTED = ("step", "loss")

Stamp = tuple[int, int, int]


def stamp(path: Path) -> Stamp | None:
    """Return what changes when a file does; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


@dataclass(slots=True)
class _Entry:
    """What is known of one run."""

    run: Run
    record: Stamp | None = None
    metrics: Stamp | None = None
    labels: Stamp | None = None
    telling: tuple[Stamp | None, ...] | None = None
    known: tuple[str, ...] = ()
    """What is secret of it."""
    asked: float = 0.0
    summary: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    labelled: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Open:
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
        self._open: OrderedDict[str, _Open] = OrderedDict()

    def find(self, name: str) -> Run:
        """Return the run of exactly this name; a name is looked up, and never part of a path."""
        self._list(name)
        entry = self._entries.get(name)
        if entry is None:
            raise NoSuchRun(name, self.runs_dir, list(self._entries))
        return entry.run

    def _list(self, wanted: str | None = None) -> None:
        now = time.monotonic()
        with self._lock:
            if now - self._listed < LISTED_EVERY and (wanted is None or wanted in self._entries):
                return
            known = {entry.run.path: entry for entry in self._entries.values()}
            found = runs(self.runs_dir)
            self._entries = {run.name: known.get(run.path) or _Entry(run) for run in found}
            self._listed = now

    def summaries(self) -> list[dict[str, Any]]:
        """Return every run in a few words, the newest first."""
        with self._lock:
            self._list()
            newest = list(self._entries.items())[::-1]
            listed = [{"name": plain(name), **self._summary(entry), **self._labels(entry)} for name, entry in newest]
            for (_, entry), row in list(zip(newest, listed, strict=True))[:VALUES_OF]:
                row["values"] = self._values(entry)
        return [row for row in listed if "state" in row]

    def secrets(self, name: str) -> tuple[str, ...]:
        """Return what must not be shown of a run."""
        run = self.find(name)
        with self._lock:
            return self._secrets(self._entries.get(name) or _Entry(run))

    def _secrets(self, entry: _Entry) -> tuple[str, ...]:
        found = tuple(stamp(entry.run.path / name) for name in TELLING)
        if found != entry.telling:
            entry.telling, entry.known = found, secrets_of(entry.run.folder, os.environ)
        return entry.known

    def _summary(self, entry: _Entry) -> dict[str, Any]:
        folder, now = entry.run.folder, time.monotonic()
        found = stamp(folder.record)
        if found != entry.record:
            entry.record, entry.summary, entry.asked = found, _read_summary(folder), 0.0
            if entry.summary.get("summary"):
                entry.summary["summary"] = mask_text(entry.summary["summary"], self._secrets(entry))[:LONGEST_SUMMARY]
        if entry.summary and entry.summary["state"] not in ENDED and now - entry.asked > ASKED_EVERY:
            entry.asked = now
            try:
                entry.summary["state"] = entry.run.state
            except MslaunchError:
                entry.summary = {}
        return entry.summary

    def _values(self, entry: _Entry) -> dict[str, Any]:
        found = stamp(entry.run.folder.metrics)
        if found != entry.metrics:
            entry.metrics = found
            entry.values = _last_values(entry.run.folder.metrics)
        return entry.values

    def _labels(self, entry: _Entry) -> dict[str, Any]:
        found = stamp(entry.run.folder.labels)
        if found != entry.labels:
            entry.labels, entry.labelled = found, {}
            if found:
                entry.labelled = describe_labels(entry.run.folder, self._secrets(entry))
        return entry.labelled

    def document(self, name: str, ranks: Sequence[int] = ()) -> tuple[str, bytes]:
        """Return the document of a run as JSON, and a tag that changes with it."""
        run = self.find(name)
        with self._lock:
            kept = self._open.pop(name, None) or _Open(Metrics(run.folder.metrics))
            self._open[name] = kept
            while len(self._open) > KEPT:
                self._open.popitem(last=False)[1].metrics.close()
        with kept.lock:
            kept.metrics.update()
            tag = self.tag([name], ranks)
            if tag != kept.tag:
                made = make_document(run, kept.metrics.table, time.time(), LIVE, self.secrets(name), ranks)
                made["may_stop"] = self._may_stop
                kept.text = json.dumps(made, separators=(",", ":"), allow_nan=False).encode()
                kept.tag = tag
            return kept.tag, kept.text

    def tag(self, names: Sequence[str], ranks: Sequence[int] = ()) -> str:
        """Say what is shown of runs: their files, whether they are alive, and, while one is, the time."""
        made_from: list[Any] = [tuple(ranks)]
        for name in names:
            run = self.find(name)
            with self._lock:
                state = self._summary(self._entries.get(name) or _Entry(run)).get("state", "")
            tick = 0 if state in ENDED else int(time.monotonic() / 10)
            folder = run.folder
            files = (folder.record, folder.events, folder.metrics, folder.plan, folder.labels)
            made_from += [name, state, tick, *map(stamp, files)]
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
    ranks, code = raw.get("world_size"), raw.get("exit_code")
    return {
        **texts,
        "script": texts["script"] or "",
        "ranks": ranks if type(ranks) is int else None,
        "code": code if type(code) is int else None,
        "summary": plain(why.split("\n")[0])[: 10 * LONGEST_SUMMARY] if isinstance(why, str) else None,
    }


def _last_values(path: Path) -> dict[str, Any]:
    """Return the last step and loss, of the first rank that told them, from the end of the file."""
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - END))
            rows = [row for line in file.read(END).split(b"\n") if (row := read_row(line)) is not None]
    except OSError:
        return {}
    newest = max((row.source.attempt for row in rows), default=0)
    ranked = [(row.source.rank, row) for row in rows if row.source.rank is not None and row.source.attempt == newest]
    last: dict[str, Any] = {}
    for _, row in sorted(ranked, key=lambda one: -one[0]):  # stable: of each rank, the latest row is the last
        values = {name: number for name in _LISTED if (number := row.last(name)) is not None}
        last |= {name: curves.number(number) for name, number in values.items()}
    return last
