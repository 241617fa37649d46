"""Weights in and out: import from PyTorch, export to it, compare. What `mslaunch ckpt` calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path

from mslaunch.checkpoint.formats import safetensors
from mslaunch.checkpoint.formats.table import FOR_TORCH, FORMATS
from mslaunch.checkpoint.formats.tensor import ITEM_SIZES
from mslaunch.checkpoint.moving import views
from mslaunch.checkpoint.moving import weights as change
from mslaunch.checkpoint.moving.new_files import Planned
from mslaunch.checkpoint.moving.views import FLOATS, Scale
from mslaunch.checkpoint.moving.weights import Weight, cast, plan_weights
from mslaunch.checkpoint.sharding.strategy import Shape, Strategy, read_strategy
from mslaunch.errors import MslaunchError, RequestError
from mslaunch.shared import layout as run_layout
from mslaunch.weights.diff import WeightDifference, compare
from mslaunch.weights.layer_names import TO_MINDSPORE, TO_PYTORCH, is_counter, is_embedding, is_of_training
from mslaunch.weights.matching import SHOWN, NameMatch, match_names, pair_names, tied_names
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

DTYPES = {"float32": "Float32", "float16": "Float16", "bfloat16": "BFloat16", "float64": "Float64"}


@dataclass(frozen=True, slots=True)
class PlannedWeights:
    """New files of weights, ready to be written."""

    planned: Planned
    target: Path
    single: bool
    """One file, not a folder with one for each rank."""
    left_out: tuple[str, ...]
    """A sentence for each parameter that has no partner; empty unless that was allowed."""
    notes: tuple[str, ...]
    """Sentences on rules that apply to no parameter, on what was guessed, and on what needs no partner."""

    @property
    def nbytes(self) -> int:
        return self.planned.job.nbytes

    def write(self, progress: Callable[[int], None] = lambda _: None) -> None:
        """Write them; they appear when they are complete."""
        if self.single:
            self.planned.write_file(self.target, progress)
        else:
            self.planned.write(self.target, progress)


@dataclass(frozen=True, slots=True)
class ComparedWeights:
    """What differs between two sets of weights."""

    differences: tuple[WeightDifference, ...]
    renamed: Mapping[str, str]
    """Names of the first that are called otherwise in the second, and what they are called there."""
    notes: tuple[str, ...] = ()


class NoPartner(MslaunchError):
    """Parameters that have found no partner, or two."""

    def __init__(self, path: str, problems: tuple[str, ...], notes: tuple[str, ...] = ()) -> None:
        lines = [*notes, *(f"{path}: {problem}" for problem in problems[:SHOWN])]
        more = f"and {len(problems) - SHOWN} more; " if len(problems) > SHOWN else ""
        lines.append(f"{path}: {more}nothing was written. Give --names RULES, or --partial to leave these out.")
        super().__init__(*lines)


def import_weights(
    source: str,
    target: str,
    *,
    strategy: str | None = None,
    names: str | None = None,
    like: str | None = None,
    dtype: str | None = None,
    partial: bool = False,
    key: str | None = None,
) -> PlannedWeights:
    """Plan MindSpore checkpoints from PyTorch's weights; with a strategy, a folder with one for each rank."""
    layout = _read_strategy(strategy)
    opened = _join_scales(open_weights(Path(source), key=key))
    check_key(key, opened)
    partners = open_weights(Path(like)) if like else None
    rules = read_rules(names) if names else []
    renamed, notes = apply_rules(opened, rules), unused_rules(names or "", rules, opened)
    if partners is not None:
        match = match_names(renamed, _shapes(partners), TO_MINDSPORE)
    elif names:
        match = NameMatch(renamed, (), unmatched_names(names, rules, opened))
    else:
        match = guess_names(renamed)
    if layout is not None and partners is None:
        match = _match_strategy(match, layout)
    notes += (*match.notes, *_square_words(names, opened, rules, match))
    weights = _checked(source, match, dtype, partial, notes)
    files = {0: Path(target).name}
    if layout is not None:
        if layout.lone_stage is not None:
            raise RequestError(
                f"{layout.name}: one stage of a pipeline alone. Merge its stages: mslaunch strategy merge."
            )
        suffix = next(iter(FORMATS))
        files = {rank: f"{run_layout.rank_folder(rank)}/model{rank}{suffix}" for rank in range(layout.world_size)}
    planned = Planned(plan_weights(weights, layout), files, {}, ())
    return PlannedWeights(planned, Path(target), layout is None, match.problems, notes)


