"""Measure the accuracy of the checkpoint that train.py has written."""

from __future__ import annotations

import os
from pathlib import Path

import mindspore as ms
from mindspore import nn
from mindspore.train import Model
from mslaunch.runtime import init_env, load_config

from dataset import held_out_dataset
from network import make_network


def main() -> None:
    cfg = load_config(Path(__file__).with_name("config.yaml"))
    rank = init_env(cfg)
    network = make_network()
    ms.load_checkpoint(str(Path(os.environ.get("MSLAUNCH_SUBMIT_DIR", ""), cfg.checkpoint)), network)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    model = Model(network, loss, metrics={"accuracy"})
    accuracy = model.eval(held_out_dataset(cfg.held_out_samples, cfg.seed), dataset_sink_mode=False)["accuracy"]
    print(f"rank {rank}: accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
