"""Compares runs: what is equal is counted, what differs is named, and code is a unified diff."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import os
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import MOST_BYTES, Unreadable, read_text
from mslaunch.masking.documents import mask_texts, mask_values
from mslaunch.metrics.series import Series
from mslaunch.plan.model import Plan
from mslaunch.runs.disk_usage import entries
from mslaunch.runs.liveness import current
from mslaunch.runs.metrics_file import Metrics
from mslaunch.runs.paths import RunFolder
from mslaunch.runs.record import RunRecord, read_plan
from mslaunch.runs.run_secrets import secrets_of
from mslaunch.shared import layout

LESS_IS_BETTER = ("loss", "error", "perplexity", "ppl", "wer", "cer", "mae", "mse", "rmse", "fid", "time")
MORE_IS_BETTER = ("acc", "top1", "top5", "f1", "bleu", "rouge", "map", "iou", "auc", "psnr", "score", "throughput")
"""Parts of names by which it is known which of two numbers is the better one."""


@dataclass(frozen=True, slots=True)
class CodeFile:
    """A file of a run's code: its text, or what stands for it where it is linked, large or no text."""

    text: str | None
    mark: str = ""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One run, as far as others can be compared with it; every mapping has texts or plain values by name."""

    name: str
    run: Mapping[str, Any] = field(default_factory=dict)
    """State, ranks, time and so on."""
    config: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    default_settings: frozenset[str] = frozenset()
    """Settings that nobody gave; other versions of mslaunch may have others, or write them in another way."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Final and best numbers: `loss`, `loss (best)`."""
    speed: Mapping[str, Any] = field(default_factory=dict)
    code: Mapping[str, CodeFile] | None = None
    """None where the run has no snapshot of its code."""


def flatten(values: Any, prefix: str = "") -> dict[str, Any]:
    """Give nested values one name each: `net.width`."""
    if not isinstance(values, Mapping):
        return {prefix: values}
    flat: dict[str, Any] = {}
    for name, value in values.items():
        place = f"{prefix}.{name}" if prefix else str(name)
        flat.update(flatten(value, place) if isinstance(value, Mapping) and value else {place: value})
    return flat


def summarize_metrics(series: Mapping[str, Series], left_out: Iterable[str]) -> dict[str, float]:
    """Return the last number of each name, and the best where it is known which one that is."""
    found: dict[str, float] = {}
    for name, one in series.items():
        if name in left_out or not len(one):
            continue
        found[name] = one.value[-1]
        if (best := _best(name, one)) is not None:
            found[f"{name} (best)"] = best
    return found


def _best(name: str, series: Series) -> float | None:
    lower = name.lower()
    for choose, numbers, words in ((min, series.least, LESS_IS_BETTER), (max, series.greatest, MORE_IS_BETTER)):
        if any(word in lower for word in words):
            finite = [number for number in numbers if math.isfinite(number)]
            return choose(finite) if finite else None
    return None


def summarize_speed(series: Mapping[str, Series]) -> dict[str, float]:
    """Return how quickly a rank went: steps a second over all, and the medians of what it has told."""
    found: dict[str, float] = {}
    steps = series.get("total_step") or series.get("step")
    if steps is not None and len(steps) > 1:
        # Thinned rows are at the time of their last number, so first and last of the file are true.
        seconds, done = steps.time[-1] - steps.time[0], _gone(steps)
        if seconds > 0 and done > 0:
            found["steps a second"] = done / seconds
    for name, words in (("step_time", "step time, median (s)"), ("throughput", "throughput, median")):
        told = [number for number in (series[name].value if name in series else ()) if math.isfinite(number)]
        if told:
            found[words] = statistics.median(told)
    return found


def _gone(steps: Series) -> float:
    """How many steps were made: a step that is less than the one before is the first of a new epoch."""
    numbers = [number for number in steps.value if math.isfinite(number)]
    gone = 0.0
    for before, after in pairwise(numbers):
        gone += after - before if after >= before else after
    return gone


