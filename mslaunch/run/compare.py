"""Compares runs: counts what is equal, names what differs, and shows code as a unified diff."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import os
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import MOST_BYTES, Unreadable, read_text
from mslaunch.masking.documents import mask_texts, mask_values, secrets_of_run
from mslaunch.metrics.series import Series
from mslaunch.plan.model import Plan
from mslaunch.run.disk_usage import entries
from mslaunch.run.liveness import current
from mslaunch.run.metrics_file import Metrics
from mslaunch.run.paths import RunFolder
from mslaunch.run.record import RunRecord, read_plan
from mslaunch.shared import layout

if TYPE_CHECKING:
    from mslaunch.run.run import Run

SECTIONS = ("run", "settings", "config", "environment", "versions", "metrics", "speed")
"""The mappings of RunFacts that are compared name by name, in the order in which they are shown."""
_NAMED_BY_USERS = ("config", "environment")
"""Sections whose names are keys and variables, which may be names of secrets."""
LESS_IS_BETTER = ("loss", "error", "perplexity", "ppl", "wer", "cer", "mae", "mse", "rmse", "fid", "time")
MORE_IS_BETTER = ("acc", "top1", "top5", "f1", "bleu", "rouge", "map", "iou", "auc", "psnr", "score", "throughput")
"""Parts of a metric's name that tell which of two numbers is the better one."""
_NOT_RESULTS = (
    *("step", "steps", "epoch", "epochs", "total_step", "stopped"),
    *("cpu", "cpu_wait", "memory", "threads", "read_rate", "write_rate"),
)
"""Metrics that describe progress and resources."""
_MEDIANS = {"step_time": "step time, median (s)", "throughput": "throughput, median"}
_SETTINGS_OF_THE_RUN = ("run_id", "runs_dir", "tags", "on_end", "webhook")
_VARIABLES_OF_THE_SHELL = (
    *("PWD", "OLDPWD", "SHLVL", "_", "TERM", "COLUMNS", "LINES", "TMUX", "TMUX_PANE", "WINDOWID", "STY"),
    *("COLORTERM", "LS_COLORS", "LESSOPEN", "LESSCLOSE", "PS1", "PROMPT_COMMAND", "VIRTUAL_ENV_PROMPT"),
    *("PYENV_SHELL", "HISTFILE", "LC_TERMINAL", "LC_TERMINAL_VERSION"),
    *("XDG_SESSION_ID", "INVOCATION_ID", "JOURNAL_STREAM", "DBUS_SESSION_BUS_ADDRESS"),
    *("MASTER_PORT", "MS_SCHED_PORT", "MS_NODE_ID", "RANK_TABLE_FILE"),
)
"""Variables that differ between launches of the same job."""
_PREFIXES_OF_THE_RUN = (
    *("MSLAUNCH_", "SSH_", "SLURM_", "SLURMD_", "PMI", "OMPI_"),
    *("TERM_", "VSCODE_", "GNOME_TERMINAL_", "KITTY_", "ITERM_"),
)
MOST_CODE_FILES = 20_000
MOST_DIFF_LINES = 2000  # of all diffs together; the folders of the runs have the files
LARGEST_TEXT = 1 << 20
_OUTPUT_SUFFIXES = frozenset({".log", ".out"})
"""Output of earlier launches: a script may read it, so the snapshot holds it, but it is not code."""


@dataclass(frozen=True, slots=True)
class CodeFile:
    """A file of a run's code: its text, or a mark that stands for a link, a large file or one that is not text."""

    text: str | None
    mark: str = ""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is compared of one run; every mapping has texts or plain values by name."""

    name: str
    run: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    default_settings: frozenset[str] = frozenset()
    """Names of settings that have their default: another version of mslaunch may have others."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)  # final and best numbers: `loss`, `loss (best)`
    speed: Mapping[str, Any] = field(default_factory=dict)
    code: Mapping[str, CodeFile] | None = None  # None for a run without a snapshot of its code


