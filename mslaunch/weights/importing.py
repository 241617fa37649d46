"""Plans an import or export: opens the weights, gives them new names and shapes, and lays out the new files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mslaunch.checkpoint.formats import safetensors
from mslaunch.checkpoint.formats.table import FOR_TORCH, FORMATS
from mslaunch.checkpoint.formats.tensor import ITEM_SIZES
from mslaunch.checkpoint.moving import weights as change
from mslaunch.checkpoint.moving.new_files import Planned
from mslaunch.checkpoint.moving.weights import Weight, cast, plan_weights
from mslaunch.checkpoint.sharding.strategy import Strategy
from mslaunch.errors import RequestError, SeveralLines
from mslaunch.shared import layout as run_layout
from mslaunch.weights.layer_names import TO_MINDSPORE, TO_PYTORCH, is_counter, is_embedding, is_of_training
from mslaunch.weights.matching import SHOWN, NameMatch, match_names, tied_names
from mslaunch.weights.names import (
    NameRule,
    apply_rules,
    first_match,
    first_of,
    is_ready,
    read_rules,
    reverse_rules,
    unmatched_names,
    unused_rules,
)
from mslaunch.weights.opening import Weights, check_key, open_weights
from mslaunch.weights.scales import is_scaled, join_scales


def guess_names(weights: Mapping[str, Weight]) -> NameMatch:
    """Rename what can only be a normalisation or an embedding; without the network, the rest keeps its name."""
    made: dict[str, Weight] = {}
    guessed: list[str] = []
    for name, weight in weights.items():
        base, dot, last = name.rpartition(".")
        if is_counter(name):
            continue
        new = f"{base}{dot}{_guess(weights, base, last, weight)}"
        _put(made, weights, weight, new)
        if new != name:
            guessed.append(f"{name} is {new}")
    if not guessed:
        return NameMatch(made, ())
    count = "1 name was" if len(guessed) == 1 else f"{len(guessed)} names were"
    return NameMatch(made, (), (f"{count} guessed ({first_of(guessed)}); check with --like",))


def _put(made: dict[str, Weight], weights: Mapping[str, Weight], weight: Weight, new: str) -> None:
    if new in made or (new in weights and new != weight.name):
        raise RequestError(
            f"{new}: {weight.name} would get this name, and another parameter has it or gets it. Give --names RULES."
        )
    made[new] = change.rename(weight, new)


def _guess(weights: Mapping[str, Weight], base: str, last: str, weight: Weight) -> str:
    if last.startswith("running_"):
        return TO_MINDSPORE.get(last, (last,))[0]
    scale, bias = weights.get(f"{base}.weight"), weights.get(f"{base}.bias")
    is_norm = f"{base}.running_mean" in weights or (scale and bias and len(scale.shape) == len(bias.shape) == 1)
    if is_norm and last in ("weight", "bias"):
        return "gamma" if last == "weight" else "beta"
    if last == "weight" and len(weight.shape) == 2 and bias is None and is_embedding(f"{base}.{last}"):
        return "embedding_table"
    return last


def plain_names(weights: Mapping[str, Weight]) -> dict[str, Weight]:
    """Give parameters the words of PyTorch's layers; each of MindSpore's has one."""
    made: dict[str, Weight] = {}
    for name, weight in weights.items():
        base, dot, last = name.rpartition(".")
        new = f"{base}{dot}{TO_PYTORCH.get(last, (last,))[0]}"
        _put(made, weights, weight, new)
    return made


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
        lines = [*notes, *(f"{path}: {problem}" for problem in problems[:SHOWN])]
        more = f"and {len(problems) - SHOWN} more; " if len(problems) > SHOWN else ""
        lines.append(f"{path}: {more}nothing was written. Give --names RULES, or --partial to leave these out.")
        super().__init__(lines)


@dataclass(frozen=True, slots=True)
class Renamed:
    """Weights under their new names, and a sentence for each that was left out."""

    weights: Weights
    left_out: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """Sentences on rules that apply to no parameter, on what was guessed, and on what needs no partner."""


def plan_import(source: Path, naming: Naming, strategy: Strategy | None, target: Path) -> tuple[Planned, Renamed]:
    """Plan MindSpore checkpoints from PyTorch's weights: one file, or one for each rank of a strategy."""
    opened = join_scales(open_weights(source, key=naming.key))
    check_key(naming.key, opened)
    like = open_weights(naming.like) if naming.like else {}
    rules = read_rules(naming.rules) if naming.rules else []
    renamed, notes = apply_rules(opened, rules), unused_rules(naming.rules or "", rules, opened)
    if naming.like:
        match = match_names(renamed, _shapes(like), TO_MINDSPORE)
    elif naming.rules:
        match = NameMatch(renamed, (), unmatched_names(naming.rules, rules, opened))
    else:
        match = guess_names(renamed)
    if strategy is not None and not naming.like:
        match = _match_strategy(match, strategy)
    notes += (*match.notes, *_square_words(naming, opened, rules, match))
    _check(source, match, naming, notes)
    weights = _cast(match.weights, naming.dtype)
    names = {0: target.name}
    if strategy is not None:
        if strategy.lone_stage is not None:
            raise RequestError(
                f"{strategy.name}: one stage of a pipeline alone. Merge its stages: mslaunch strategy merge."
            )
        suffix = next(iter(FORMATS))
        names = {rank: f"{run_layout.rank_folder(rank)}/model{rank}{suffix}" for rank in range(strategy.world_size)}
    planned = Planned(plan_weights(list(weights.values()), strategy), names, {}, ())
    return planned, Renamed(weights, match.problems, notes)


