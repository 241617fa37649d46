"""A classifier that also redraws its input, so that two losses can teach one encoder."""

from __future__ import annotations

from mindspore import Tensor, nn

from dataset import DIRECTIONS, SIDE


class Network(nn.Cell):
    """An encoder with two heads: one names the direction of the stripes, one redraws the picture."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.SequentialCell(nn.Dense(SIDE * SIDE, 32), nn.ReLU())
        self.classifier = nn.Dense(32, DIRECTIONS)
        self.decoder = nn.Dense(32, SIDE * SIDE)

    def construct(self, picture: Tensor) -> tuple[Tensor, Tensor]:
        code = self.encoder(picture)
        return self.classifier(code), self.decoder(code)
