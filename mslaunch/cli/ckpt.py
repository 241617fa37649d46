"""`mslaunch ckpt`: show, verify, reshard, convert, import, export and compare checkpoints."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mslaunch.checkpoint.formats.table import FORMATS, Shard, read_shard
from mslaunch.checkpoint.moving.new_files import is_free
from mslaunch.checkpoint.sharding.sets import ShardSet, find_set
from mslaunch.checkpoint.sharding.strategy import Strategy, read_strategy
from mslaunch.checkpoint.sharding.verify import SetIsWrong, verify
from mslaunch.cli import ckpt_weights
from mslaunch.cli.console.progress_bar import progress_bar, size_words, written_words
from mslaunch.cli.parsing import common
from mslaunch.cli.parsing.common import columns
from mslaunch.errors import ExitCode, RequestError
from mslaunch.text import counted, plain
from mslaunch.weights import transfer

if TYPE_CHECKING:
    from mslaunch.checkpoint.formats.tensor import Tensor
    from mslaunch.checkpoint.moving.weights import Weight
    from mslaunch.checkpoint.sharding.transform import Planned

app = common.new_app()

Source = Annotated[str, typer.Argument(help="A checkpoint, or a folder with rank_0, rank_1 and so on.", metavar="SRC")]
Step = Annotated[
    str | None,
    typer.Option("--step", help="EPOCH_STEP, as in the names; by default the newest complete.", metavar="E_S"),
]
Prefix = Annotated[
    str | None, typer.Option("--prefix", help="Only files whose names begin so, where networks share a folder.")
]
Output = Annotated[str, typer.Option("-o", "--output", help="The new folder (convert: or file).", metavar="DST")]
_NAMES = " or ".join(form.name for form in FORMATS.values())
Kind = Annotated[str | None, typer.Option("--format", help=f"{_NAMES}; by default as the source.")]


@app.callback()
def ckpt() -> None:
    """Show, verify, reshard, convert, import, export and compare checkpoints."""


@app.command("show")
def show(
    source: Annotated[
        str,
        typer.Argument(help="A checkpoint, a folder with rank_0 and so on, or PyTorch's weights.", metavar="SRC"),
    ],
    step: Step = None,
    prefix: Prefix = None,
    key: ckpt_weights.Key = None,
    as_json: common.Json = False,
) -> None:
    """Show names, shapes, types and sizes, from headers alone."""
    path = Path(source)
    if transfer.holds_torch(source):
        _show_weights(source, transfer.list_weights(source, key=key), as_json)
        return
    if key is not None:
        raise RequestError(f"--key {key}: {source} has no keys; only files of torch.save have. Leave --key out.")
    if path.is_file():
        shard = read_shard(path)
        tensors = shard.tensors.values()
        if as_json:
            print(json.dumps(_plain(source, shard.size, shard.crc, tensors), indent=1))
        else:
            print(_table(source, "", shard.size, tensors), end="")
        return
    found = find_set(path, step=step, prefix=prefix, content=False)
    shards = _readable(found)
    if as_json:
        ranks = {r: _plain(str(s.path), s.size, s.crc, s.tensors.values()) for r, s in shards.items()}
        print(json.dumps({"step": found.step, "ranks": ranks}, indent=1))
        return
    rows = [("RANK", "FILE", "PARAMETERS", "SIZE")]
    rows += [(str(r), found.name_of(r), str(len(s.tensors)), size_words(s.size)) for r, s in shards.items()]
    total = size_words(sum(shard.size for shard in shards.values()))
    step_is = f"epoch {found.step[0]}, step {found.step[1]}" if found.step else "no step in the names"
    print(f"{source}: {counted(len(shards), 'rank')}, {step_is}, {total}\n\n{columns(rows)}", end="")


@app.command("verify")
def verify_set(
    source: Source,
    strategy: Annotated[str | None, typer.Option("--strategy", help="How it is cut.", metavar="FILE")] = None,
    step: Step = None,
    prefix: Prefix = None,
    replicas: Annotated[bool, typer.Option("--replicas", help="Also compare replicas, bit by bit.")] = False,
    as_json: common.Json = False,
) -> None:
    """Check that a set is complete and what its strategy says; exit code 2 if it is not."""
    layout = _strategy(strategy)
    if replicas and layout is None:
        raise RequestError("--replicas needs --strategy: it says which ranks hold the same slices.")
    found = find_set(Path(source), layout.world_size if layout else None, step, prefix)
    result = verify(found, layout, replicas)
    if as_json:
        print(json.dumps([asdict(finding) for finding in result.findings], indent=1))
    else:
        print("".join(f"{plain(f'{source}: {finding.words()}')}\n" for finding in result.findings), end="")
        if not result.errors:
            of = f", step {found.step[0]}_{found.step[1]}" if found.step else ""
            against = f" and as {strategy} says" if strategy else ""
            print(f"{source}: {counted(len(found.files), 'rank')}{of}: complete{against}")
    raise typer.Exit(ExitCode.WRONG_REQUEST if result.errors else 0)


@app.command("reshard")
def reshard(
    source: Source,
    output: Output,
    cut_by: Annotated[str | None, typer.Option("--from", help="Its strategy; none: a whole model.")] = None,
    to: Annotated[str | None, typer.Option("--to", help="The new strategy; none: a whole model.")] = None,
    to_tp: Annotated[
        int | None, typer.Option("--to-tp", help="The natural layout of this tensor-parallel degree.", min=1)
    ] = None,
    step: Step = None,
    prefix: Prefix = None,
    kind: Kind = None,
) -> None:
    """Write a set anew for another number of ranks or another layout."""
    from mslaunch.checkpoint.sharding.transform import Target, plan_transform, suffix_for

    if to and to_tp:
        raise RequestError("--to and --to-tp both name the new layout. Give one of them.")
    if to_tp and not cut_by:
        raise RequestError(
            "--to-tp needs --from: the strategy of the source says where each parameter is cut. "
            "To cut a whole model, write a strategy and give --to."
        )
    if not (cut_by or to):
        raise RequestError("neither --from nor --to is given. Name the strategy of the source, of the target, or both.")
    layout = _strategy(cut_by)
    found = find_set(Path(source), layout.world_size if layout else None, step, prefix)
    planned = plan_transform(found, layout, Target(_strategy(to), to_tp, suffix_for(kind)))
    for warning in planned.warnings:
        print(f"mslaunch: {plain(f'{source}: {warning.words()}')}", file=sys.stderr)
    if left := planned.job.left_out:
        count = counted(len(left), "parameter")
        print(f"mslaunch: left out, since {to} does not list them: {count} ({plain(left[0])} …)", file=sys.stderr)
    _write(planned, Path(output))


@app.command("convert")
def convert(source: Source, output: Output, kind: Kind = None, step: Step = None, prefix: Prefix = None) -> None:
    """Write .ckpt as .safetensors, or the other way round."""
    from mslaunch.checkpoint.sharding.transform import plan_convert, suffix_for

    path, target = Path(source), Path(output)
    found = find_set(path, step=step, prefix=prefix)
    shards = _readable(found, content=True)
    old = next(iter(found.files.values())).suffix
    suffix = suffix_for(kind) or (
        target.suffix if target.suffix in FORMATS else next(key for key in FORMATS if key != old)
    )
    planned = plan_convert(found, shards, suffix)
    if path.is_file() and target.suffix != suffix:
        raise RequestError(f"-o {output}: the new file's name must end in {suffix}.")
    _write(planned, target, single=path.is_file())


app.command("import")(ckpt_weights.import_weights)
app.command("export")(ckpt_weights.export_weights)
app.command("diff")(ckpt_weights.diff_weights)


def _write(planned: Planned, target: Path, single: bool = False) -> None:
    if not target.name:
        raise RequestError(f"-o {target}: has no name. Name a folder that is not there yet.")
    if target.exists() and (single or not target.is_dir() or not is_free(target)):
        raise RequestError(f"{target}: is there already. Give another -o, or remove it.")
    began = time.monotonic()
    with progress_bar() as progress:
        bar = progress(planned.job.nbytes)
        planned.write_file(target, bar) if single else planned.write(target, bar)
    ranks = counted(len(planned.names), "rank")
    print(f"{target}: {ranks}, {written_words(planned.job.nbytes, time.monotonic() - began)}")


def _strategy(name: str | None) -> Strategy | None:
    return read_strategy(Path(name)) if name else None


def _readable(found: ShardSet, content: bool = False) -> Mapping[int, Shard]:
    """The headers of a set; with `content`, recorded checksums are compared too, since they are not carried over."""
    result = verify(found, None, content=content)
    if result.errors:
        raise SetIsWrong(found, result.errors)
    return result.shards


def _show_weights(source: str, found: transfer.ListedWeights, as_json: bool) -> None:
    """Show PyTorch's weights as a checkpoint is shown, under the names that an import reads."""
    size = found.nbytes
    if as_json:
        print(json.dumps(_plain(source, size, None, found.weights), indent=1))
        return
    files = "" if len(found.files) == 1 else f"{counted(len(found.files), 'file')}, "
    print(_table(source, files, size, found.weights), end="")


def _plain(source: str, size: int, crc: int | None, tensors: Collection[Tensor | Weight]) -> dict[str, Any]:
    shown = [{"name": t.name, "type": t.dtype, "shape": t.shape, "bytes": t.nbytes} for t in tensors]
    return {"file": source, "bytes": size, "crc": crc, "parameters": shown}


def _table(source: str, files: str, size: int, tensors: Collection[Tensor | Weight]) -> str:
    rows = [("PARAMETER", "TYPE", "SHAPE", "SIZE")]
    rows += [(t.name, t.dtype, str(list(t.shape)), size_words(t.nbytes)) for t in tensors]
    return f"{source}: {files}{counted(len(tensors), 'parameter')}, {size_words(size)}\n\n{columns(rows)}"
