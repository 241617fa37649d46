"""`mslaunch strategy`: show and merge strategy files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mslaunch.checkpoint.sharding.strategy import Layout, Strategy, merge_stages, read_strategy
from mslaunch.cli.console.tables import columns
from mslaunch.cli.parsing import common
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
    strategy = read_strategy(Path(file))
    if as_json:
        common.print_json(_plain(strategy))
        return
    rows = [("STAGE", "PARAMETER", "CUT")]
    for stage, layouts in strategy.stages.items():
        rows += [(str(stage), name, _cut(layout)) for name, layout in sorted(layouts.items())]
    print(f"{strategy.name}: {_summary(strategy)}\n\n{columns(rows)}", end="")


@app.command("merge")
def merge_strategies(
    folder: Annotated[str, typer.Argument(help="Folder with the strategy files of all stages.", metavar="DIR")],
    output: Annotated[str, typer.Option("-o", "--output", help="Where to write.", metavar="FILE")],
    force: common.Force = False,
) -> None:
    """Merge the strategy files of a pipeline; stages that conflict or are missing are errors."""
    data, suffix, merged = merge_stages(Path(folder))
    if (Path(output).suffix == ".json") != (suffix == ".json"):
        raise RequestError(
            f"-o {output}: the stages are {suffix} files, so the merged one must be called *{suffix} too."
        )
    common.write_new(output, data, force)
    print(f"{output}: {len(merged.stages)} stages, {merged.world_size} ranks")


def _summary(strategy: Strategy) -> str:
    devices = f"{strategy.stage_devices} devices"
    if not strategy.merged and (stage := next(iter(strategy.stages))):
        return f"stage {stage} of a pipeline, {devices}; `mslaunch strategy merge` joins the stages"
    stages = f"{len(strategy.stages)} stages x {devices} = " if len(strategy.stages) > 1 else ""
    ranks = counted(strategy.world_size, "rank")
    degrees = f"tensor parallel {strategy.tensor_parallel}, data parallel {strategy.data_parallel}"
    return f"{stages}{ranks}; {degrees}, optimizer parallel {strategy.optimizer_parallel}"


def _cut(layout: Layout) -> str:
    cuts = [f"dimension {index} into {ways}" for index, ways in enumerate(layout.tensor_cuts) if ways > 1]
    if layout.optimizer_cut > 1:
        further = "dimension 0 further into" if layout.tensor_cuts[0] > 1 else "dimension 0 into"
        cuts.append(f"{further} {layout.optimizer_cut} (optimizer parallel)")
    return ", ".join(cuts) or "whole"


def _plain(strategy: Strategy) -> dict[str, object]:
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
        for stage, layouts in strategy.stages.items()
        for name, layout in sorted(layouts.items())
    ]
    return {
        "file": strategy.name,
        "merged": strategy.merged,
        "stages": sorted(strategy.stages),
        "devices_per_stage": strategy.stage_devices,
        "world_size": strategy.world_size,
        "tensor_parallel": strategy.tensor_parallel,
        "data_parallel": strategy.data_parallel,
        "optimizer_parallel": strategy.optimizer_parallel,
        "parameters": parameters,
    }
