"""Train a small classifier on any number of ranks, each with its own share of the data."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import mindspore as ms
from mindspore import nn
from mindspore.train import CheckpointConfig, LossMonitor, Model, ModelCheckpoint, TimeMonitor
from mslaunch.runtime import Config, init_env, load_config, resume

from dataset import held_out_dataset, train_dataset
from network import make_network


def main() -> None:
    cfg = load_config(Path(__file__).with_name("config.yaml"))
    rank = init_env(cfg)
    network = make_network()
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optimizer = nn.Adam(network.trainable_params(), cfg.learning_rate)
    model = Model(network, loss, optimizer, metrics={"accuracy"})
    train(model, cfg, rank, epochs_done=restore(network, optimizer))
    accuracy = model.eval(held_out_dataset(cfg.held_out_samples, cfg.seed), dataset_sink_mode=False)["accuracy"]
    print(f"rank {rank}: accuracy {accuracy:.4f}")
    print(f"rank {rank}: parameters {fingerprint(network)}")


def restore(network: nn.Cell, optimizer: nn.Optimizer) -> int:
    """After a restart, take over the checkpoint that all ranks have; return how many epochs it holds."""
    checkpoint = resume()
    if checkpoint is None:
        return 0
    values = ms.load_checkpoint(checkpoint)
    ms.load_param_into_net(network, values)
    ms.load_param_into_net(optimizer, values)
    print(f"resuming from {checkpoint}")
    return int(re.findall(r"-(\d+)_\d+\.ckpt$", checkpoint)[0])


def train(model: Model, cfg: Config, rank: int, epochs_done: int) -> None:
    """Train on this rank's share of the data; MindSpore averages the gradients over the ranks."""
    dataset = train_dataset(cfg.train_samples, cfg.seed, cfg.batch_size, num_shards=cfg.device_num, shard_id=rank)
    steps = dataset.get_dataset_size()
    # mslaunch runs every rank in a folder of its own, so a relative path keeps the ranks' checkpoints apart.
    checkpoints = ModelCheckpoint("spiral", "checkpoints", CheckpointConfig(steps, keep_checkpoint_max=2))
    callbacks = [LossMonitor(steps), TimeMonitor(), checkpoints]
    # The data goes on where the checkpoint was taken, so that a restarted training is the same as an unbroken one.
    dataset.set_init_step(epochs_done * steps)
    model.train(cfg.epochs, dataset, callbacks, dataset_sink_mode=False, initial_epoch=epochs_done)


def fingerprint(network: nn.Cell) -> str:
    """Hash all parameters: ranks that print the same value hold the same network, bit for bit."""
    digest = hashlib.sha256()
    for parameter in network.get_parameters():
        digest.update(parameter.asnumpy().tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    main()