@dataclass(frozen=True, slots=True)
class ValuesByRun:
    """A name whose values differ between runs; None for a run that has none."""

    name: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the comparison."""

    title: str
    equal: int  # how many names have the same value in all runs
    differences: tuple[ValuesByRun, ...]


@dataclass(frozen=True, slots=True)
class CodeChange:
    """A file that differs between the first run and another one."""

    path: str
    run: str
    kind: str  # changed, added or removed
    diff: tuple[str, ...]
    """Lines of a unified diff; none if one of the files is not text, or if there are too many."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """How runs differ; the code of each is compared with that of the first."""

    runs: tuple[str, ...]
    sections: tuple[Section, ...]
    code: tuple[CodeChange, ...]
    equal_files: int
    without_code: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        sections = {}
        for section in self.sections:
            rows = {row.name: [_json(value) for value in row.values] for row in section.differences}
            sections[section.title] = {"equal": section.equal, "differences": rows}
        changes = [{**asdict(change), "diff": list(change.diff)} for change in self.code]
        code = {"equal": self.equal_files, "changes": changes, "without_code": list(self.without_code)}
        return {"runs": list(self.runs), **sections, "code": code}


def compare_runs(folders: Sequence[RunFolder], environment: Mapping[str, str], with_code: bool = True) -> Comparison:
    """Compare two or more runs, and mask secrets afterwards."""
    comparison = compare_facts([gather(folder, with_code) for folder in folders])
    secrets = {value for folder in folders for value in secrets_of_run(folder.path, environment)}
    longest_first = sorted(secrets, key=lambda secret: (-len(secret), secret))
    return replace(
        comparison,
        sections=tuple(_mask_section(section, longest_first) for section in comparison.sections),
        code=tuple(replace(change, diff=tuple(mask_texts(change.diff, longest_first))) for change in comparison.code),
    )


def _mask_section(section: Section, secrets: Collection[str]) -> Section:
    rows = []
    for row in section.differences:
        if section.title in _NAMED_BY_USERS:
            values = tuple(mask_values(value, secrets, row.name) for value in row.values)
        else:
            values = tuple(mask_texts(value, secrets) for value in row.values)
        rows.append(ValuesByRun(row.name, values))
    return replace(section, differences=tuple(rows))


def gather(folder: RunFolder, with_code: bool = True) -> RunFacts:
    """Read what is compared of a run; files that are missing, or cannot be read, are left out."""
    record = current(folder)
    plan = read_plan(folder)
    series = _series_of_first_rank(folder)
    return RunFacts(
        name=folder.name,
        run=_describe(record, plan),
        config=flatten(_read_object(folder.path / layout.CONFIG_JSON)),
        settings={
            name: text.rpartition(", from ")[0] or text
            for name, text in plan.sources.items()
            if name not in _SETTINGS_OF_THE_RUN
        },
        default_settings=frozenset(name for name, text in plan.sources.items() if ", from default" in text),
        environment=_environment(folder, plan),
        versions=_read_object(folder.rank(0) / layout.VERSIONS),
        metrics=summarize_metrics(series, _NOT_RESULTS),
        speed=summarize_speed(series),
        code=_read_code(folder) if with_code else None,
    )


def _describe(record: RunRecord, plan: Plan) -> dict[str, Any]:
    seconds = why = None
    if record.ended:
        seconds = round(record.seconds_taken(datetime.now().astimezone()), 1)
    if record.verdict:
        why = next(iter(record.verdict.summary.splitlines()), "")
    return {
        "state": record.state,
        "exit code": record.exit_code,
        "attempts": record.attempt_of() + 1,
        "ranks": record.world_size,
        "hosts": ", ".join(host.name for host in plan.hosts),
        "device target": plan.device_target,
        "method": record.method,
        "transport": record.transport,
        "program": " ".join((plan.program.what, *plan.program.args)).replace(plan.run_dir, "$RUN"),
        "seconds": seconds,
        "why": why,
    }


def _environment(folder: RunFolder, plan: Plan) -> dict[str, Any]:
    """Return the variables of rank 0 from its env.log; without one, the variables of the plan."""
    recorded: dict[str, str] = {}
    with suppress(OSError, Unreadable):
        text = read_text(folder.rank(0) / layout.ENV_LOG, MOST_BYTES, "replace", only_files=True)
        recorded = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    variables = {}
    for name, value in sorted((recorded or plan.env).items()):
        if name not in _VARIABLES_OF_THE_SHELL and not name.startswith(_PREFIXES_OF_THE_RUN):
            variables[name] = value.replace(plan.run_dir, "$RUN")
    return variables


def _read_object(path: Path) -> dict[str, Any]:
    with suppress(OSError, Unreadable):
        document = parse_json(read_text(path, only_files=True))
        if isinstance(document, dict):
            return document
    return {}


def flatten(values: Any, prefix: str = "") -> dict[str, Any]:
    """Give nested values one name each: `net.width`."""
    if not isinstance(values, Mapping):
        return {prefix: values}
    flat: dict[str, Any] = {}
    for name, value in values.items():
        place = f"{prefix}.{name}" if prefix else str(name)
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, place))
        else:
            flat[place] = value
    return flat


def _series_of_first_rank(folder: RunFolder) -> Mapping[str, Series]:
    with closing(Metrics(folder.metrics)) as metrics:
        ranks = [source for source in metrics.table.sources if source.rank is not None]
        if not ranks:
            return {}
        return metrics.table.of(min(ranks, key=lambda source: (-source.attempt, source.rank or 0)))


def summarize_metrics(series: Mapping[str, Series], left_out: Collection[str]) -> dict[str, float]:
    """Return the last number of each metric, and the best one of those whose name tells which that is."""
    numbers: dict[str, float] = {}
    for name, values in series.items():
        if name in left_out or not len(values):
            continue
        numbers[name] = values.value[-1]
        best = _best(name.lower(), values)
        if best is not None:
            numbers[f"{name} (best)"] = best
    return numbers


def _best(name: str, series: Series) -> float | None:
    if any(part in name for part in LESS_IS_BETTER):
        return min(filter(math.isfinite, series.least), default=None)
    if any(part in name for part in MORE_IS_BETTER):
        return max(filter(math.isfinite, series.greatest), default=None)
    return None


def summarize_speed(series: Mapping[str, Series]) -> dict[str, float]:
    """Return the steps per second of a rank over all, and the medians of what it reported."""
    speed: dict[str, float] = {}
    steps = series.get("total_step") or series.get("step")
    if steps is not None and len(steps) > 1:
        # Thinned rows have the time of their last number, so the first and the last of the file are exact.
        seconds, count = steps.time[-1] - steps.time[0], 0.0
        for before, after in pairwise(filter(math.isfinite, steps.value)):
            count += after - before if after >= before else after  # less than before: the first of a new epoch
        if seconds > 0 and count > 0:
            speed["steps a second"] = count / seconds
    for name, title in _MEDIANS.items():
        if name in series and (numbers := list(filter(math.isfinite, series[name].value))):
            speed[title] = statistics.median(numbers)
    return speed


def _read_code(folder: RunFolder) -> dict[str, CodeFile] | None:
    """Return the files of a run's snapshot; of a link, only its target."""
    if not folder.code.is_dir():
        return None
    files: dict[str, CodeFile] = {}
    for entry in entries(folder.code):
        if len(files) >= MOST_CODE_FILES:
            break
        path = Path(entry.path)
        if "/__pycache__" in entry.path or f"/{layout.REPOSITORY}/" in entry.path or path.suffix in _OUTPUT_SUFFIXES:
            continue
        name = str(path.relative_to(folder.code))
        with suppress(OSError, UnicodeDecodeError):
            if entry.is_symlink():
                files[name] = CodeFile(None, f"link to {os.readlink(path)}")  # noqa: PTH115
            elif entry.is_file(follow_symlinks=False):
                size = entry.stat(follow_symlinks=False).st_size
                content = path.read_bytes() if size <= LARGEST_TEXT else b"\0"
                files[name] = CodeFile(None, f"{size} bytes, {hashlib.sha256(content).hexdigest()[:16]}")
                if b"\0" not in content:
                    files[name] = CodeFile(content.decode())
    return files


