"""train.py for Ascend, where MindSpore cuts the network by itself (semi_auto_parallel). Not run on an NPU."""

from __future__ import annotations

import os
from pathlib import Path

import mindspore as ms
from mindspore import nn
from mindspore.train import CheckpointConfig, LossMonitor, Model, ModelCheckpoint
from mslaunch.runtime import init_env, load_config

from ascend_network import make_ascend_network
from dataset import train_dataset


def main() -> None:
    cfg = load_config(Path(__file__).with_name("ascend.yaml"))
    rank = init_env(cfg)
    place = Path(os.environ.get("MSLAUNCH_SUBMIT_DIR", ""), cfg.checkpoints)
    if cfg.device_num > 1:
        cut_automatically(place / "strategy.ckpt", rank)
    network = make_ascend_network(cfg)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    model = Model(network, loss, nn.Adam(network.trainable_params(), cfg.learning_rate))
    dataset = train_dataset(cfg.train_samples, cfg.seed, cfg.batch_size)
    slices = CheckpointConfig(dataset.get_dataset_size(), keep_checkpoint_max=2, integrated_save=False)
    checkpoints = ModelCheckpoint("net", str(place / f"rank_{rank}"), slices)
    model.train(cfg.epochs, dataset, [LossMonitor(5), checkpoints], dataset_sink_mode=False)


def cut_automatically(strategy: Path, rank: int) -> None:
    """Have MindSpore cut the network by its operators' strategies, and write down how it cut the parameters."""
    ms.reset_auto_parallel_context()  # init_env has set up data parallelism
    # full_batch: every rank sees the same batches.
    ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.SEMI_AUTO_PARALLEL, full_batch=True)
    if rank == 0:  # all ranks would write the same
        strategy.parent.mkdir(parents=True, exist_ok=True)
        ms.set_auto_parallel_context(strategy_ckpt_save_file=str(strategy))


if __name__ == "__main__":
    main()
