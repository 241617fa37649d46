"""The same network in MindSpore: whole, or a rank's slices of it."""

from __future__ import annotations

from mindspore import Tensor, nn, ops

from dataset import ARMS

CUTS = {"up.weight": 0, "up.bias": 0, "down.weight": 1}
"""The dimension along which a parameter is cut where the network is sharded; all others are whole on every rank."""


class Network(nn.Cell):
    """A point goes in, one score for each arm comes out; `ranks` ranks share the hidden units."""

    def __init__(self, ranks: int = 1) -> None:
        super().__init__()
        self.stem = nn.Dense(2, 64)
        self.norm = nn.BatchNorm1d(64)  # momentum 0.9 here is 0.1 in PyTorch: both are the default
        self.relu = nn.ReLU()
        self.up = nn.Dense(64, 128 // ranks)
        self.down = nn.Dense(128 // ranks, 64, has_bias=False)
        self.sum = ops.AllReduce() if ranks > 1 else nn.Identity()
        self.head = nn.Dense(64, ARMS)

    def construct(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.stem(x)))
        return self.head(x + self.sum(self.down(self.relu(self.up(x)))))
