"""What tells runs of one script apart: the values that a sweep has chosen, and the arguments of the script."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from pathlib import Path

from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import Unreadable, read_text
from mslaunch.errors import MslaunchError
from mslaunch.masking.documents import mask_values
from mslaunch.run.paths import RunFolder, SweepFolder
from mslaunch.run.sweep_record import read as read_sweep
from mslaunch.shared.secret_names import MASK
from mslaunch.text import plain

LONGEST = 300
LARGEST_PLAN = 4 << 20  # of a thousand ranks; that of more is not read for a list


def describe_given(folder: RunFolder, secrets: Collection[str]) -> dict[str, str]:
    """Return what one run was given."""
    sweep = folder.sweep
    values = read_sweep_values(sweep.path).get(folder.run_id, "") if sweep else ""
    return {"sweep": values, "arguments": read_arguments(folder, secrets)}


def read_arguments(folder: RunFolder, secrets: Collection[str]) -> str:
    """Return the arguments of a run's script as they were typed, secrets masked; nothing where none are known."""
    try:
        raw = parse_json(read_text(folder.plan, LARGEST_PLAN, only_files=True))
    except (OSError, Unreadable):
        return ""
    program = raw.get("program") if isinstance(raw, dict) else None
    args = program.get("args") if isinstance(program, dict) else None
    texts = [argument for argument in args if isinstance(argument, str)] if isinstance(args, list) else []
    return _short(
        " ".join(argument if MASK in argument else shlex.quote(argument) for argument in mask_values(texts, secrets))
    )


def _short(text: str) -> str:
    text = plain(text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


def read_sweep_values(path: Path) -> dict[str, str]:
    """Return what each run of a sweep's folder was given, by its id: `lr=0.1 seed=3`."""
    try:
        sweep = read_sweep(SweepFolder(path))
    except MslaunchError:
        return {}
    labels: dict[str, str] = {}
    for run_id, combination in zip(sweep.run_ids, sweep.combinations, strict=True):
        pairs = ((key, combination.typed[key]) for key in combination.varied or combination.typed)
        labels[run_id] = _short(" ".join(f"{key}={mask_values(value, (), key)}" for key, value in pairs))
    return labels
