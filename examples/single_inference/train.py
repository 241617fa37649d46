"""Train a small classifier on any number of ranks; rank 0 keeps it as one plain checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

import mindspore as ms
from mindspore import nn
from mindspore.train import LossMonitor, Model
from mslaunch.runtime import init_env, load_config

from dataset import train_dataset
from network import make_network


def main() -> None:
    cfg = load_config(Path(__file__).with_name("config.yaml"))
    rank = init_env(cfg)
    network = make_network()
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    model = Model(network, loss, nn.Adam(network.trainable_params(), cfg.learning_rate))
    dataset = train_dataset(cfg.train_samples, cfg.seed, cfg.batch_size, num_shards=cfg.device_num, shard_id=rank)
    model.train(cfg.epochs, dataset, [LossMonitor(dataset.get_dataset_size())], dataset_sink_mode=False)
    if rank == 0:  # all ranks hold the same network
        path = Path(os.environ.get("MSLAUNCH_SUBMIT_DIR", ""), cfg.checkpoint)
        ms.save_checkpoint(network, str(path))
        print(f"rank 0: wrote {path.name}")


if __name__ == "__main__":
    main()