def plan_export(source: Path, naming: Naming, strategy: Strategy | None, target: Path) -> tuple[Planned, Renamed]:
    """Plan one file under PyTorch's names; ranks' shards are merged on the way."""
    if target.suffix not in FOR_TORCH:
        raise RequestError(f"--to {target}: the new file's name must end in {' or '.join(FOR_TORCH)}.")
    whole = join_scales(open_weights(source, strategy))
    training = [name for name in whole if is_of_training(name, whole)]
    network = {name: weight for name, weight in whole.items() if name not in training}
    back = reverse_rules(read_rules(naming.rules)) if naming.rules else []
    renamed, notes = apply_rules(network, back), unused_rules(naming.rules or "", back, whole)
    like = open_weights(naming.like, key=naming.key) if naming.like else {}
    check_key(naming.key, like or network)
    if naming.like:
        match = match_names(renamed, _shapes(like), TO_PYTORCH, tied_names(like))
    elif naming.rules:
        match = NameMatch(renamed, (), unmatched_names(naming.rules, back, network))
    else:
        match = NameMatch(plain_names(renamed), ())
    notes += (*match.notes, *_square_words(naming, network, back, match), *_training_words(training))
    _check(source, match, naming, notes)
    weights = _cast(match.weights, naming.dtype)
    planned = Planned(plan_weights(list(weights.values()), None, "pt"), {0: target.name}, {}, ())
    return planned, Renamed(weights, match.problems, notes)


def _shapes(weights: Weights) -> Mapping[str, tuple[int, ...] | None]:
    return {name: weight.shape for name, weight in weights.items()}


def _square_words(naming: Naming, weights: Weights, rules: Sequence[NameRule], match: NameMatch) -> tuple[str, ...]:
    """Return a sentence on square matrices that no rule transposes, where others are or have to be transposed.

    Rules that come with mslaunch are complete; others may have forgotten a matrix that fits either way.
    """
    if naming.rules and is_ready(naming.rules):
        return ()
    is_transposed = bool(match.transposed)
    squares = []
    for name, weight in weights.items():
        if len(weight.shape) == 2:
            applied = first_match(rules, name)
            if applied and applied[0].transpose is not None:
                is_transposed = True
            elif weight.shape[0] == weight.shape[1]:
                squares.append(name)
    if not is_transposed or not squares:
        return ()
    count = "1 square matrix fits" if len(squares) == 1 else f"{len(squares)} square matrices fit"
    return (
        f"{count} either way, transposed or not ({first_of(squares)}): shapes cannot tell, so check with the network",
    )


def _training_words(names: Sequence[str]) -> tuple[str, ...]:
    if not names:
        return ()
    count = "1 value" if len(names) == 1 else f"{len(names)} values"
    return (f"{count} of the training ({first_of(names, 2)}) left out",)


def _match_strategy(match: NameMatch, strategy: Strategy) -> NameMatch:
    """Match the names that a strategy lists; every rank gets the other weights whole."""
    listed, weights = strategy.names(), match.weights
    if not listed & weights.keys():
        return match_names(weights, dict.fromkeys(sorted(listed)), TO_MINDSPORE)
    missing = [name for name in sorted(listed - weights.keys()) if not is_of_training(name, listed)]
    problems = tuple(f"{name}, which {strategy.name} lists, gets no weights" for name in missing)
    return NameMatch(weights, problems, match.notes)


def _check(source: Path, match: NameMatch, naming: Naming, notes: tuple[str, ...]) -> None:
    if match.problems and not naming.partial:
        raise NoPartner(source, match.problems, notes)
    if not match.weights:
        raise RequestError(f"{source}: no parameter has a partner, so there is nothing to write.")


def _cast(weights: Weights, dtype: str | None) -> Weights:
    if dtype is not None and dtype not in DTYPES:
        raise RequestError(f"--dtype: one of {', '.join(DTYPES)} is wanted, got {dtype!r}.")
    scaled = next((name for name, weight in weights.items() if is_scaled(weight)), None)
    if scaled and dtype is None:
        raise RequestError(
            f"{scaled}: MindSpore's checkpoints have no float8. Give --dtype bfloat16: its values are multiplied by "
            f"their scales."
        )
    made = {name: cast(weight, DTYPES[dtype]) if dtype else weight for name, weight in weights.items()}
    for name, weight in made.items():
        if weight.dtype not in ITEM_SIZES and weight.dtype in (*safetensors.FLOAT8.values(), *safetensors.FLOAT8):
            raise RequestError(f"{name}: MindSpore's checkpoints have no {weight.dtype}. Give --dtype bfloat16.")
    return made
