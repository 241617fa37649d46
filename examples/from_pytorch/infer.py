"""Serve the network on any number of ranks, each with its slices."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from mindspore import Tensor
from mslaunch.runtime import init_env, load_config, load_sharded

from dataset import held_out_points
from network import Network


def main() -> None:
    cfg = load_config(Path(__file__).with_name("config.yaml"))
    rank = init_env(cfg)
    network = Network(cfg.device_num).set_train(False)
    load_sharded(network)
    points, arms = held_out_points()
    scores = network(Tensor(points)).asnumpy()
    print(f"rank {rank}: accuracy {(scores.argmax(axis=1) == arms).mean():.4f}")
    if rank == 0:
        np.save(Path(os.environ.get("MSLAUNCH_SUBMIT_DIR", ""), "scores.npy"), scores)


if __name__ == "__main__":
    main()
