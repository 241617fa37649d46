"""Measure the imported weights, and record what each cell computes."""

from __future__ import annotations

import os
from pathlib import Path

import mindspore as ms
from mindspore import Tensor
from mslaunch.runtime import init_env, load_config
from mslaunch.runtime.trace import trace

from dataset import held_out_points
from network import Network


def main() -> None:
    cfg = load_config(Path(__file__).with_name("config.yaml"))
    init_env(cfg)
    here = Path(os.environ.get("MSLAUNCH_SUBMIT_DIR", ""))
    network = Network().set_train(False)
    ms.load_checkpoint(str(here / cfg.checkpoint), network, strict_load=True)
    points, arms = held_out_points()
    with trace(network, str(here / "ms_trace")):
        scores = network(Tensor(points)).asnumpy()
    print(f"MindSpore: accuracy {(scores.argmax(axis=1) == arms).mean():.4f}")


if __name__ == "__main__":
    main()
