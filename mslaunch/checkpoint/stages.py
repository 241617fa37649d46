"""Merging the strategy files of a pipeline: one file with every stage, conflicts and gaps refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mslaunch.checkpoint import protobuf
from mslaunch.checkpoint.strategy import Strategy, read_strategy
from mslaunch.documents.json_text import parse_json
from mslaunch.errors import RequestError


def merge_stages(folder: Path) -> tuple[bytes, str, Strategy]:
    """Merge as merge_pipeline_strategys does, but strictly; return the file, its suffix, and what it says."""
    files = sorted(path for path in folder.glob("*") if path.suffix in (".ckpt", ".json")) if folder.is_dir() else []
    if not files:
        raise RequestError(f"{folder}: no strategy files (*.ckpt or *.json) here. Name the folder that holds them.")
    suffixes = {path.suffix for path in files}
    if len(suffixes) > 1:
        raise RequestError(f"{folder}: both .ckpt and .json strategies. Keep those of one form in the folder.")
    by_stage: dict[int, Path] = {}
    read: dict[Path, Strategy] = {}
    for path in files:
        strategy = read_strategy(path)
        if strategy.merged:
            raise RequestError(f"{path}: already merged. Take it out of the folder, or use it as it is.")
        stage = next(iter(strategy.stages))
        known = by_stage.setdefault(stage, path)
        if known != path and strategy.stages != read[known].stages:
            raise RequestError(_conflict(stage, known, path, read[known], strategy))
        read[path] = strategy
    _no_gaps(folder, by_stage)
    ordered = {stage: by_stage[stage] for stage in sorted(by_stage)}
    data = _merge_json(ordered) if suffixes == {".json"} else _merge_protobuf(ordered)
    first = read[ordered[0]]
    merged = Strategy(str(folder), {stage: read[path].stages[stage] for stage, path in ordered.items()}, True)
    sizes = {stage: read[path].stage_devices for stage, path in ordered.items()}
    if set(sizes.values()) != {first.stage_devices}:
        shown = ", ".join(f"{size} in stage {stage}" for stage, size in sizes.items())
        raise RequestError(f"{folder}: stages with different numbers of devices ({shown}) cannot be merged.")
    return data, suffixes.pop(), merged


def _conflict(stage: int, one: Path, other: Path, first: Strategy, second: Strategy) -> str:
    a, b = first.stages[stage], second.stages[stage]
    name = next(name for name in sorted({*a, *b}) if a.get(name) != b.get(name))
    what = f"lay out {name} differently" if name in a and name in b else f"differ: only one lists {name}"
    return (
        f"{one.name} and {other.name} are both of stage {stage}, but {what}. Keep the right one of them in the folder."
    )


def _no_gaps(folder: Path, by_stage: dict[int, Path]) -> None:
    missing = sorted(set(range(max(by_stage) + 1)) - set(by_stage))
    if missing:
        gaps = ", ".join(map(str, missing))
        found = ", ".join(f"{stage} ({path.name})" for stage, path in sorted(by_stage.items()))
        raise RequestError(f"{folder}: stage {gaps} is missing; found {found}. Copy that stage's strategy file here.")


def _merge_protobuf(files: dict[int, Path]) -> bytes:
    operators, layouts = [], []
    for stage, path in files.items():
        for number, _, _, content in protobuf.fields(path.read_bytes()):
            if number == 2:
                operators.append(protobuf.field_bytes(2, content))
            elif number == 3:
                layouts.append(protobuf.field_bytes(3, _renamed(content, stage)))
    return protobuf.field_number(1, 1) + b"".join(operators) + b"".join(layouts)


def _renamed(item: bytes, stage: int) -> bytes:
    out = b""
    for number, _, _, content in protobuf.fields(item):
        out += protobuf.field_bytes(number, f"{stage}-".encode() + content if number == 1 else content)
    return out


def _merge_json(files: dict[int, Path]) -> bytes:
    merged: dict[str, Any] = {"current_stage": 1, "parallel_strategy_item": {}, "parallel_layout_item": {}}
    for stage, path in files.items():
        raw = parse_json(path.read_bytes())
        merged["parallel_strategy_item"].update(raw.get("parallel_strategy_item", {}))
        layouts = {f"{stage}-{name}": item for name, item in raw["parallel_layout_item"].items()}
        merged["parallel_layout_item"].update(layouts)
    return json.dumps(merged).encode()