SECTIONS = ("run", "settings", "config", "environment", "versions", "metrics", "speed")
"""What is compared name by name, in the order in which it is shown."""
MOST_LINES = 2000
"""Of all diffs together; the folders of the runs have the files."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A name that has not the same value in all runs; None where a run has none."""

    name: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the comparison."""

    title: str
    equal: int
    """How many names have the same value in all runs."""
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class CodeChange:
    """A file that differs between the first run and another one."""

    path: str
    run: str
    kind: str
    """changed, added or removed."""
    diff: tuple[str, ...]
    """Lines of a unified diff; none where one of the files is no text, or where there are too many."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """How runs differ; the first one is what the code of the others is compared with."""

    runs: tuple[str, ...]
    sections: tuple[Section, ...]
    code: tuple[CodeChange, ...]
    equal_files: int
    """Files that are the same in all runs."""
    without_code: tuple[str, ...]
    """Runs that have no snapshot of their code."""

    def to_dict(self) -> dict[str, Any]:
        sections = {
            section.title: {
                "equal": section.equal,
                "differences": {one.name: [_json(value) for value in one.values] for one in section.differences},
            }
            for section in self.sections
        }
        changes = [{"path": one.path, "run": one.run, "kind": one.kind, "diff": list(one.diff)} for one in self.code]
        code = {"equal": self.equal_files, "changes": changes, "without_code": list(self.without_code)}
        return {"runs": list(self.runs), **sections, "code": code}


def compare(facts: Sequence[RunFacts]) -> Comparison:
    """Compare two or more runs."""
    same = {"settings": _by_default(facts)}
    sections = tuple(_section(name, [getattr(one, name) for one in facts], same.get(name, ())) for name in SECTIONS)
    first, *others = facts
    changes: list[CodeChange] = []
    left = MOST_LINES
    for other in others:
        for change in _changes(first, other):
            shown = change.diff if len(change.diff) <= left else ()
            left -= len(shown)
            changes.append(CodeChange(change.path, change.run, change.kind, shown))
    return Comparison(
        runs=tuple(one.name for one in facts),
        sections=sections,
        code=tuple(changes),
        equal_files=_equal_files(facts),
        without_code=tuple(one.name for one in facts if one.code is None),
    )


def _section(title: str, all_values: Sequence[Mapping[str, Any]], same: Collection[str] = ()) -> Section:
    """Compare one part; names in `same` are taken as equal."""
    names = dict.fromkeys(name for values in all_values for name in values)
    rows = [Difference(name, tuple(values.get(name) for values in all_values)) for name in names]
    compared = (row for row in rows if row.name not in same)
    differing = tuple(row for row in compared if any(not _is_same(row.values[0], value) for value in row.values[1:]))
    return Section(title, len(rows) - len(differing), differing)


def _by_default(facts: Sequence[RunFacts]) -> frozenset[str]:
    """Return the settings that have their default in all runs that have them."""
    names = {name for one in facts for name in one.settings}
    given = {name for one in facts for name in one.settings if name not in one.default_settings}
    return frozenset(names - given)


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other):
        return True
    return type(one) is type(other) and bool(one == other)


def _json(value: Any) -> Any:
    """JSON has no number that is not finite."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _equal_files(facts: Sequence[RunFacts]) -> int:
    codes = [one.code for one in facts if one.code is not None]
    if len(codes) < len(facts):
        return 0
    return sum(1 for path, file in codes[0].items() if all(code.get(path) == file for code in codes[1:]))


def _changes(first: RunFacts, other: RunFacts) -> Iterator[CodeChange]:
    if first.code is None or other.code is None:
        return
    for path in sorted({*first.code, *other.code}):
        before, after = first.code.get(path), other.code.get(path)
        if before != after:
            kind = "added" if before is None else "removed" if after is None else "changed"
            yield CodeChange(path, other.name, kind, tuple(_diff(path, before, after, first.name, other.name)))


