"""`mslaunch trace compare`: two networks compared module by module."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mslaunch.cli.console.tables import columns
from mslaunch.cli.parsing import common
from mslaunch.text import counted
from mslaunch.weights.trace.comparing import compare_traces

if TYPE_CHECKING:
    from mslaunch.weights.trace.comparing import TraceComparison
    from mslaunch.weights.trace.pairing import Pair
    from mslaunch.weights.trace.trace_folder import Recorded

app = common.new_app()
WIDTH = 24  # of a bar that stands for a difference as large as the values themselves
SMALLEST = 1e-8  # the difference at which a bar begins: less than float32 can tell


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
        float | None,
        typer.Option(
            "--tolerance",
            help="The largest difference, relative to the largest value. By default 1e-5, 1e-2 for half types, and "
            "30 times what the outputs before differ by.",
        ),
    ] = None,
    as_json: common.Json = False,
) -> None:
    """Compare two traces module by module, in order of execution; exit code 1 if they differ."""
    comparison = compare_traces(Path(first), Path(second), names, tolerance)
    if as_json:
        common.print_json(_plain(comparison))
    else:
        _show(comparison, first, second, tolerance)
    raise typer.Exit(0 if comparison.is_same else 1)


def _show(comparison: TraceComparison, first: str, second: str, tolerance: float | None) -> None:
    from mslaunch.weights.trace.pairing import few, label

    rows = [(label(pair.first), pair.first.kind, pair.second.kind, *_difference(pair)) for pair in comparison.pairs]
    print(columns([("MODULE", "A", "B", "DIFFERENCE", ""), *rows]), end="")
    for note in (*comparison.notes, *comparison.ended):
        common.say(note)
    for folder, only in ((first, comparison.only_first), (second, comparison.only_second)):
        if only:
            common.say(f"only in {folder}: {few(only)}")
    if comparison.only_whole:
        common.say(
            f"only the networks as a whole were compared: {counted(len(comparison.only_first), 'output')} of {first} "
            f"and {len(comparison.only_second)} of {second} have no partner. Write rules for the names and give "
            "--names RULES."
        )
    elif not comparison.is_whole_compared and not comparison.ended:
        common.say(
            "not compared: what the networks themselves return. Call both as often, and let both return a tensor, a "
            "tuple, or dictionaries with the same keys."
        )
    common.say(_sum_up(comparison, tolerance))
    if comparison.hint:
        common.say(comparison.hint)


def _sum_up(comparison: TraceComparison, tolerance: float | None) -> str:
    from mslaunch.weights.trace.comparing import limits_of
    from mslaunch.weights.trace.pairing import label

    different = comparison.first_different
    if different is not None:
        count = sum(not pair.is_same for pair in comparison.pairs)
        return (
            f"first difference: {label(different.first)} ({different.first.kind}, {different.second.kind}): "
            f"{_reason(different)}; {count} of {counted(len(comparison.pairs), 'output')} "
            f"{'differs' if count == 1 else 'differ'}"
        )
    alone = len(comparison.only_first) + len(comparison.only_second)
    without = f"; {alone} without a partner" if alone else ""
    largest = max(comparison.pairs, key=lambda pair: pair.difference or 0.0)
    limit = (
        max(limits_of(pair.first, pair.second).least for pair in comparison.pairs) if tolerance is None else tolerance
    )
    within = f"the same within {limit:g}"
    if (largest.difference or 0.0) > limit:
        within = f"the same with differences that grow slowly, to {largest.difference:.1e} at {label(largest.first)}"
    incomplete = "" if comparison.is_same else "incomplete comparison: "
    return f"{incomplete}{counted(len(comparison.pairs), 'output')}, {within}{without}"


def _difference(pair: Pair) -> tuple[str, str]:
    """Return a difference and its bar, in which each factor of ten is as long as any other."""
    if pair.difference is None:
        return "shape", "!" * WIDTH
    if math.isinf(pair.difference):
        return "NaN or infinity", "!" * WIDTH
    length = 0
    if pair.difference > SMALLEST:
        length = min(WIDTH, max(1, round(WIDTH * (1 - math.log10(pair.difference) / math.log10(SMALLEST)))))
    return f"{pair.difference:.1e}", ("-" if pair.is_same else "#") * length


def _reason(pair: Pair) -> str:
    if pair.difference is None:
        return f"shape {list(pair.first.shape)} and {list(pair.second.shape)}"
    if math.isinf(pair.difference):
        return "NaN or infinity in one of them"
    return f"{pair.difference:.1e} is more than {pair.tolerance:.2g}"


def _plain(comparison: TraceComparison) -> dict[str, Any]:
    """The same for scripts; an infinite difference, which JSON cannot hold, is the word inf."""
    pairs = [
        {
            "first": _output(pair.first),
            "second": _output(pair.second),
            "difference": "inf" if pair.difference == math.inf else pair.difference,
            "tolerance": pair.tolerance,
            "compared_values": pair.compared,
            "same": pair.is_same,
        }
        for pair in comparison.pairs
    ]
    different = comparison.first_different
    return {
        "same": comparison.is_same,
        "first_different": different and _output(different.first),
        "hint": comparison.hint,
        "ended": list(comparison.ended),
        "whole_compared": comparison.is_whole_compared,
        "outputs": pairs,
        "only_first": list(comparison.only_first),
        "only_second": list(comparison.only_second),
        "notes": list(comparison.notes),
    }


def _output(output: Recorded) -> dict[str, Any]:
    return {
        "name": output.name,
        "class": output.kind,
        "call": output.call,
        "output": output.place,
        "shape": list(output.shape),
        "dtype": output.dtype,
    }
