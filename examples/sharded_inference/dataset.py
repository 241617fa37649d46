"""Counting in steps, around a clock: a sequence and the number that comes next. Nothing is downloaded."""

from __future__ import annotations

import numpy as np
from mindspore.dataset import NumpySlicesDataset

HOURS = 24
LENGTH = 8
STRIDES = 6


def make_sequences(samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return `samples` sequences of LENGTH numbers, and for each the next number."""
    random = np.random.default_rng(seed)
    start = random.integers(HOURS, size=(samples, 1))
    stride = random.integers(1, STRIDES + 1, size=(samples, 1))
    numbers = ((start + stride * np.arange(LENGTH + 1)) % HOURS).astype(np.int32)
    return numbers[:, :LENGTH], numbers[:, LENGTH]


def train_dataset(samples: int, seed: int, batch_size: int) -> NumpySlicesDataset:
    """Return the training sequences in batches, the same on every rank: the ranks share the network, not the data."""
    # All ranks shuffle with the seed that init_env has set.
    dataset = NumpySlicesDataset(make_sequences(samples, seed), ["sequence", "next"], shuffle=True)
    # With batches of one shape, graph mode compiles the network once.
    return dataset.batch(batch_size, drop_remainder=True)
