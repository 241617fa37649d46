"""`mslaunch ckpt`: show, verify, reshard, convert, import, export and compare checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mslaunch.checkpoint.formats.table import FOR_TORCH, FORMATS, Shard, holds_torch, read_shard
from mslaunch.checkpoint.moving.new_files import is_free
from mslaunch.checkpoint.sharding.sets import ShardSet, find_set
from mslaunch.checkpoint.sharding.strategy import Strategy, read_strategy
from mslaunch.checkpoint.sharding.verify import require_valid, verify
from mslaunch.cli.console.progress_bar import progress_bar, size_words, written_words
from mslaunch.cli.console.tables import columns
from mslaunch.cli.parsing import common
from mslaunch.errors import ExitCode, RequestError
from mslaunch.text import counted, plain

if TYPE_CHECKING:
    from mslaunch.checkpoint.formats.tensor import Tensor
    from mslaunch.checkpoint.moving.new_files import Planned
    from mslaunch.checkpoint.moving.shard_writer import Progress
    from mslaunch.checkpoint.moving.weights import Weight
    from mslaunch.weights.diff import WeightDifference
    from mslaunch.weights.transfer import PlannedWeights

app = common.new_app()

SHOWN = 8
Source = Annotated[str, typer.Argument(help="A checkpoint, or a folder with rank_0, rank_1 and so on.", metavar="SRC")]
Step = Annotated[
    str | None,
    typer.Option("--step", help="EPOCH_STEP, as in the names; by default the newest complete.", metavar="E_S"),
]
Prefix = Annotated[
    str | None, typer.Option("--prefix", help="Only files whose names begin so, where networks share a folder.")
]
Output = Annotated[str, typer.Option("-o", "--output", help="The new folder (convert: or file).", metavar="DST")]
_FORMAT_NAMES = " or ".join(form.name for form in FORMATS.values())
Kind = Annotated[str | None, typer.Option("--format", help=f"{_FORMAT_NAMES}; by default as the source.")]
Names = Annotated[
    str | None,
    typer.Option(
        "--names",
        help="A YAML file of rules, or bert, gpt2, llama, qwen, resnet; none keeps all names.",
        metavar="RULES",
    ),
]
Like = Annotated[
    str | None, typer.Option("--like", help="Weights with the names and shapes that are wanted.", metavar="FILE")
]
Dtype = Annotated[
    str | None,
    typer.Option("--dtype", help="Cast floating-point values: float32, float16, bfloat16 or float64."),
]
Partial = Annotated[bool, typer.Option("--partial", help="Leave out what has no partner, and say so.")]
Key = Annotated[
    str | None, typer.Option("--key", help="Which value of a .pth file, for example ema.state_dict.", metavar="NAME")
]
LikeKey = Annotated[
    str | None, typer.Option("--key", help="Which value of a .pth file that --like names.", metavar="NAME")
]
StrategyFile = Annotated[str | None, typer.Option("--strategy", help="How ranks' shards are cut.", metavar="FILE")]


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
    key: Key = None,
    as_json: common.Json = False,
) -> None:
    """Show names, shapes, types and sizes, from headers alone."""
    path = Path(source)
    if path.exists() and holds_torch(path):
        from mslaunch.weights.opening import check_key, files_of, open_weights

        weights = open_weights(path, key=key)
        check_key(key, weights)
        files = files_of(weights)
        count = "" if len(files) == 1 else f"{counted(len(files), 'file')}, "
        nbytes = sum(file.stat().st_size for file in files)
        _show_tensors(source, count, nbytes, None, weights.values(), as_json)
        return
    if key is not None:
        raise RequestError(f"--key {key}: {source} has no keys; only files of torch.save have. Leave --key out.")
    if path.is_file():
        shard = read_shard(path)
        _show_tensors(source, "", shard.size, shard.crc, shard.tensors.values(), as_json)
        return
    shard_set = find_set(path, step=step, prefix=prefix, content=False)
    shards = _readable(shard_set)
    if as_json:
        ranks = {r: _plain(str(s.path), s.size, s.crc, s.tensors.values()) for r, s in shards.items()}
        common.print_json({"step": shard_set.step, "ranks": ranks})
        return
    rows = [("RANK", "FILE", "PARAMETERS", "SIZE")]
    rows += [(str(r), shard_set.name_of(r), str(len(s.tensors)), size_words(s.size)) for r, s in shards.items()]
    total = size_words(sum(shard.size for shard in shards.values()))
    step_is = f"epoch {shard_set.step[0]}, step {shard_set.step[1]}" if shard_set.step else "no step in the names"
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
    layout = _read_strategy(strategy)
    if replicas and layout is None:
        raise RequestError("--replicas needs --strategy: it says which ranks hold the same slices.")
    shard_set = find_set(Path(source), layout.world_size if layout else None, step, prefix)
    verified = verify(shard_set, layout, replicas)
    if as_json:
        common.print_json([asdict(finding) for finding in verified.findings])
    else:
        print("".join(f"{plain(f'{source}: {finding.words()}')}\n" for finding in verified.findings), end="")
        if not verified.errors:
            of = f", step {shard_set.step[0]}_{shard_set.step[1]}" if shard_set.step else ""
            against = f" and as {strategy} says" if strategy else ""
            print(f"{source}: {counted(len(shard_set.files), 'rank')}{of}: complete{against}")
    raise typer.Exit(ExitCode.WRONG_REQUEST if verified.errors else 0)


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
    from mslaunch.checkpoint.sharding.reshard import Target, plan_transform, suffix_for

    if to and to_tp:
        raise RequestError("--to and --to-tp both name the new layout. Give one of them.")
    if to_tp and not cut_by:
        raise RequestError(
            "--to-tp needs --from: the strategy of the source says where each parameter is cut. "
            "To cut a whole model, write a strategy and give --to."
        )
    if not (cut_by or to):
        raise RequestError("neither --from nor --to is given. Name the strategy of the source, of the target, or both.")
    layout = _read_strategy(cut_by)
    shard_set = find_set(Path(source), layout.world_size if layout else None, step, prefix)
    planned = plan_transform(shard_set, layout, Target(_read_strategy(to), to_tp, suffix_for(kind)))
    for warning in planned.warnings:
        common.say_aside(f"{source}: {warning.words()}")
    if left := planned.job.left_out:
        count = counted(len(left), "parameter")
        common.say_aside(f"left out, since {to} does not list them: {count} ({left[0]} …)")
    _write_shards(planned, Path(output))


@app.command("convert")
def convert(source: Source, output: Output, kind: Kind = None, step: Step = None, prefix: Prefix = None) -> None:
    """Write .ckpt as .safetensors, or the other way round."""
    from mslaunch.checkpoint.sharding.reshard import plan_convert, suffix_for

    path, target = Path(source), Path(output)
    shard_set = find_set(path, step=step, prefix=prefix)
    shards = _readable(shard_set, content=True)
    suffix = suffix_for(kind)
    if suffix is None and target.suffix in FORMATS:
        suffix = target.suffix
    if suffix is None:
        old = next(iter(shard_set.files.values())).suffix
        suffix = next(key for key in FORMATS if key != old)
    planned = plan_convert(shard_set, shards, suffix)
    if path.is_file() and target.suffix != suffix:
        raise RequestError(f"-o {output}: the new file's name must end in {suffix}.")
    _write_shards(planned, target, is_file=path.is_file())


@app.command("import")
def import_weights(
    source: Annotated[str, typer.Argument(help="PyTorch's .safetensors, .pth, or a folder of them.", metavar="SRC")],
    to: Annotated[str | None, typer.Option("--to", help=f"The new {' or '.join(FORMATS)}.", metavar="FILE")] = None,
    output: Annotated[
        str | None, typer.Option("-o", "--output", help="The new folder of shards, with --strategy.", metavar="DST")
    ] = None,
    strategy: StrategyFile = None,
    names: Names = None,
    like: Like = None,
    dtype: Dtype = None,
    partial: Partial = False,
    key: Key = None,
) -> None:
    """Write PyTorch's weights as a MindSpore checkpoint, or as the shards of ranks."""
    from mslaunch.weights import transfer

    target = _choose_target(to, output, strategy)
    _check_target(target, tuple(FORMATS) if to else ())
    planned = transfer.import_weights(
        source, target, strategy=strategy, names=names, like=like, dtype=dtype, partial=partial, key=key
    )
    _write_weights(planned, source)