def _diff(path: str, before: CodeFile | None, after: CodeFile | None, first: str, other: str) -> Iterator[str]:
    texts = [file.text if file else "" for file in (before, after)]
    if texts[0] is None or texts[1] is None:
        return
    lines = [text.splitlines() for text in texts if text is not None]
    yield from difflib.unified_diff(lines[0], lines[1], f"{first}/{path}", f"{other}/{path}", lineterm="")


def words(value: Any) -> str:
    """A value as it is shown: numbers with seven digits at most, texts as they are."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.7g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


MOST_CODE_FILES = 20_000
LARGEST_TEXT = 1 << 20
_OUTPUT_SUFFIXES = frozenset({".log", ".out"})
"""What earlier runs have printed: a script may read it, so the snapshot holds it, but it is no code."""
_OF_THE_RUN = ("run_id", "runs_dir", "tags", "on_end", "webhook")
"""Settings that say nothing about the job."""
_OF_THE_SHELL = frozenset(
    (
        *("PWD", "OLDPWD", "SHLVL", "_", "TERM", "COLUMNS", "LINES", "TMUX", "TMUX_PANE", "WINDOWID", "STY"),
        *("COLORTERM", "LS_COLORS", "LESSOPEN", "LESSCLOSE", "PS1", "PROMPT_COMMAND", "VIRTUAL_ENV_PROMPT"),
        *("PYENV_SHELL", "HISTFILE", "LC_TERMINAL", "LC_TERMINAL_VERSION"),
        *("XDG_SESSION_ID", "INVOCATION_ID", "JOURNAL_STREAM", "DBUS_SESSION_BUS_ADDRESS"),
        *("MASTER_PORT", "MS_SCHED_PORT", "MS_NODE_ID", "RANK_TABLE_FILE"),
    )
)
"""Variables that differ from launch to launch whatever the job is."""
_PREFIXES_OF_THE_RUN = (
    *("MSLAUNCH_", "SSH_", "SLURM_", "SLURMD_", "PMI", "OMPI_"),
    *("TERM_", "VSCODE_", "GNOME_TERMINAL_", "KITTY_", "ITERM_"),
)
_PROGRESS = ("step", "steps", "epoch", "epochs", "total_step", "stopped")
_RESOURCES = ("cpu", "cpu_wait", "memory", "threads", "read_rate", "write_rate")


def gather(folder: RunFolder, with_code: bool = True) -> RunFacts:
    """Return what is known of a run; what is missing, or cannot be read, is left out."""
    now = current(folder)
    plan = read_plan(folder)
    metrics = Metrics(folder.metrics)
    series = _series(metrics)
    metrics.close()
    return RunFacts(
        name=folder.name,
        run=_run(now, plan),
        config=flatten(_json_object(folder.path / layout.CONFIG_JSON)),
        settings=_settings(plan),
        default_settings=frozenset(name for name, text in plan.sources.items() if ", from default" in text),
        environment=_environment(folder, plan),
        versions=_json_object(folder.rank(0) / layout.VERSIONS),
        metrics=summarize_metrics(series, (*_PROGRESS, *_RESOURCES)),
        speed=summarize_speed(series),
        code=_code(folder) if with_code else None,
    )


def _run(now: RunRecord, plan: Plan) -> dict[str, Any]:
    seconds = now.seconds_taken(datetime.now().astimezone()) if now.ended else None
    return {
        "state": now.state,
        "exit code": now.exit_code,
        "attempts": len(now.attempts) + 1,
        "ranks": now.world_size,
        "hosts": ", ".join(host.name for host in plan.hosts),
        "device target": plan.device_target,
        "method": now.method,
        "transport": now.transport,
        "program": " ".join((plan.program.what, *plan.program.args)).replace(plan.run_dir, "$RUN"),
        "seconds": None if seconds is None else round(seconds, 1),
        "why": None if now.verdict is None else (now.verdict.summary.splitlines() or [""])[0],
    }


def _settings(plan: Plan) -> dict[str, Any]:
    """The settings of the launch, without where each came from."""
    values = {name: text.rpartition(", from ")[0] or text for name, text in plan.sources.items()}
    return {name: value for name, value in values.items() if name not in _OF_THE_RUN}


def _environment(folder: RunFolder, plan: Plan) -> dict[str, Any]:
    """What rank 0 had, as its env.log tells; where there is none, what was planned."""
    found: dict[str, str] = {}
    with suppress(OSError, Unreadable):
        text = read_text(folder.rank(0) / layout.ENV_LOG, MOST_BYTES, "replace", only_files=True)
        found = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    own = {name: value.replace(plan.run_dir, "$RUN") for name, value in (found or plan.env).items()}
    return {
        name: value
        for name, value in sorted(own.items())
        if name not in _OF_THE_SHELL and not name.startswith(_PREFIXES_OF_THE_RUN)
    }


def _json_object(path: Path) -> dict[str, Any]:
    with suppress(OSError, Unreadable):
        found = parse_json(read_text(path, only_files=True))
        if isinstance(found, dict):
            return found
    return {}


def _series(metrics: Metrics) -> dict[str, Series]:
    """The series of the first rank that has told any, in its last attempt."""
    ranks = [source for source in metrics.table.sources if source.rank is not None]
    newest = max((source.attempt for source in ranks), default=0)
    first = min((source for source in ranks if source.attempt == newest), key=lambda one: one.rank or 0, default=None)
    return metrics.table.of(first) if first else {}


def _code(folder: RunFolder) -> dict[str, CodeFile] | None:
    """Return the files of a run's snapshot; those that it links count by where the link leads."""
    if not folder.code.is_dir():
        return None
    found: dict[str, CodeFile] = {}
    for entry in entries(folder.code):
        if len(found) >= MOST_CODE_FILES:
            break
        path = Path(entry.path)
        if "/__pycache__" in entry.path or f"/{layout.REPOSITORY}/" in entry.path or path.suffix in _OUTPUT_SUFFIXES:
            continue
        with suppress(OSError):
            if entry.is_symlink():
                found[str(path.relative_to(folder.code))] = CodeFile(None, f"link to {os.readlink(path)}")  # noqa: PTH115
            elif entry.is_file(follow_symlinks=False):
                found[str(path.relative_to(folder.code))] = _file(path, entry.stat(follow_symlinks=False).st_size)
    return found


