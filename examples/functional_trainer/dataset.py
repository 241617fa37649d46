"""Noisy pictures of stripes in four directions, made from a seed: nothing is downloaded."""

from __future__ import annotations

import numpy as np
from mindspore.dataset import GeneratorDataset

SIDE = 8
DIRECTIONS = 4


class Stripes:
    """Pictures that can be asked for by number, as GeneratorDataset wants them."""

    def __init__(self, samples: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.labels = random.integers(DIRECTIONS, size=samples).astype(np.int32)
        angle = (self.labels * np.pi / DIRECTIONS)[:, None, None]
        phase = random.uniform(0, 2 * np.pi, size=(samples, 1, 1))
        row, column = np.mgrid[:SIDE, :SIDE]
        stripes = np.sin(column * np.cos(angle) + row * np.sin(angle) + phase)
        noise = random.normal(scale=1.2, size=stripes.shape)
        self.pictures = (stripes + noise).reshape(samples, SIDE * SIDE).astype(np.float32)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return self.pictures[index], self.labels[index]

    def __len__(self) -> int:
        return len(self.labels)


def train_dataset(samples: int, seed: int, batch_size: int, num_shards: int, shard_id: int) -> GeneratorDataset:
    """Return this rank's share of the training pictures, in batches."""
    # All ranks shuffle with the seed that init_env has set, so they cut one and the same order into shares.
    dataset = GeneratorDataset(
        Stripes(samples, seed), ["picture", "label"], shuffle=True, num_shards=num_shards, shard_id=shard_id
    )
    # With batches of one shape, graph mode compiles the network once.
    return dataset.batch(batch_size, drop_remainder=True)


def held_out_dataset(samples: int, seed: int) -> GeneratorDataset:
    """Return pictures that no rank trains on, all of them on every rank."""
    # A seed of its own makes these pictures different from those of training.
    return GeneratorDataset(Stripes(samples, seed + 1), ["picture", "label"], shuffle=False).batch(samples)
