"""`mslaunch strategy`: show and merge strategy files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from mslaunch.checkpoint.sharding.strategy import Strategy, merge_stages, read_strategy
from mslaunch.checkpoint.sharding.tensor_layout import Layout
from mslaunch.cli.parsing import common
from mslaunch.cli.parsing.common import columns
from mslaunch.cli.parsing.new_file import Force, write_new
from mslaunch.errors import RequestError
from mslaunch.text import counted

app = common.new_app()


@app.callback()
def strategy() -> None:
    """Show and merge MindSpore's strategy files."""


@app.command("show")
def show_strategy(
    file: Annotated[str, typer.Argument(help="A strategy file, protobuf or .json.", metavar="FILE")],
    as_json: common.Json = False,
) -> None:
    """Show stages, degrees and how each parameter is cut."""
    read = read_strategy(Path(file))
    print(json.dumps(_plain(read), indent=1) if as_json else _words(read), end="\n" if as_json else "")


@app.command("merge")
def merge_strategies(
    folder: Annotated[str, typer.Argument(help="Folder with the strategy files of all stages.", metavar="DIR")],
    output: Annotated[str, typer.Option("-o", "--output", help="Where to write.", metavar="FILE")],
    force: Force = False,
) -> None:
    """Merge the strategy files of a pipeline; stages that conflict or are missing are errors."""
    data, suffix, merged = merge_stages(Path(folder))
    if (Path(output).suffix == ".json") != (suffix == ".json"):
        raise RequestError(
            f"-o {output}: the stages are {suffix} files, so the merged one must be called *{suffix} too."
        )
    write_new(output, data, force)
    print(f"{output}: {len(merged.stages)} stages, {merged.world_size} ranks")


def summary(read: Strategy) -> str:
    """Say a strategy in one line."""
    if not read.merged and (stage := next(iter(read.stages))):
        return f"stage {stage} of a pipeline, {read.stage_devices} devices; `mslaunch strategy merge` joins the stages"
    stages = f"{len(read.stages)} stages x {read.stage_devices} devices = " if len(read.stages) > 1 else ""
    ranks = counted(read.world_size, "rank")
    degrees = f"tensor parallel {read.tensor_parallel}, data parallel {read.data_parallel}"
    return f"{stages}{ranks}; {degrees}, optimizer parallel {read.optimizer_parallel}"


def _words(read: Strategy) -> str:
    rows = [("STAGE", "PARAMETER", "CUT")]
    for stage, layouts in read.stages.items():
        rows += [(str(stage), name, _cut(layout)) for name, layout in sorted(layouts.items())]
    return f"{read.name}: {summary(read)}\n\n{columns(rows)}"


def _cut(layout: Layout) -> str:
    cuts = [f"dimension {index} into {ways}" for index, ways in enumerate(layout.tensor_cuts) if ways > 1]
    if layout.optimizer_cut > 1:
        further = "dimension 0 further into" if layout.tensor_cuts[0] > 1 else "dimension 0 into"
        cuts.append(f"{further} {layout.optimizer_cut} (optimizer parallel)")
    return ", ".join(cuts) or "whole"


def _plain(read: Strategy) -> dict[str, object]:
    parameters = [
        {
            "stage": stage,
            "name": name,
            "device_matrix": layout.devices,
            "cuts": layout.cuts,
            "tensor_cuts": layout.tensor_cuts,
            "optimizer_cut": layout.optimizer_cut,
            "shape": layout.shape,
        }
        for stage, layouts in read.stages.items()
        for name, layout in sorted(layouts.items())
    ]
    return {
        "file": read.name,
        "merged": read.merged,
        "stages": sorted(read.stages),
        "devices_per_stage": read.stage_devices,
        "world_size": read.world_size,
        "tensor_parallel": read.tensor_parallel,
        "data_parallel": read.data_parallel,
        "optimizer_parallel": read.optimizer_parallel,
        "parameters": parameters,
    }
