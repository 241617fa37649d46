"""`mslaunch ckpt import`, `export` and `diff`: weights from PyTorch, back to it, and compared."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mslaunch.checkpoint.formats.table import FOR_TORCH, FORMATS
from mslaunch.checkpoint.moving.new_files import is_free
from mslaunch.cli.console.progress_bar import progress_bar, written_words
from mslaunch.cli.parsing import common
from mslaunch.errors import RequestError
from mslaunch.text import counted, plain
from mslaunch.weights import transfer

if TYPE_CHECKING:
    from mslaunch.weights.diff import WeightDifference
    from mslaunch.weights.transfer import PlannedWeights

SHOWN = 8
_ONE_TARGET = "Give --to FILE for one file, or -o FOLDER together with --strategy for shards."
_NOTHING = f"neither --to nor -o says where to write. {_ONE_TARGET}"
_BOTH = f"--to and -o both say where to write. {_ONE_TARGET}"
_NO_CUTS = f"-o writes one shard a rank and needs --strategy, which says how they are cut. {_ONE_TARGET}"
_NO_FOLDER = f"--strategy cuts the weights into one shard a rank, and --to is one file. {_ONE_TARGET}"
_WHERE_TO = {
    (False, False, False): _NOTHING,
    (False, False, True): _NOTHING,
    (True, True, False): _BOTH,
    (True, True, True): _BOTH,
    (False, True, False): _NO_CUTS,
    (True, False, True): _NO_FOLDER,
}
"""What is wrong with a request, by which of --to, -o and --strategy it gives."""
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
Strategy = Annotated[str | None, typer.Option("--strategy", help="How ranks' shards are cut.", metavar="FILE")]


def import_weights(
    source: Annotated[str, typer.Argument(help="PyTorch's .safetensors, .pth, or a folder of them.", metavar="SRC")],
    to: Annotated[str | None, typer.Option("--to", help=f"The new {' or '.join(FORMATS)}.", metavar="FILE")] = None,
    output: Annotated[
        str | None, typer.Option("-o", "--output", help="The new folder of shards, with --strategy.", metavar="DST")
    ] = None,
    strategy: Strategy = None,
    names: Names = None,
    like: Like = None,
    dtype: Dtype = None,
    partial: Partial = False,
    key: Key = None,
) -> None:
    """Write PyTorch's weights as a MindSpore checkpoint, or as the shards of ranks."""
    if problem := _WHERE_TO.get((to is not None, output is not None, strategy is not None)):
        raise RequestError(problem)
    target = to or output or ""
    _check_target(target, tuple(FORMATS) if to else ())
    planned = transfer.import_weights(
        source, target, strategy=strategy, names=names, like=like, dtype=dtype, partial=partial, key=key
    )
    _write(planned, source)


def export_weights(
    source: Annotated[str, typer.Argument(help="A checkpoint, or a folder with rank_0 and so on.", metavar="SRC")],
    to: Annotated[str, typer.Option("--to", help=f"The new {' or '.join(FOR_TORCH)}.", metavar="FILE")],
    strategy: Strategy = None,
    names: Names = None,
    like: Like = None,
    dtype: Dtype = None,
    partial: Partial = False,
    key: LikeKey = None,
) -> None:
    """Write a MindSpore checkpoint with PyTorch's names; shards are merged on the way."""
    _check_target(to, FOR_TORCH)
    planned = transfer.export_weights(
        source, to, strategy=strategy, names=names, like=like, dtype=dtype, partial=partial, key=key
    )
    _write(planned, source)


def diff_weights(
    first: Annotated[str, typer.Argument(help="Weights of any kind.", metavar="A")],
    second: Annotated[str, typer.Argument(help="Those to compare with.", metavar="B")],
    names: Annotated[
        str | None, typer.Option("--names", help="Rules for the names of A, as of import.", metavar="RULES")
    ] = None,
    strategy: Strategy = None,
    key: Key = None,
    as_json: common.Json = False,
) -> None:
    """Compare two sets of weights; exit code 1 if they differ."""
    compared = transfer.compare_weights(first, second, names=names, strategy=strategy, key=key)
    found = compared.differences
    _note(*compared.notes, *([_renamed_words(compared.renamed)] if compared.renamed else ()))
    if as_json:
        print(json.dumps([asdict(one) for one in found], indent=1))
    elif found:
        rows = [("PARAMETER", "DIFFERS", "MAX", "MEAN", "COSINE", "A", "B"), *map(_row, found)]
        print(common.columns(rows), end="")
    else:
        print(f"{first} and {second}: the same")
    raise typer.Exit(1 if found else 0)


def _note(*sentences: str) -> None:
    for sentence in sentences:
        print(f"mslaunch: {plain(sentence)}", file=sys.stderr)


def _renamed_words(renamed: Mapping[str, str]) -> str:
    old, new = next(iter(renamed.items()))
    return f"{counted(len(renamed), 'name')} matched as by import: {old} is {new}{' …' if len(renamed) > 1 else ''}"


def _row(one: WeightDifference) -> tuple[str, ...]:
    kind = f"{one.kind}, {one.not_finite} not finite" if one.not_finite else one.kind
    numbers = ("" if value is None else f"{value:.3g}" for value in (one.max, one.mean))
    cosine = "" if one.cosine is None else f"{one.cosine:.6f}"
    return (one.name, kind, *numbers, cosine, one.first or "", one.second or "")


def _check_target(name: str, suffixes: tuple[str, ...]) -> None:
    """Refuse a target that is there; `suffixes` are those that a file may have, none where it is a folder."""
    target = Path(name)
    if not target.name:
        raise RequestError(f"{name}: has no name. Name a file or folder that is not there yet.")
    if suffixes and target.suffix not in suffixes:
        raise RequestError(f"--to {name}: the new file's name must end in {' or '.join(suffixes)}.")
    if target.exists() and (suffixes or not target.is_dir() or not is_free(target)):
        raise RequestError(f"{name}: is there already. Give another name, or remove it.")


def _write(weights: PlannedWeights, source: str) -> None:
    _note(*weights.notes, *(f"{source}: left out: {sentence}" for sentence in weights.left_out[:SHOWN]))
    if len(weights.left_out) > SHOWN:
        _note(f"{source}: and {len(weights.left_out) - SHOWN} more were left out")
    began = time.monotonic()
    with progress_bar() as progress:
        weights.write(progress(weights.nbytes))
    written = written_words(weights.nbytes, time.monotonic() - began)
    ranks = "" if weights.single else f"{counted(len(weights.planned.names), 'rank')}, "
    count = counted(len(weights.renamed.weights), "parameter")
    print(f"{weights.target}: {ranks}{count}, {written}")
