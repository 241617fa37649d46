"""`mslaunch trace compare`: two networks compared module by module."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mslaunch.api import traces
from mslaunch.cli import basics
from mslaunch.words import counted

if TYPE_CHECKING:
    from mslaunch.trace.compare import Comparison, Pair
    from mslaunch.trace.reading import Output

app = basics.new_app()
WIDTH = 24
"""Of a bar that stands for a difference as large as the values themselves."""
SMALLEST = 1e-8
"""The difference at which a bar begins: less than float32 can tell."""
SHOWN = 8


@app.callback()
def trace() -> None:
    """Compare what two networks compute, as mslaunch.runtime.trace has recorded it."""


@app.command("compare")
def compare(
    first: Annotated[str, typer.Argument(help="A folder of trace() or torch_trace().", metavar="A")],
    second: Annotated[str, typer.Argument(help="The one to compare with.", metavar="B")],
    names: Annotated[
        str | None, typer.Option("--names", help="Rules for the names of A, as of `ckpt import`.", metavar="RULES")
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option("--tolerance", help="The largest difference, relative to the largest value; 0.001 by default."),
    ] = 1e-3,
    as_json: basics.Json = False,
) -> None:
    """Compare two traces module by module, in order of execution; exit code 1 if they differ."""
    found = traces.compare_traces(first, second, names=names, tolerance=tolerance)
    if as_json:
        print(json.dumps(_plain(found), indent=1))
    else:
        _show(found, first, second, tolerance)
    raise typer.Exit(0 if found.is_same else 1)


def _show(found: Comparison, first: str, second: str, tolerance: float) -> None:
    from mslaunch.trace.compare import label

    rows = [(label(pair.first), pair.first.kind, pair.second.kind, *_difference(pair)) for pair in found.pairs]
    print(basics.columns([("MODULE", "A", "B", "DIFFERENCE", ""), *rows]), end="")
    for note in found.notes:
        basics.say(note)
    for folder, only in ((first, found.only_first), (second, found.only_second)):
        if only:
            more = f" and {len(only) - SHOWN} more" if len(only) > SHOWN else ""
            basics.say(f"only in {folder}: {', '.join(only[:SHOWN])}{more}")
    different = found.first_different
    if found.only_whole:
        basics.say(
            f"only the networks as a whole were compared: {counted(len(found.only_first), 'output')} of {first} and "
            f"{len(found.only_second)} of {second} have no partner. Write rules for the names and give --names RULES."
        )
    if different is None:
        alone = len(found.only_first) + len(found.only_second)
        without = f"; {alone} without a partner" if alone else ""
        basics.say(f"{counted(len(found.pairs), 'output')}, the same within {tolerance:g}{without}")
        return
    count = sum(not pair.is_same for pair in found.pairs)
    basics.say(
        f"first difference: {label(different.first)} ({different.first.kind}, {different.second.kind}): "
        f"{_reason(different, tolerance)}; {count} of {counted(len(found.pairs), 'output')} differ"
    )


def _difference(pair: Pair) -> tuple[str, str]:
    if pair.difference is None:
        return "shape", "!" * WIDTH
    if math.isinf(pair.difference):
        return "NaN or infinity", "!" * WIDTH
    return f"{pair.difference:.1e}", ("#" if not pair.is_same else "-") * _bar(pair.difference)


def _bar(difference: float) -> int:
    """The length of a bar: each factor of ten is as long as any other."""
    if difference <= SMALLEST:
        return 0
    return min(WIDTH, max(1, round(WIDTH * (1 - math.log10(difference) / math.log10(SMALLEST)))))


def _reason(pair: Pair, tolerance: float) -> str:
    if pair.difference is None:
        return f"shape {list(pair.first.shape)} and {list(pair.second.shape)}"
    if math.isinf(pair.difference):
        return "NaN or infinity in one of them"
    return f"{pair.difference:.1e} is more than {tolerance:g}"


def _plain(found: Comparison) -> dict[str, Any]:
    """The same for scripts; an infinite difference, which JSON cannot hold, is the word inf."""
    pairs = [
        {
            "first": _output(pair.first),
            "second": _output(pair.second),
            "difference": "inf" if pair.difference == math.inf else pair.difference,
            "same": pair.is_same,
        }
        for pair in found.pairs
    ]
    different = found.first_different
    return {
        "same": found.is_same,
        "first_different": different and _output(different.first),
        "outputs": pairs,
        "only_first": list(found.only_first),
        "only_second": list(found.only_second),
        "notes": list(found.notes),
    }


def _output(output: Output) -> dict[str, Any]:
    return {
        "name": output.name,
        "class": output.kind,
        "call": output.call,
        "output": output.output,
        "shape": list(output.shape),
        "dtype": output.dtype,
    }
