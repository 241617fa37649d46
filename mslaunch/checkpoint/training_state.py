"""What a checkpoint of a training holds beside the network: the state of its optimizer, counters, learning rates."""

from __future__ import annotations

from collections.abc import Container

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
