"""Run as a script: what differences_torch.py computes, with MindSpore."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

RAMP = np.linspace(-2, 3, 24, dtype=np.float32)
WEIGHTS = np.array([1.0, -2.0, 0.5], np.float32)
GRADIENTS = np.array([0.1, 1e-8, -0.3], np.float32)


def updated(make: Callable[[list[Any]], Any], steps: int = 2) -> Any:
    """What an optimizer makes of WEIGHTS after some steps with GRADIENTS."""
    weight = Parameter(Tensor(WEIGHTS), name="weight")
    optimizer = make([weight])
    for _ in range(steps):
        optimizer((Tensor(GRADIENTS),))
    return weight.asnumpy()


def norms() -> dict[str, Any]:
    batch = nn.BatchNorm1d(3).set_train()
    batch(Tensor(RAMP.reshape(8, 3)))
    decayed, grouped = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    zeros = (Tensor(np.zeros(3, np.float32)),) * 2
    nn.SGD(decayed.trainable_params(), 0.1, weight_decay=0.5)(zeros)
    groups = [{"params": grouped.trainable_params(), "weight_decay": 0.5}]
    nn.SGD(groups, 0.1)(zeros)
    return {
        "running_mean": batch.moving_mean.asnumpy(),
        "running_var": batch.moving_variance.asnumpy(),
        "decayed_norm": decayed.gamma.asnumpy(),
        "grouped_norm": grouped.gamma.asnumpy(),
        "layer_norm_eps": nn.LayerNorm([3]).epsilon,
        "batch_norm_eps": nn.BatchNorm1d(3).eps,
    }


def layers() -> dict[str, Any]:
    picture = Tensor(np.arange(25, dtype=np.float32).reshape(1, 1, 5, 5))
    scores, labels = Tensor(RAMP.reshape(8, 3)), Tensor(np.arange(8) % 3, ms.int32)
    return {
        "training": nn.Dense(2, 2).training,
        "linear_std": nn.Dense(256, 512).weight.asnumpy().std(),
        "embedding_std": nn.Embedding(512, 256).embedding_table.asnumpy().std(),
        "conv_shape": nn.Conv2d(1, 1, 3)(picture).shape,
        "valid_shape": nn.Conv2d(1, 1, 3, pad_mode="valid")(picture).shape,
        "conv_bias": nn.Conv2d(1, 1, 3).has_bias,
        "pool_shape": nn.MaxPool2d(2)(picture).shape,
        "stride_shape": nn.MaxPool2d(2, 2)(picture).shape,
        "same_shape": nn.MaxPool2d(2, 2, pad_mode="same")(picture).shape,
        "ceil_shape": nn.MaxPool2d(2, 2, pad_mode="pad", ceil_mode=True)(picture).shape,
        "kept": (nn.Dropout(p=0.2).set_train()(Tensor(np.ones(20000, np.float32))).asnumpy() != 0).mean(),
        "kept_first": (nn.Dropout(0.2).set_train()(Tensor(np.ones(20000, np.float32))).asnumpy() != 0).mean(),
        "gelu": nn.GELU()(Tensor(RAMP)).asnumpy(),
        "exact_gelu": nn.GELU(approximate=False)(Tensor(RAMP)).asnumpy(),
        "cross_entropy": nn.CrossEntropyLoss()(scores, labels).asnumpy(),
        "softmax_loss": nn.SoftmaxCrossEntropyWithLogits(sparse=True)(scores, labels).asnumpy(),
    }


def optimizers() -> dict[str, Any]:
    weight = Parameter(Tensor(WEIGHTS), name="weight")
    schedule = nn.SGD([weight], learning_rate=[0.1, 0.05, 0.025])
    for _ in range(2):
        schedule((Tensor(GRADIENTS),))
    return {
        "adam": updated(lambda weights: nn.Adam(weights, 0.1)),
        "adam_l2": updated(lambda weights: nn.Adam(weights, 0.1, weight_decay=0.5)),
        "adamw": updated(lambda weights: nn.AdamWeightDecay(weights, 0.1, eps=1e-8, weight_decay=0.5)),
        "adamw_eps": inspect.signature(nn.AdamWeightDecay).parameters["eps"].default,
        "momentum": updated(lambda weights: nn.Momentum(weights, 0.1, momentum=0.9, weight_decay=0.5)),
        "rate": schedule.get_lr().asnumpy(),
    }


if __name__ == "__main__":
    np.savez(sys.argv[1], **norms(), **layers(), **optimizers())
