# mypy: ignore-errors
# torch is not in the environment that mypy sees.
"""Run by torch's Python: the defaults and updates that docs/from-pytorch.md compares, written to an .npz file."""

import sys

import numpy as np
import torch
from torch import nn

RAMP = np.linspace(-2, 3, 24, dtype=np.float32)
WEIGHTS = np.array([1.0, -2.0, 0.5], np.float32)
GRADIENTS = np.array([0.1, 1e-8, -0.3], np.float32)


def updated(make, steps=2):
    """What an optimizer makes of WEIGHTS after some steps with GRADIENTS."""
    weight = nn.Parameter(torch.from_numpy(WEIGHTS.copy()))
    optimizer = make([weight])
    for _ in range(steps):
        weight.grad = torch.from_numpy(GRADIENTS.copy())
        optimizer.step()
    return weight.detach().numpy()


def norms():
    torch.manual_seed(1)
    batch = nn.BatchNorm1d(3)
    batch(torch.from_numpy(RAMP.reshape(8, 3)))
    decayed = nn.BatchNorm1d(3)
    optimizer = torch.optim.SGD(decayed.parameters(), 0.1, weight_decay=0.5)
    for parameter in decayed.parameters():
        parameter.grad = torch.zeros(3)
    optimizer.step()
    return {
        "running_mean": batch.running_mean.numpy(),
        "running_var": batch.running_var.numpy(),
        "decayed_norm": decayed.weight.detach().numpy(),
        "layer_norm_eps": nn.LayerNorm(3).eps,
        "batch_norm_eps": nn.BatchNorm1d(3).eps,
    }


def layers():
    picture = torch.from_numpy(np.arange(25, dtype=np.float32).reshape(1, 1, 5, 5))
    return {
        "training": nn.Linear(2, 2).training,
        "linear_std": nn.Linear(256, 512).weight.detach().numpy().std(),
        "embedding_std": nn.Embedding(512, 256).weight.detach().numpy().std(),
        "conv_shape": nn.Conv2d(1, 1, 3)(picture).shape,
        "conv_bias": nn.Conv2d(1, 1, 3).bias is not None,
        "pool_shape": nn.MaxPool2d(2)(picture).shape,
        "ceil_shape": nn.MaxPool2d(2, 2, ceil_mode=True)(picture).shape,
        "kept": float((nn.Dropout(0.2)(torch.ones(20000)) != 0).float().mean()),
        "gelu": nn.GELU()(torch.from_numpy(RAMP)).numpy(),
        "cross_entropy": nn.CrossEntropyLoss()(torch.from_numpy(RAMP.reshape(8, 3)), torch.arange(8) % 3).numpy(),
    }


def optimizers():
    schedule = torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1)
    torch.optim.lr_scheduler.StepLR(schedule, 1, 0.5)
    for _ in range(2):
        schedule.step()
    return {
        "adam": updated(lambda weights: torch.optim.Adam(weights, 0.1)),
        "adam_l2": updated(lambda weights: torch.optim.Adam(weights, 0.1, weight_decay=0.5)),
        "adamw": updated(lambda weights: torch.optim.AdamW(weights, 0.1, weight_decay=0.5)),
        "momentum": updated(lambda weights: torch.optim.SGD(weights, 0.1, momentum=0.9, weight_decay=0.5)),
        "rate": schedule.param_groups[0]["lr"],
    }


if __name__ == "__main__":
    np.savez(sys.argv[1], **norms(), **layers(), **optimizers())
