"""The classifier that training and evaluation share."""

from __future__ import annotations

from mindspore import nn

from dataset import ARMS


def make_network() -> nn.Cell:
    """Return a small dense network: a point goes in, one score for each arm comes out."""
    return nn.SequentialCell(nn.Dense(2, 64), nn.ReLU(), nn.Dense(64, 64), nn.ReLU(), nn.Dense(64, ARMS))