@app.command("export")
def export_weights(
    source: Annotated[str, typer.Argument(help="A checkpoint, or a folder with rank_0 and so on.", metavar="SRC")],
    to: Annotated[str, typer.Option("--to", help=f"The new {' or '.join(FOR_TORCH)}.", metavar="FILE")],
    strategy: StrategyFile = None,
    names: Names = None,
    like: Like = None,
    dtype: Dtype = None,
    partial: Partial = False,
    key: LikeKey = None,
) -> None:
    """Write a MindSpore checkpoint with PyTorch's names; shards are merged on the way."""
    from mslaunch.weights import transfer

    _check_target(to, FOR_TORCH)
    planned = transfer.export_weights(
        source, to, strategy=strategy, names=names, like=like, dtype=dtype, partial=partial, key=key
    )
    _write_weights(planned, source)


@app.command("diff")
def diff_weights(
    first: Annotated[str, typer.Argument(help="Weights of any kind.", metavar="A")],
    second: Annotated[str, typer.Argument(help="Those to compare with.", metavar="B")],
    names: Annotated[
        str | None, typer.Option("--names", help="Rules for the names of A, as of import.", metavar="RULES")
    ] = None,
    strategy: StrategyFile = None,
    key: Key = None,
    as_json: common.Json = False,
) -> None:
    """Compare two sets of weights; exit code 1 if they differ."""
    from mslaunch.weights import transfer

    compared = transfer.compare_weights(first, second, names=names, strategy=strategy, key=key)
    differences = compared.differences
    for note in compared.notes:
        common.say_aside(note)
    if compared.renamed:
        (old, new), *more = compared.renamed.items()
        count = counted(len(compared.renamed), "name")
        common.say_aside(f"{count} matched as by import: {old} is {new}{' …' if more else ''}")
    if as_json:
        common.print_json([asdict(difference) for difference in differences])
    elif differences:
        rows = [("PARAMETER", "DIFFERS", "MAX", "MEAN", "COSINE", "A", "B"), *map(_difference_row, differences)]
        print(columns(rows), end="")
    else:
        print(f"{first} and {second}: the same")
    raise typer.Exit(1 if differences else 0)


