"""Run a network that train.py has saved in slices, on as many ranks as there are slices; also on one."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
from mindspore import Tensor
from mslaunch.runtime import init_env, load_config, load_sharded

from dataset import make_sequences
from network import make_network


def main() -> None:
    cfg = load_config(Path(__file__).with_name("config.yaml"))
    rank = init_env(cfg)
    network = make_network(cfg).set_train(False)
    load_sharded(network)
    # A seed of its own makes other sequences than those of training.
    sequences, following = make_sequences(cfg.infer_samples, cfg.seed + 1)
    scores = network(Tensor(sequences)).asnumpy()
    numbers = scores.argmax(axis=1).astype(np.int32)
    print(f"rank {rank}: {(numbers == following).sum()} of {len(following)} sequences continued rightly")
    print(f"rank {rank}: numbers {hashlib.sha256(numbers.tobytes()).hexdigest()}")
    if rank == 0:
        np.save(Path(os.environ.get("MSLAUNCH_SUBMIT_DIR", ""), cfg.output), scores)


if __name__ == "__main__":
    main()