def export_weights(
    source: str,
    target: str,
    *,
    strategy: str | None = None,
    names: str | None = None,
    like: str | None = None,
    dtype: str | None = None,
    partial: bool = False,
    key: str | None = None,
) -> PlannedWeights:
    """Plan a .safetensors with PyTorch's names; a strategy says how the shards of ranks belong together.

    `key` says which value of a .pth that is given as `like`.
    """
    layout = _read_strategy(strategy)
    if Path(target).suffix not in FOR_TORCH:
        raise RequestError(f"--to {target}: the new file's name must end in {' or '.join(FOR_TORCH)}.")
    whole = _join_scales(open_weights(Path(source), layout))
    training = [name for name in whole if is_of_training(name, whole)]
    network = {name: weight for name, weight in whole.items() if name not in training}
    rules = reverse_rules(read_rules(names)) if names else []
    renamed, notes = apply_rules(network, rules), unused_rules(names or "", rules, whole)
    partners = open_weights(Path(like), key=key) if like else None
    check_key(key, partners or network)
    if partners is not None:
        match = match_names(renamed, _shapes(partners), TO_PYTORCH, tied_names(partners))
    elif names:
        match = NameMatch(renamed, (), unmatched_names(names, rules, network))
    else:
        match = NameMatch(_plain_names(renamed), ())
    notes += (*match.notes, *_square_words(names, network, rules, match))
    if training:
        count = "1 value" if len(training) == 1 else f"{len(training)} values"
        notes += (f"{count} of the training ({first_of(training, 2)}) left out",)
    weights = _checked(source, match, dtype, partial, notes)
    planned = Planned(plan_weights(weights, None, "pt"), {0: Path(target).name}, {}, ())
    return PlannedWeights(planned, Path(target), True, match.problems, notes)


def diff_weights(
    first: str, second: str, *, names: str | None = None, strategy: str | None = None, key: str | None = None
) -> list[WeightDifference]:
    """Compare two sets of weights; `names` are rules for the first, `strategy` is that of shards of ranks."""
    return list(compare_weights(first, second, names=names, strategy=strategy, key=key).differences)


def compare_weights(
    first: str, second: str, *, names: str | None = None, strategy: str | None = None, key: str | None = None
) -> ComparedWeights:
    """Compare as diff_weights does, and return as well which names were taken for which."""
    layout = _read_strategy(strategy)
    opened: list[Weights] = []
    for path in map(Path, (first, second)):
        has_ranks = path.is_dir() and any(path.glob(f"{run_layout.RANK}*"))
        opened.append(_join_scales(open_weights(path, layout if has_ranks else None, key)))
    check_key(key, *opened)
    rules = read_rules(names) if names else []
    ours, theirs, renamed = pair_names(apply_rules(opened[0], rules), opened[1])
    return ComparedWeights(tuple(compare(ours, theirs)), renamed, unused_rules(names or "", rules, opened[0]))


def _read_strategy(name: str | None) -> Strategy | None:
    return read_strategy(Path(name)) if name else None


def _shapes(weights: Weights) -> dict[str, tuple[int, ...] | None]:
    return {name: weight.shape for name, weight in weights.items()}


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


def _plain_names(weights: Mapping[str, Weight]) -> dict[str, Weight]:
    """Give parameters the words of PyTorch's layers; each of MindSpore's has one."""
    made: dict[str, Weight] = {}
    for name, weight in weights.items():
        base, dot, last = name.rpartition(".")
        _put(made, weights, weight, f"{base}{dot}{TO_PYTORCH.get(last, (last,))[0]}")
    return made


def _square_words(names: str | None, weights: Weights, rules: Sequence[NameRule], match: NameMatch) -> tuple[str, ...]:
    """Return a sentence on square matrices that no rule transposes, where others are or have to be transposed.

    Rules that come with mslaunch are complete; others may have forgotten a matrix that fits either way.
    """
    if names and is_ready(names):
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


def _match_strategy(match: NameMatch, strategy: Strategy) -> NameMatch:
    """Match the names that a strategy lists; every rank gets the other weights whole."""
    listed, weights = strategy.names(), match.weights
    if not listed & weights.keys():
        return match_names(weights, dict.fromkeys(sorted(listed)), TO_MINDSPORE)
    missing = [name for name in sorted(listed - weights.keys()) if not is_of_training(name, listed)]
    problems = tuple(f"{name}, which {strategy.name} lists, gets no weights" for name in missing)
    return NameMatch(weights, problems, match.notes)