def _choose_target(to: str | None, output: str | None, strategy: str | None) -> str:
    """Return where an import writes; refuse options that do not go together."""
    problem = ""
    if to is not None and output is not None:
        problem = "--to and -o both say where to write"
    elif to is None and output is None:
        problem = "neither --to nor -o says where to write"
    elif to is None and strategy is None:
        problem = "-o writes one shard a rank and needs --strategy, which says how they are cut"
    elif output is None and strategy is not None:
        problem = "--strategy cuts the weights into one shard a rank, and --to is one file"
    if problem:
        raise RequestError(f"{problem}. Give --to FILE for one file, or -o FOLDER together with --strategy for shards.")
    return to or output or ""


def _difference_row(difference: WeightDifference) -> tuple[str, ...]:
    kind = difference.kind
    if difference.not_finite:
        kind = f"{kind}, {difference.not_finite} not finite"
    numbers = ("" if number is None else f"{number:.3g}" for number in (difference.max, difference.mean))
    cosine = "" if difference.cosine is None else f"{difference.cosine:.6f}"
    return (difference.name, kind, *numbers, cosine, difference.first or "", difference.second or "")


def _check_target(name: str, suffixes: tuple[str, ...]) -> None:
    """Refuse a target that exists; `suffixes` are those that a file may have, none where it is a folder."""
    target = Path(name)
    if not target.name:
        raise RequestError(f"{name}: has no name. Name a file or folder that is not there yet.")
    if suffixes and target.suffix not in suffixes:
        raise RequestError(f"--to {name}: the new file's name must end in {' or '.join(suffixes)}.")
    _check_free(target, is_file=bool(suffixes))


def _check_free(target: Path, is_file: bool) -> None:
    if target.exists() and (is_file or not target.is_dir() or not is_free(target)):
        raise RequestError(f"{target}: is there already. Give another name, or remove it.")


def _write_shards(planned: Planned, target: Path, is_file: bool = False) -> None:
    if not target.name:
        raise RequestError(f"-o {target}: has no name. Name a folder that is not there yet.")
    _check_free(target, is_file)
    write = planned.write_file if is_file else planned.write
    written = _move(planned.job.nbytes, lambda progress: write(target, progress))
    print(f"{target}: {counted(len(planned.names), 'rank')}, {written}")


def _write_weights(weights: PlannedWeights, source: str) -> None:
    for note in weights.notes:
        common.say_aside(note)
    for sentence in weights.left_out[:SHOWN]:
        common.say_aside(f"{source}: left out: {sentence}")
    if len(weights.left_out) > SHOWN:
        common.say_aside(f"{source}: and {len(weights.left_out) - SHOWN} more were left out")
    written = _move(weights.nbytes, weights.write)
    ranks = "" if weights.single else f"{counted(len(weights.planned.names), 'rank')}, "
    count = counted(len(weights.planned.job.assemblies), "parameter")
    print(f"{weights.target}: {ranks}{count}, {written}")


def _move(nbytes: int, write: Callable[[Progress], None]) -> str:
    """Write files with a progress bar; return their size, the time and the rate."""
    began = time.monotonic()
    with progress_bar() as progress:
        write(progress(nbytes))
    return written_words(nbytes, time.monotonic() - began)


def _read_strategy(name: str | None) -> Strategy | None:
    return read_strategy(Path(name)) if name else None


def _readable(shard_set: ShardSet, content: bool = False) -> Mapping[int, Shard]:
    """The headers of a set; with `content`, recorded checksums are compared too, since they are not carried over."""
    return require_valid(shard_set, None, content=content).shards


def _show_tensors(
    source: str, files: str, size: int, crc: int | None, tensors: Collection[Tensor | Weight], as_json: bool
) -> None:
    """Show the parameters of one file, or PyTorch's weights under the names that an import reads."""
    if as_json:
        common.print_json(_plain(source, size, crc, tensors))
        return
    rows = [("PARAMETER", "TYPE", "SHAPE", "SIZE")]
    rows += [(t.name, t.dtype, str(list(t.shape)), size_words(t.nbytes)) for t in tensors]
    count = counted(len(tensors), "parameter")
    print(f"{source}: {files}{count}, {size_words(size)}\n\n{columns(rows)}", end="")


def _plain(source: str, size: int, crc: int | None, tensors: Collection[Tensor | Weight]) -> dict[str, Any]:
    parameters = [{"name": t.name, "type": t.dtype, "shape": t.shape, "bytes": t.nbytes} for t in tensors]
    return {"file": source, "bytes": size, "crc": crc, "parameters": parameters}
