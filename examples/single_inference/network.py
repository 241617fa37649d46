"""The classifier that all scripts share, and how it can be cut."""

from __future__ import annotations

from mindspore import nn

from dataset import ARMS

CUTS = {"2.weight": 0, "2.bias": 0, "4.weight": 1}
"""The dimension along which a parameter is cut where the network is sharded; all others are whole on every rank."""


def make_network(ranks: int = 1) -> nn.Cell:
    """Return a small dense network: a point goes in, one score for each arm comes out; or a rank's slices of it."""
    hidden = 64 // ranks
    return nn.SequentialCell(nn.Dense(2, 64), nn.ReLU(), nn.Dense(64, hidden), nn.ReLU(), nn.Dense(hidden, ARMS))