def _checked(source: str, match: NameMatch, dtype: str | None, partial: bool, notes: tuple[str, ...]) -> list[Weight]:
    """Return the weights that have partners, of the type that was asked for; refuse what cannot be written."""
    if match.problems and not partial:
        raise NoPartner(source, match.problems, notes)
    if not match.weights:
        raise RequestError(f"{source}: no parameter has a partner, so there is nothing to write.")
    weights = list(match.weights.values())
    if dtype is not None:
        if dtype not in DTYPES:
            raise RequestError(f"--dtype: one of {', '.join(DTYPES)} is wanted, got {dtype!r}.")
        return [cast(weight, DTYPES[dtype]) for weight in weights]
    for weight in weights:
        if any(view.scale is not None for *_, view in weight.pieces):
            raise RequestError(
                f"{weight.name}: MindSpore's checkpoints have no float8. Give --dtype bfloat16: its values are "
                f"multiplied by their scales."
            )
        if weight.dtype not in ITEM_SIZES and weight.dtype in (*safetensors.FLOAT8.values(), *safetensors.FLOAT8):
            raise RequestError(f"{weight.name}: MindSpore's checkpoints have no {weight.dtype}. Give --dtype bfloat16.")
    return weights


_SCALE_NAMES = ("_scale_inv", "_scale")
"""The endings of the names of scales; both hold factors, whatever the name suggests."""
_BLOCK = 128
"""Rows and columns of a block that has one scale (DeepSeek-V3, Qwen3-FP8)."""
_FLOAT8 = tuple(dtype for dtype in FLOATS if dtype.startswith("Float8"))
_OF_INPUTS = ("input", "act")
_WAY_OUT = "Write the weights as bfloat16 with the program that made them, and import those."


def _join_scales(weights: Mapping[str, Weight]) -> dict[str, Weight]:
    """Multiply float8 weights by the scales that stand beside them, when they are read; the scales are used up."""
    made = dict(weights)
    scales: dict[str, str] = {}
    for name in weights:
        layer, _, last = name.rpartition(".")
        if "scale" in last and not any(word in last for word in _OF_INPUTS):
            scales[layer] = name
    for name, weight in weights.items():
        if weight.dtype in _FLOAT8:
            scale = next((candidate for word in _SCALE_NAMES if (candidate := f"{name}{word}") in weights), None)
            other = scales.get(name.rpartition(".")[0])
            if scale is not None:
                made[name] = _joined(weight, weights[scale])
                made.pop(scale, None)
            elif other is not None:  # a plain cast would be wrong
                what = f"its float8 values may be scaled by {other}, which is not understood"
                raise RequestError(f"{name}: {what}. {_WAY_OUT}")
    return made


def _joined(weight: Weight, factors: Weight) -> Weight:
    if factors.dtype not in FLOATS or factors.dtype in _FLOAT8 or len(weight.pieces) != 1 or len(factors.pieces) != 1:
        raise RequestError(f"{factors.name}: scales of type {factors.dtype} are not understood. {_WAY_OUT}")
    (_, path, view), (box, own, values) = factors.pieces[0], weight.pieces[0]
    while len(view.shape) < len(weight.shape):  # one scale for all values has none or one dimension, one a row too
        view = views.rearrange(view, partial(views.inserted, len(view.shape)))
    if weight.shape == () and view.shape == (1,):
        view = views.remove_dimension(view, 0)
    blocks = _blocks(weight.shape, view.shape)
    if blocks is None:
        both = f"{factors.name} ({factors.words()}) is no scale for each row or block of {_BLOCK}x{_BLOCK} of"
        raise RequestError(f"{both} {weight.name} ({weight.words()}). {_WAY_OUT}")
    scale = Scale(path, view, blocks, (0,) * len(blocks))
    return replace(weight, dtype="Float32", pieces=((box, own, replace(values, cast="Float32", scale=scale)),))


def _blocks(shape: Shape, scales: Shape) -> tuple[int, ...] | None:
    """Return how many values of each dimension have one scale; None where the shapes do not fit."""
    if len(shape) != len(scales):
        return None
    blocks = []
    for size, count in zip(shape, scales, strict=True):
        choices = {1: max(size, 1), ceil(size / _BLOCK): _BLOCK, size: 1}
        if count not in choices:
            return None
        blocks.append(choices[count])
    return tuple(blocks)
