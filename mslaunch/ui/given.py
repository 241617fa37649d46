"""What tells runs of one script apart: the values that a sweep has chosen, and the arguments of the script."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import Unreadable, read_text
from mslaunch.errors import MslaunchError
from mslaunch.masking import MASK, looks_secret, masked, without_credentials
from mslaunch.store.layout import RunFolder, SweepFolder
from mslaunch.store.sweep import read as read_sweep
from mslaunch.words import plain

LONGEST = 300
LARGEST_PLAN = 4 << 20  # of a thousand ranks; that of more is not read for a list


def describe_given(folder: RunFolder) -> dict[str, str]:
    """Return what one run was given."""
    sweep = folder.sweep
    values = read_sweep_values(sweep.path).get(folder.run_id, "") if sweep else ""
    return {"sweep": values, "arguments": read_arguments(folder)}


def read_arguments(folder: RunFolder) -> str:
    """Return the arguments of a run's script as they were typed, secrets masked; nothing where none are known."""
    try:
        raw = parse_json(read_text(folder.plan, LARGEST_PLAN, only_files=True))
    except (OSError, Unreadable):
        return ""
    program = raw.get("program") if isinstance(raw, dict) else None
    args = program.get("args") if isinstance(program, dict) else None
    texts = [one for one in args if isinstance(one, str)] if isinstance(args, list) else []
    return _short(" ".join(one if MASK in one else shlex.quote(one) for one in mask_arguments(texts)))


def _short(text: str) -> str:
    text = plain(text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


def mask_arguments(args: Sequence[str]) -> Iterator[str]:
    """Yield arguments as they may be shown: `--api-token ***`, `token=***`, URLs without who logs in."""
    hides_next = False
    for arg in args:
        is_option = arg.startswith("-")
        name, equals, value = arg.partition("=")
        if hides_next and not is_option:
            yield MASK
        elif equals and "/" not in name:
            yield f"{name}={masked(name.lstrip('-'), value)}"
        else:
            yield without_credentials(arg)
        hides_next = is_option and not equals and looks_secret(arg.lstrip("-"))


def read_sweep_values(path: Path) -> dict[str, str]:
    """Return what each run of a sweep's folder was given, by its id: `lr=0.1 seed=3`."""
    try:
        found = read_sweep(SweepFolder(path))
    except MslaunchError:
        return {}
    labels: dict[str, str] = {}
    for run_id, one in zip(found.run_ids, found.combinations, strict=True):
        pairs = ((key, one.typed[key]) for key in one.varied or one.typed)
        labels[run_id] = _short(" ".join(f"{key}={masked(key, value)}" for key, value in pairs))
    return labels
