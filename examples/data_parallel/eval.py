"""Measure the accuracy of a checkpoint that train.py has written."""

from __future__ import annotations

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
    checkpoint = newest(cfg.checkpoint)
    network = make_network()
    ms.load_checkpoint(str(checkpoint), network)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    model = Model(network, loss, metrics={"accuracy"})
    accuracy = model.eval(held_out_dataset(cfg.held_out_samples, cfg.seed), dataset_sink_mode=False)["accuracy"]
    print(f"rank {rank}: checkpoint {checkpoint.name}")
    print(f"rank {rank}: accuracy {accuracy:.4f}")


def newest(checkpoint: str) -> Path:
    """Return the checkpoint itself, or the newest one of a folder."""
    if not checkpoint:
        raise SystemExit("Which checkpoint? Give --checkpoint FILE or --checkpoint FOLDER.")
    path = Path(checkpoint).absolute()
    found = [path] if path.is_file() else sorted(path.glob("*.ckpt"), key=lambda file: file.stat().st_mtime)
    if not found:
        raise SystemExit(f"{path}: neither a checkpoint nor a folder that holds one.")
    return found[-1]


if __name__ == "__main__":
    main()
