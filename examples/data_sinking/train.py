"""Train with data sinking, by Model.train or by a loop of our own, and evaluate while training."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore import nn
from mindspore.dataset import Dataset
from mindspore.train import Callback, LossMonitor, Model
from mslaunch.runtime import Config, init_env, load_config

from dataset import held_out_dataset, train_dataset
from network import Hits, TrainStep, make_network


def main() -> None:
    cfg = load_config(Path(__file__).with_name("config.yaml"))
    rank = init_env(cfg)
    network = make_network()
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optimizer = nn.Adam(network.trainable_params(), cfg.learning_rate)
    step = TrainStep(nn.WithLossCell(network, loss), optimizer, cfg.clip).set_train()
    dataset = train_dataset(cfg.train_samples, cfg.seed, cfg.batch_size, num_shards=cfg.device_num, shard_id=rank)
    evaluation = Evaluation(network, held_out_dataset(cfg.held_out_samples, cfg.seed), rank)
    loops = {"model": train_by_model, "custom": train_by_hand}
    loops[cfg.loop](step, dataset, evaluation, cfg, can_sink(cfg, rank))
    print(f"rank {rank}: parameters {fingerprint(network)}")


class Evaluation(Callback):
    """Measures the network after every epoch, on the device."""

    def __init__(self, network: nn.Cell, dataset: Dataset, rank: int) -> None:
        super().__init__()
        self.hits, self.dataset, self.rank = Hits(network), dataset, rank

    def on_train_epoch_end(self, run_context: Any) -> None:
        self.measure(run_context.original_args().cur_epoch_num)

    def measure(self, epoch: int) -> None:
        self.hits.set_train(False)
        right, count = 0.0, 0
        for picture, label in self.dataset.create_tuple_iterator(num_epochs=1):
            right += float(self.hits(picture, label))
            count += len(label)
        self.hits.set_train(True)
        print(f"rank {self.rank}: epoch {epoch}, accuracy {right / count:.4f}")


def can_sink(cfg: Config, rank: int) -> bool:
    """Say whether the device takes many steps at once: Ascend and GPU do in graph mode, a CPU does not."""
    target = ms.get_context("device_target")
    if cfg.sink and target == "CPU":
        print(f"rank {rank}: a CPU has no data sinking, so each step returns to Python")
    return bool(cfg.sink) and target != "CPU"


def train_by_model(step: nn.Cell, dataset: Dataset, evaluation: Evaluation, cfg: Config, sink: bool) -> None:
    """Let Model drive our own step."""
    callbacks = [LossMonitor(dataset.get_dataset_size()), evaluation]
    Model(step).train(cfg.epochs, dataset, callbacks, dataset_sink_mode=sink)


def train_by_hand(step: nn.Cell, dataset: Dataset, evaluation: Evaluation, cfg: Config, sink: bool) -> None:
    """Drive it ourselves: with sinking a call is an epoch, without it a step."""
    steps = dataset.get_dataset_size()
    if sink:
        sunk = ms.data_sink(step, dataset, sink_size=steps, jit_config=ms.JitConfig())
        for epoch in range(1, cfg.epochs + 1):
            sunk()
            evaluation.measure(epoch)
        return
    batches = dataset.create_tuple_iterator(num_epochs=cfg.epochs)
    for epoch in range(1, cfg.epochs + 1):
        for picture, label in batches:
            step(picture, label)
        evaluation.measure(epoch)


def fingerprint(network: nn.Cell) -> str:
    """Hash all parameters: ranks that print the same value hold the same network, bit for bit."""
    digest = hashlib.sha256()
    for parameter in network.get_parameters():
        digest.update(parameter.asnumpy().tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    main()
