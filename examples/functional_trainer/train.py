"""Train with a hand-written step on any number of ranks: two losses, gradients averaged over the ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import mindspore as ms
from mindspore import Tensor, nn
from mindspore.dataset import Dataset
from mslaunch.runtime import Config, init_env, load_config

from dataset import held_out_dataset, train_dataset
from network import Network

Step = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


def main() -> None:
    cfg = load_config(Path(__file__).with_name("config.yaml"))
    rank = init_env(cfg)
    network = Network()
    held_out = held_out_dataset(cfg.held_out_samples, cfg.seed)
    train(network, held_out, cfg, rank)
    print(f"rank {rank}: accuracy {measure(network, held_out):.4f}")
    print(f"rank {rank}: parameters {fingerprint(network)}")


def train(network: nn.Cell, held_out: Dataset, cfg: Config, rank: int) -> None:
    """Train on this rank's share of the data, and keep the network of the best epoch in best.ckpt."""
    dataset = train_dataset(cfg.train_samples, cfg.seed, cfg.batch_size, num_shards=cfg.device_num, shard_id=rank)
    # One iterator for all epochs: a new one would begin with the seed again and shuffle every epoch alike.
    batches = dataset.create_tuple_iterator(num_epochs=cfg.epochs)
    step = make_step(network, cfg)
    best = 0.0
    for epoch in range(1, cfg.epochs + 1):
        network.set_train()
        for picture, label in batches:
            loss, classification, reconstruction = step(picture, label)
        accuracy = measure(network, held_out)
        # mslaunch reads its status line from lines that begin as LossMonitor's do.
        print(
            f"epoch: {epoch} step: {dataset.get_dataset_size()}, loss is {float(loss):.4f}, "
            f"classification {float(classification):.4f}, reconstruction {float(reconstruction):.4f}, "
            f"held-out accuracy {accuracy:.4f}"
        )
        # All ranks hold the same parameters, so one of them writes for all.
        if rank == 0 and accuracy > best:
            best = accuracy
            ms.save_checkpoint(network, "best.ckpt", append_dict={"epoch": epoch, "accuracy": accuracy})
            print(f"best.ckpt: epoch {epoch}, accuracy {accuracy:.4f}")


def make_step(network: nn.Cell, cfg: Config) -> Step:
    """Return the function that takes one step and returns the whole loss and its two parts."""
    classification_loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    reconstruction_loss = nn.MSELoss()
    reconstruction_weight = cfg.reconstruction_weight
    optimizer = nn.Adam(network.trainable_params(), cfg.learning_rate)
    # A job of one rank has no communication group to average over.
    average = nn.DistributedGradReducer(optimizer.parameters) if cfg.device_num > 1 else None

    def forward(picture: Tensor, label: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores, redrawn = network(picture)
        classification = classification_loss(scores, label)
        reconstruction = reconstruction_loss(redrawn, picture)
        return classification + reconstruction_weight * reconstruction, classification, reconstruction

    # has_aux: gradients are those of the first value alone, the two parts are only passed through.
    forward_and_gradients = ms.value_and_grad(forward, None, optimizer.parameters, has_aux=True)

    def step(picture: Tensor, label: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        losses, gradients = forward_and_gradients(picture, label)
        if average is not None:
            gradients = average(gradients)
        optimizer(gradients)
        return losses

    return step


def measure(network: nn.Cell, dataset: Dataset) -> float:
    """Return the share of pictures whose stripes are named rightly."""
    network.set_train(False)
    right = total = 0
    for picture, label in dataset.create_tuple_iterator():
        scores, _ = network(picture)
        right += int((scores.asnumpy().argmax(axis=1) == label.asnumpy()).sum())
        total += len(label)
    return right / total


def fingerprint(network: nn.Cell) -> str:
    """Hash all parameters: ranks that print the same value hold the same network, bit for bit."""
    digest = hashlib.sha256()
    for parameter in network.get_parameters():
        digest.update(parameter.asnumpy().tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    main()
