"""Noisy pictures of stripes in four directions, given out by a sampler of our own: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from mindspore.dataset import GeneratorDataset, Sampler

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


class ShardSampler(Sampler):
    """This rank's share of the pictures, in another order each epoch; all ranks get equally many."""

    def __init__(self, samples: int, seed: int, num_shards: int, shard_id: int) -> None:
        super().__init__(num_samples=samples // num_shards)
        self.samples, self.seed, self.num_shards, self.shard_id = samples, seed, num_shards, shard_id
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        # One order for all ranks, so that no picture is given to two of them.
        order = np.random.default_rng((self.seed, self.epoch)).permutation(self.samples)
        self.epoch += 1
        share = self.samples // self.num_shards
        return iter(order[self.shard_id :: self.num_shards][:share].tolist())


def train_dataset(samples: int, seed: int, batch_size: int, num_shards: int, shard_id: int) -> GeneratorDataset:
    """Return this rank's share of the training pictures, in batches."""
    # A dataset takes either a sampler or num_shards: the sampler cuts the shares.
    sampler = ShardSampler(samples, seed, num_shards, shard_id)
    dataset = GeneratorDataset(Stripes(samples, seed), ["picture", "label"], sampler=sampler)
    # With batches of one shape, graph mode compiles the network once.
    return dataset.batch(batch_size, drop_remainder=True)


def held_out_dataset(samples: int, seed: int) -> GeneratorDataset:
    """Return pictures that no rank trains on, all of them on every rank."""
    return GeneratorDataset(Stripes(samples, seed + 1), ["picture", "label"], shuffle=False).batch(samples)
