"""Names for the other framework without a network to compare with: what parameters can only be called there."""

from __future__ import annotations

from collections.abc import Mapping

from mslaunch.checkpoint import weights as change
from mslaunch.checkpoint.layer_names import TO_MINDSPORE, TO_PYTORCH, is_counter, is_embedding
from mslaunch.checkpoint.matching import Match
from mslaunch.checkpoint.weights import Weight
from mslaunch.errors import RequestError


def guess_names(weights: Mapping[str, Weight]) -> Match:
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
    count = "1 name was" if len(guessed) == 1 else f"{len(guessed)} names were"
    more = " …" if len(guessed) > 1 else ""
    return Match(made, (), (f"{count} guessed ({guessed[0]}{more}); check with --like",) if guessed else ())


def _put(made: dict[str, Weight], weights: Mapping[str, Weight], weight: Weight, new: str) -> None:
    if new in made or (new in weights and new != weight.name):
        raise RequestError(
            f"{new}: {weight.name} would get this name, and another parameter has it or gets it. Give --names RULES."
        )
    made[new] = change.rename(weight, new)


def _guess(weights: Mapping[str, Weight], base: str, last: str, weight: Weight) -> str:
    if last.startswith("running_"):
        return TO_MINDSPORE.get(last, (last,))[0]
    one, other = weights.get(f"{base}.weight"), weights.get(f"{base}.bias")
    is_norm = f"{base}.running_mean" in weights or (one and other and len(one.shape) == len(other.shape) == 1)
    if is_norm and last in ("weight", "bias"):
        return "gamma" if last == "weight" else "beta"
    if last == "weight" and len(weight.shape) == 2 and other is None and is_embedding(f"{base}.{last}"):
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
