"""Gathers what is known of a run for a comparison, from the files in its folder."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from mslaunch.comparison.facts import CodeFile, RunFacts, flatten, summarize_metrics, summarize_speed
from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import MOST_BYTES, Unreadable, read_text
from mslaunch.metrics.series import Series
from mslaunch.plan.model import Plan
from mslaunch.shared import layout
from mslaunch.store.layout import RunFolder
from mslaunch.store.liveness import current
from mslaunch.store.metrics import Metrics
from mslaunch.store.record import RunRecord, read_plan
from mslaunch.store.sizes import entries

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