def _file(path: Path, size: int) -> CodeFile:
    data = path.read_bytes() if size <= LARGEST_TEXT else b"\0"
    with suppress(UnicodeDecodeError):
        if b"\0" not in data:
            return CodeFile(data.decode())
    return CodeFile(None, f"{size} bytes, {hashlib.sha256(data).hexdigest()[:16]}")


_NAMED_BY_USERS = ("config", "environment")
"""Sections whose names are those of keys and variables; the names of others are no names of secrets."""


def compare_runs(folders: Sequence[RunFolder], environment: Mapping[str, str], with_code: bool = True) -> Comparison:
    """Compare two or more runs; secrets are masked after they were compared."""
    found = compare([gather(folder, with_code) for folder in folders])
    known = dict.fromkeys(value for folder in folders for value in secrets_of(folder, environment))
    longest_first = sorted(known, key=len, reverse=True)
    return replace(
        found,
        sections=tuple(_mask_section(section, longest_first) for section in found.sections),
        code=tuple(_mask_change(change, longest_first) for change in found.code),
    )


def _mask_section(section: Section, known: Collection[str]) -> Section:
    def mask(name: str, value: Any) -> Any:
        is_named = section.title in _NAMED_BY_USERS
        return mask_values(value, known, name) if is_named else mask_texts(value, known)

    rows = (replace(row, values=tuple(mask(row.name, value) for value in row.values)) for row in section.differences)
    return replace(section, differences=tuple(rows))


def _mask_change(change: CodeChange, known: Collection[str]) -> CodeChange:
    return replace(change, diff=tuple(mask_texts(change.diff, known)))
