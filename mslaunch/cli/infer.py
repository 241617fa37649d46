"""`mslaunch infer`: verify a sharded checkpoint, reshard it where the ranks differ, and launch."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from mslaunch.cli.parsing import common, options
from mslaunch.cli.train import Detach, DryRun, LaunchCommand, Verbose, View
from mslaunch.errors import RequestError
from mslaunch.launcher.read import CheckpointRequest

_app = common.new_app()
app = partial(options.call, _app)


@options.launching(_app)
def infer(
    context: typer.Context,
    strategy: Annotated[
        str | None,
        typer.Option("--strategy", help="How the checkpoint is cut; by default a file beside it.", metavar="FILE"),
    ] = None,
    ckpt: Annotated[
        str | None,
        typer.Option("--ckpt", help="Folder with rank_0, rank_1 …, or one file; by default beside the strategy."),
    ] = None,
    predict_strategy: Annotated[
        str | None, typer.Option("--predict-strategy", help="The layout to infer with.", metavar="FILE")
    ] = None,
    step: Annotated[
        str | None, typer.Option("--step", help="EPOCH_STEP; by default the newest complete.", metavar="E_S")
    ] = None,
    prefix: Annotated[str | None, typer.Option("--prefix", help="Only files whose names begin so.")] = None,
    detach: Detach = False,
    view: View = False,
    dry_run: DryRun = False,
    verbose: Verbose = False,
    as_json: common.Json = False,
    **typed: Any,
) -> LaunchCommand:
    """Check, reshard where needed, and serve a sharded checkpoint on any number of ranks."""
    own = {
        "--strategy": strategy,
        "--ckpt": ckpt,
        "--predict-strategy": predict_strategy,
        "--step": step,
        "--prefix": prefix,
    }
    if not (ckpt or strategy):
        raise RequestError("which checkpoint? Name its folder with --ckpt DIR, and with --strategy FILE how it is cut.")
    folder = Path(ckpt) if ckpt else Path(strategy or "").parent
    layout, new_layout = (Path(name) if name else None for name in (strategy, predict_strategy))
    request = options.request(
        typed,
        context.obj,
        offers_stdin=not (detach or view),
        default_script="infer.py",
        checkpoint=CheckpointRequest(folder, layout, new_layout, step, prefix),
        verb="infer",
        verb_options=tuple(f"{option}={value}" for option, value in own.items() if value is not None),
    )
    return LaunchCommand(request, detach, dry_run, as_json, verbose, view)
