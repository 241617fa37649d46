"""The whole of an import or export: open the weights, name and shape them anew, and plan the new files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mslaunch import layout as run_layout
from mslaunch.checkpoint import safetensors
from mslaunch.checkpoint.matching import (
    SHOWN,
    TO_MINDSPORE,
    TO_PYTORCH,
    Match,
    guess_names,
    match_names,
    plain_names,
    tied_names,
)
from mslaunch.checkpoint.names import apply_rules, read_rules, reverse_rules
from mslaunch.checkpoint.opening import Weights, check_key, open_weights
from mslaunch.checkpoint.rule_use import unused_rules
from mslaunch.checkpoint.strategy import Strategy
from mslaunch.checkpoint.tensor import ITEM_SIZES
from mslaunch.checkpoint.transform import Planned
from mslaunch.checkpoint.verify import is_derived
from mslaunch.checkpoint.weights import cast, plan_weights
from mslaunch.errors import RequestError, SeveralLines

DTYPES = {"float32": "Float32", "float16": "Float16", "bfloat16": "BFloat16", "float64": "Float64"}


@dataclass(frozen=True, slots=True)
class Naming:
    """How names are found, and what may be left out."""

    rules: str | None = None
    """A file of rules, or the name of a network that has some."""
    like: Path | None = None
    """Weights whose names and shapes the new ones are to have."""
    dtype: str | None = None
    """float32, float16, bfloat16 or float64; None is as they are."""
    partial: bool = False
    """Write what has found its partner, and leave out the rest."""
    key: str | None = None
    """Which of the values in a file of torch.save."""


class NoPartner(SeveralLines):
    """Parameters that have found no partner, or two."""

    def __init__(self, path: Path, problems: tuple[str, ...], notes: tuple[str, ...] = ()) -> None:
        shown = [*notes, *(f"{path}: {problem}" for problem in problems[:SHOWN])]
        more = f"and {len(problems) - SHOWN} more; " if len(problems) > SHOWN else ""
        shown.append(f"{path}: {more}nothing was written. Give --names RULES, or --partial to leave these out.")
        super().__init__(shown)


@dataclass(frozen=True, slots=True)
class Renamed:
    """Weights under their new names, and a sentence for each that was left out."""

    weights: Weights
    left_out: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """A sentence for each rule that applies to no parameter."""


def plan_import(source: Path, naming: Naming, strategy: Strategy | None, target: Path) -> tuple[Planned, Renamed]:
    """Plan MindSpore checkpoints from PyTorch's weights: one file, or one for each rank of a strategy."""
    found = open_weights(source, key=naming.key)
    check_key(naming.key, found)
    wanted = open_weights(naming.like) if naming.like else {}
    rules = read_rules(naming.rules) if naming.rules else []
    renamed, notes = apply_rules(found, rules), unused_rules(naming.rules or "", rules, found)
    if naming.like:
        match = match_names(renamed, _shapes(wanted), TO_MINDSPORE)
    elif strategy is not None:
        match = _match_strategy(renamed if naming.rules else guess_names(renamed), strategy)
    else:
        match = Match(renamed if naming.rules else guess_names(renamed), ())
    _check(source, match, naming, notes)
    weights = _cast(match.weights, naming.dtype)
    names = {0: target.name}
    if strategy is not None:
        if strategy.lone_stage is not None:
            raise RequestError(
                f"{strategy.name}: one stage of a pipeline alone. Merge its stages: mslaunch strategy merge."
            )
        names = {rank: f"{run_layout.rank_folder(rank)}/model{rank}.ckpt" for rank in range(strategy.world_size)}
    planned = Planned(plan_weights(list(weights.values()), strategy), names, strategy, {}, ())
    return planned, Renamed(weights, match.problems, notes)


def plan_export(source: Path, naming: Naming, strategy: Strategy | None, target: Path) -> tuple[Planned, Renamed]:
    """Plan one file under PyTorch's names; ranks' shards are merged on the way."""
    if target.suffix != ".safetensors":
        raise RequestError(f"--to {target}: the new file's name must end in .safetensors.")
    found = open_weights(source, strategy)
    back = reverse_rules(read_rules(naming.rules)) if naming.rules else []
    renamed, notes = apply_rules(found, back), unused_rules(naming.rules or "", back, found)
    if naming.like:
        like = open_weights(naming.like, key=naming.key)
        match = match_names(renamed, _shapes(like), TO_PYTORCH, tied_names(like))
    else:
        match = Match(renamed if naming.rules else plain_names(renamed), ())
    _check(source, match, naming, notes)
    weights = _cast(match.weights, naming.dtype)
    planned = Planned(plan_weights(list(weights.values()), None, "pt"), {0: target.name}, None, {}, ())
    return planned, Renamed(weights, match.problems, notes)


def _shapes(weights: Weights) -> Mapping[str, tuple[int, ...] | None]:
    return {name: weight.shape for name, weight in weights.items()}


def _match_strategy(weights: Weights, strategy: Strategy) -> Match:
    """A strategy says which names there are to be; what it does not list, every rank gets whole."""
    listed = strategy.names()
    if not listed & weights.keys():
        return match_names(weights, dict.fromkeys(sorted(listed)), TO_MINDSPORE)
    missing = [name for name in sorted(listed - weights.keys()) if not is_derived(name, listed)]
    return Match(weights, tuple(f"{name}, which {strategy.name} lists, gets no weights" for name in missing))


def _check(source: Path, match: Match, naming: Naming, notes: tuple[str, ...]) -> None:
    if match.problems and not naming.partial:
        raise NoPartner(source, match.problems, notes)
    if not match.weights:
        raise RequestError(f"{source}: no parameter has a partner, so there is nothing to write.")


def _cast(weights: Weights, dtype: str | None) -> Weights:
    if dtype is not None and dtype not in DTYPES:
        raise RequestError(f"--dtype: one of {', '.join(DTYPES)} is wanted, got {dtype!r}.")
    made = {name: cast(weight, DTYPES[dtype]) if dtype else weight for name, weight in weights.items()}
    for name, weight in made.items():
        if weight.dtype not in ITEM_SIZES and weight.dtype in (*safetensors.FLOAT8.values(), *safetensors.FLOAT8):
            raise RequestError(f"{name}: MindSpore's checkpoints have no {weight.dtype}. Give --dtype bfloat16.")
    return made
