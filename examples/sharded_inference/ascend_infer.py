"""infer.py for Ascend, where MindSpore cuts the network by itself (semi_auto_parallel). Not run on an NPU."""

from __future__ import annotations

from pathlib import Path

from mindspore import Tensor
from mindspore.train import Model
from mslaunch.runtime import distributed_predict, init_env, load_config

from ascend_network import make_ascend_network
from dataset import make_sequences
from infer import report


def main() -> None:
    cfg = load_config(Path(__file__).with_name("ascend.yaml"))
    init_env(cfg)
    sequences, following = make_sequences(cfg.infer_samples, cfg.seed + 1)
    scores = distributed_predict(Model(make_ascend_network(cfg)), Tensor(sequences))
    report(scores.asnumpy(), following, cfg)


if __name__ == "__main__":
    main()
