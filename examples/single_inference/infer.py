"""Classify points on any number of ranks: each loads the whole network, and takes its own share of the points."""

from __future__ import annotations

import os
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mslaunch.runtime import Config, init_env, load_config, load_sharded

from dataset import make_points
from network import make_network


def main() -> None:
    cfg = load_config(Path(__file__).with_name("config.yaml"))
    init_env(cfg)
    network = make_network().set_train(False)
    load(network, cfg)
    points, arms = make_points(cfg.held_out_samples, cfg.seed + 1)
    mine = slice(cfg.rank_id, None, cfg.device_num)
    found = network(Tensor(points[mine])).asnumpy().argmax(axis=1)
    report(found, arms[mine], cfg)


def load(network: nn.Cell, cfg: Config) -> None:
    """Load what `mslaunch infer` has chosen, merged where it was sharded; without it, the file of the configuration."""
    if "MSLAUNCH_CHECKPOINTS" in os.environ:
        load_sharded(network)
    else:
        ms.load_checkpoint(cfg.checkpoint, network)


def report(found: np.ndarray, arms: np.ndarray, cfg: Config) -> None:
    """Keep this rank's answers, and say how many are right on all ranks together."""
    folder = Path(os.environ.get("MSLAUNCH_SUBMIT_DIR", ""), cfg.output)
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / f"rank_{cfg.rank_id}.npy", found)
    right = Tensor([int((found == arms).sum())], ms.float32)
    if cfg.device_num > 1:
        right = ops.AllReduce()(right)
    print(f"rank {cfg.rank_id}: {len(found)} points here; {int(right[0])} of {cfg.held_out_samples} right on all ranks")


if __name__ == "__main__":
    main()
