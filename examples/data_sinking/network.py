"""The classifier, and a training step of our own as a cell."""

from __future__ import annotations

from mindspore import Tensor, nn, ops

from dataset import DIRECTIONS, SIDE


def make_network() -> nn.Cell:
    """Return a small dense network: a picture goes in, one score for each direction comes out."""
    return nn.SequentialCell(nn.Dense(SIDE * SIDE, 32), nn.ReLU(), nn.Dense(32, DIRECTIONS))


class TrainStep(nn.TrainOneStepCell):
    """One step with clipped gradients. The parent has `grad_reducer`, which averages over the ranks of a job."""

    def __init__(self, network: nn.Cell, optimizer: nn.Optimizer, clip: float) -> None:
        super().__init__(network, optimizer)
        self.clip = clip

    def construct(self, picture: Tensor, label: Tensor) -> Tensor:
        loss = self.network(picture, label)
        scale = ops.fill(loss.dtype, loss.shape, self.sens)  # the gradient that training begins with
        gradients = self.grad(self.network, self.weights)(picture, label, scale)
        gradients = self.grad_reducer(gradients)
        # Clipped after the average, so that all ranks scale alike.
        gradients = ops.clip_by_global_norm(gradients, self.clip)
        self.optimizer(gradients)
        return loss


class Hits(nn.Cell):
    """Counts right answers where the network runs: one number comes back, not all scores."""

    def __init__(self, network: nn.Cell) -> None:
        super().__init__()
        self.network = network

    def construct(self, picture: Tensor, label: Tensor) -> Tensor:
        right = ops.equal(ops.argmax(self.network(picture), dim=1), label)
        return ops.cast(right, picture.dtype).sum()
