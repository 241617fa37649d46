"""What PyTorch leaves out of names or puts into them: wrappers' words, and weights that are tied to others. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from mslaunch.checkpoint.weights import Weight, rename
from mslaunch.errors import RequestError

_SEGMENTS = frozenset(("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))
"""What torch.compile, FSDP and activation checkpointing put anywhere in a name."""
_PREFIX = "module."
"""What DataParallel puts before every name."""
_HEAD = "lm_head.weight"
_EMBEDDINGS = ("model.embed_tokens.weight", "transformer.wte.weight", "shared.weight")
"""What the head of a language model is tied to, where its config.json says that it is tied."""


def without_wrappers(weights: Mapping[str, Weight]) -> dict[str, Weight]:
    """Name the weights as the network itself does."""
    made: dict[str, Weight] = {}
    for old, new in zip(weights, _plain_names(list(weights)), strict=True):
        if new in made:
            raise RequestError(f"{old}: without the words of wrappers it is {new}, as another is. Rename one of them.")
        made[new] = rename(weights[old], new)
    return made


def _plain_names(names: list[str]) -> list[str]:
    names = [".".join(part for part in name.split(".") if part not in _SEGMENTS) or name for name in names]
    while names and all(len(name) > len(_PREFIX) and name.startswith(_PREFIX) for name in names):
        names = [name.removeprefix(_PREFIX) for name in names]
    return names


def with_aliases(weights: Mapping[str, Weight], aliases: Mapping[str, str]) -> dict[str, Weight]:
    """Add the names of tied weights; each is that of a weight which is there."""
    tied = {name: rename(weights[other], name) for name, other in aliases.items() if name not in weights}
    return {**weights, **tied}


def head_alias(weights: Mapping[str, Weight]) -> dict[str, str]:
    """Return what the missing head of a language model with tied weights is."""
    found = next((name for name in _EMBEDDINGS if name in weights), None)
    return {_HEAD: found} if found and _HEAD not in weights else {}
