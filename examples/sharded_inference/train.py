"""Train a network that the ranks share: each holds slices of its matrices, and keeps checkpoints of its own."""

from __future__ import annotations

import os
from pathlib import Path

import mindspore as ms
from mindspore import nn
from mindspore.train import CheckpointConfig, LossMonitor, Model, ModelCheckpoint
from mslaunch.runtime import Config, init_env, load_config, save_strategy

from dataset import train_dataset
from network import find_cuts, make_network


def main() -> None:
    cfg = load_config(Path(__file__).with_name("config.yaml"))
    rank = init_env(cfg)
    # init_env has set up data parallelism, which would average the gradients of slices that have nothing in common.
    ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.STAND_ALONE)
    network = make_network(cfg)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    model = Model(network, loss, nn.Adam(network.trainable_params(), cfg.learning_rate))
    train(model, cfg, rank)


def train(model: Model, cfg: Config, rank: int) -> None:
    """Train on the same batches as all other ranks, and keep this rank's slices after every epoch."""
    # All ranks write below one folder, which has to be the same for all of them.
    place = Path(os.environ.get("MSLAUNCH_SUBMIT_DIR", ""), cfg.checkpoints)
    # Without this file nobody could put the slices together again, or cut them anew for another number of ranks.
    save_strategy(str(place / "strategy.json"), model.train_network, find_cuts(model.train_network))
    dataset = train_dataset(cfg.train_samples, cfg.seed, cfg.batch_size)
    slices = CheckpointConfig(dataset.get_dataset_size(), keep_checkpoint_max=2, integrated_save=False)
    checkpoints = ModelCheckpoint("net", str(place / f"rank_{rank}"), slices)
    model.train(cfg.epochs, dataset, [LossMonitor(5), checkpoints], dataset_sink_mode=False)


if __name__ == "__main__":
    main()
