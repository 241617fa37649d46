"""Train on with the imported weights, on any number of ranks, each with its own share of the data."""

from __future__ import annotations

import os
from pathlib import Path

import mindspore as ms
from mindspore import nn
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import LossMonitor, Model
from mslaunch.runtime import init_env, load_config

from dataset import make_points
from network import Network


def main() -> None:
    cfg = load_config(Path(__file__).with_name("config.yaml"))
    rank = init_env(cfg)
    here = Path(os.environ.get("MSLAUNCH_SUBMIT_DIR", ""))
    network = Network()
    ms.load_checkpoint(str(here / cfg.checkpoint), network)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    model = Model(network, loss, nn.Adam(network.trainable_params(), cfg.learning_rate))
    points = NumpySlicesDataset(
        make_points(cfg.train_samples, cfg.seed), ["point", "label"], num_shards=cfg.device_num, shard_id=rank
    )
    batches = points.batch(cfg.batch_size, drop_remainder=True)
    model.train(cfg.epochs, batches, [LossMonitor(batches.get_dataset_size())], dataset_sink_mode=False)
    if rank == 0:  # parameters are the same on all ranks; BatchNorm's averages are those of rank 0
        ms.save_checkpoint(network, str(here / cfg.tuned))


if __name__ == "__main__":
    main()
