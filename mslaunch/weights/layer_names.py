"""What the layers of PyTorch and MindSpore call the same parameter."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping

LayerTerms = Mapping[str, tuple[str, ...]]

TO_MINDSPORE: LayerTerms = {
    "weight": ("weight", "gamma", "embedding_table", "embedding_weight", "w"),
    "bias": ("bias", "beta"),
    "running_mean": ("moving_mean",),
    "running_var": ("moving_variance",),
}
"""What MindSpore's layers call a parameter, by what PyTorch's call it."""
TO_PYTORCH: LayerTerms = {theirs: (ours,) for ours, names in TO_MINDSPORE.items() for theirs in names}
EITHER_WAY: LayerTerms = {**TO_PYTORCH, **TO_MINDSPORE}
"""What the layers of the other framework call a parameter, whichever of the two has named it."""
_INNER_LAYERS = {"linear1": "dense1", "linear2": "dense2", "dense1": "linear1", "dense2": "linear2"}
"""Layers inside of a TransformerEncoderLayer or TransformerDecoderLayer."""
_INNER_NORM = ".bn2d"
"""The layer inside of MindSpore's BatchNorm3d that holds its parameters; PyTorch's has none."""
STATISTICS = ("running_mean", "running_var", "moving_mean", "moving_variance")
_COUNTERS = ("num_batches_tracked",)
"""Counters of PyTorch's layers that MindSpore's do not have."""


_EMBEDDING = re.compile(
    r"(?!un|.*out)(?:(?:.*_)?emb(?:ed|s)?|.*embeddings?|wte|wpe|embed_(?:tokens|positions|in)|.*emb(?:edding)?_table)"
)
"""Layers that can only be an embedding; embed_out and unembed are the layer after the network."""


def is_embedding(name: str) -> bool:
    """Tell whether the layer of a parameter can only be an embedding."""
    layer = name.rpartition(".")[0].rpartition(".")[2]
    return _EMBEDDING.fullmatch(layer.lower()) is not None


def is_counter(name: str) -> bool:
    return name.rpartition(".")[2] in _COUNTERS


def partner_names(name: str, terms: LayerTerms) -> list[str]:
    """The name itself, and what a parameter of this name may be called in the other framework."""
    base, dot, last = name.rpartition(".")
    outer, layer_dot, layer = base.rpartition(".")
    bases = [base]
    if layer in _INNER_LAYERS:
        bases.append(f"{outer}{layer_dot}{_INNER_LAYERS[layer]}")
    if base:
        bases.append(base.removesuffix(_INNER_NORM) if base.endswith(_INNER_NORM) else f"{base}{_INNER_NORM}")
    lasts = (last, *terms.get(last, ()))
    return list(dict.fromkeys(f"{name_base}{dot}{word}" for name_base in bases for word in lasts))


_VALUES = frozenset(
    {
        *("global_step", "learning_rate", "beta1_power", "beta2_power", "momentum", "epoch_num", "step_num"),
        *("scale_sense", "current_iterator_step", "last_overflow_iterator_step", "afactor_step", "cov_step"),
    }
)
_STATES = frozenset(
    {
        *("moment", "moments", "moment1", "moment2", "adam_m", "adam_v", "vhat", "lamb_m", "lamb_v"),
        *("exp_avg", "exp_avg_sq", "exp_avg_sq_row", "exp_avg_sq_col", "max_exp_avg_sq", "exp_inf"),
        *("accum", "accum_update", "accu_grads", "mean_grad", "mean_square", "stat", "prev", "step_size"),
    }
)
"""Words that MindSpore's optimizers put before the name of a parameter for what they keep of it."""


def is_of_training(name: str, names: Container[str]) -> bool:
    """Tell whether a value belongs to a training: moment1.W does where there is W."""
    first, _, rest = name.partition(".")
    return name in _VALUES or (first in _STATES and rest in names)
