"""Points on the arms of a spiral, made from a seed: nothing is downloaded."""

from __future__ import annotations

import numpy as np
from mindspore.dataset import NumpySlicesDataset

ARMS = 3


def make_points(samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return `samples` points of the plane, and for each the arm it lies on."""
    random = np.random.default_rng(seed)
    labels = random.integers(ARMS, size=samples)
    radius = random.uniform(0.1, 1.0, size=samples)
    angle = 4 * radius + 2 * np.pi * labels / ARMS + random.normal(scale=0.3, size=samples)
    points = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return points.astype(np.float32), labels.astype(np.int32)


def train_dataset(samples: int, seed: int, batch_size: int, num_shards: int, shard_id: int) -> NumpySlicesDataset:
    """Return this rank's share of the training points, in batches."""
    # All ranks shuffle with the seed that init_env has set, so they cut one and the same order into shares.
    dataset = NumpySlicesDataset(
        make_points(samples, seed), ["point", "label"], shuffle=True, num_shards=num_shards, shard_id=shard_id
    )
    # With batches of one shape, graph mode compiles the network once.
    return dataset.batch(batch_size, drop_remainder=True)


def held_out_dataset(samples: int, seed: int) -> NumpySlicesDataset:
    """Return points that no rank trains on, all of them on every rank."""
    # A seed of its own makes these points different from those of training.
    return NumpySlicesDataset(make_points(samples, seed + 1), ["point", "label"], shuffle=False).batch(samples)