def compare_facts(facts: Sequence[RunFacts]) -> Comparison:
    """Compare two or more runs."""
    changes = [change for other in facts[1:] for change in _code_changes(facts[0], other)]
    left = MOST_DIFF_LINES
    for at, change in enumerate(changes):
        if len(change.diff) > left:
            changes[at] = replace(change, diff=())
        left -= len(changes[at].diff)
    equal_files = 0
    if all(run.code is not None for run in facts):
        first, *others = [run.code or {} for run in facts]
        equal_files = sum(1 for path, file in first.items() if all(other.get(path) == file for other in others))
    return Comparison(
        runs=tuple(run.name for run in facts),
        sections=tuple(_compare_section(title, facts) for title in SECTIONS),
        code=tuple(changes),
        equal_files=equal_files,
        without_code=tuple(run.name for run in facts if run.code is None),
    )


def _compare_section(title: str, facts: Sequence[RunFacts]) -> Section:
    mappings: list[Mapping[str, Any]] = [getattr(run, title) for run in facts]
    names = dict.fromkeys(name for mapping in mappings for name in mapping)
    differences = []
    for name in names:
        if title == "settings" and all(name in run.default_settings for run in facts if name in run.settings):
            continue  # it has its default in all runs that have it
        values = tuple(mapping.get(name) for mapping in mappings)
        if not all(_is_same(values[0], value) for value in values[1:]):
            differences.append(ValuesByRun(name, values))
    return Section(title, len(names) - len(differences), tuple(differences))


def _is_same(first: Any, second: Any) -> bool:
    if isinstance(first, float) and isinstance(second, float) and math.isnan(first) and math.isnan(second):
        return True
    return type(first) is type(second) and bool(first == second)


def _code_changes(first: RunFacts, other: RunFacts) -> Iterator[CodeChange]:
    if first.code is None or other.code is None:
        return
    for path in sorted({*first.code, *other.code}):
        before, after = first.code.get(path), other.code.get(path)
        if before == after:
            continue
        kind = "changed"
        if before is None:
            kind, before = "added", CodeFile("")
        if after is None:
            kind, after = "removed", CodeFile("")
        diff: tuple[str, ...] = ()
        if before.text is not None and after.text is not None:
            lines = before.text.splitlines(), after.text.splitlines()
            diff = tuple(difflib.unified_diff(*lines, f"{first.name}/{path}", f"{other.name}/{path}", lineterm=""))
        yield CodeChange(path, other.name, kind, diff)


def format_value(value: Any) -> str:
    """Write a value for people: a number with at most seven digits, a text as it is."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.7g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _json(value: Any) -> Any:
    """Return a value for JSON, which has no numbers that are not finite."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def compare(runs: Sequence[Run], with_code: bool = True) -> Comparison:
    """Compare two or more runs: configuration, code, environment, versions, metrics, speed; secrets are masked."""
    return compare_runs([run.folder for run in runs], os.environ, with_code)
