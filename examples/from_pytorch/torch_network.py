"""The network in PyTorch."""

from __future__ import annotations

import torch
from torch import nn

from dataset import ARMS


class Network(nn.Module):
    """A point goes in, one score for each arm comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(2, 64)
        self.norm = nn.BatchNorm1d(64)
        self.relu = nn.ReLU()
        self.up = nn.Linear(64, 128)
        self.down = nn.Linear(128, 64, bias=False)
        self.head = nn.Linear(64, ARMS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.norm(self.stem(x)))
        return self.head(x + self.down(self.relu(self.up(x))))
