"""A small transformer whose large matrices are cut over the ranks, and the collectives that this takes."""

from __future__ import annotations

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mslaunch.runtime import Config

from dataset import HOURS, LENGTH

# Which dimension of a parameter is cut, by the end of its name; all others are whole on every rank.
# An optimizer calls its state after the parameter ("moment1.blocks.0.up.weight"), so this holds for the state as well.
CUTS = {
    "query.weight": 0,
    "key.weight": 0,
    "value.weight": 0,
    "out.weight": 1,
    "up.weight": 0,
    "up.bias": 0,
    "down.weight": 1,
}


def make_network(cfg: Config) -> Network:
    """Return this rank's part of the network, with its slices of the parameters that `cfg.seed` makes."""
    for name in ("heads", "hidden"):
        if cfg[name] % cfg.device_num:
            raise ValueError(f"{name}: {cfg[name]} cannot be shared evenly by {cfg.device_num} ranks")
    network = Network(cfg)
    random = np.random.default_rng(cfg.seed)
    cuts = find_cuts(network)
    for parameter in network.get_parameters():
        if parameter.ndim == 1:
            continue  # norms and biases begin as ones and zeros
        shape, cut = list(parameter.shape), cuts.get(parameter.name)
        if cut is not None:
            shape[cut] *= cfg.device_num
        # Every rank draws the whole, so that the network is the same however many ranks share it.
        whole = random.normal(scale=shape[-1] ** -0.5, size=shape).astype(np.float32)
        part = whole if cut is None else np.split(whole, cfg.device_num, axis=cut)[cfg.rank_id]
        parameter.set_data(Tensor(part))
    return network


def find_cuts(network: nn.Cell) -> dict[str, int]:
    """Return the dimension along which each cut parameter is cut."""
    names = [parameter.name for parameter in network.get_parameters()]
    return {name: cut for name in names for end, cut in CUTS.items() if name.endswith(end)}


class Network(nn.Cell):
    """A sequence of numbers goes in, one score for each number that may come next comes out."""

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.numbers = nn.Embedding(HOURS, cfg.width)
        self.positions = Parameter(np.zeros((LENGTH, cfg.width), np.float32), name="positions")
        self.blocks = nn.SequentialCell(*[Block(cfg) for _ in range(cfg.blocks)])
        self.norm = nn.LayerNorm([cfg.width])
        self.head = nn.Dense(cfg.width, HOURS, bias_init="zeros")

    def construct(self, sequence: Tensor) -> Tensor:
        x = self.blocks(self.numbers(sequence) + self.positions)
        return self.head(self.norm(x[:, -1]))


class Block(nn.Cell):
    """Attention, of which each rank has some of the heads, and an MLP, of which it has some of the hidden units."""

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        width, hidden = cfg.width // cfg.device_num, cfg.hidden // cfg.device_num
        self.head_size = cfg.width // cfg.heads
        self.attention_norm = nn.LayerNorm([cfg.width])
        self.query = nn.Dense(cfg.width, width, has_bias=False)
        self.key = nn.Dense(cfg.width, width, has_bias=False)
        self.value = nn.Dense(cfg.width, width, has_bias=False)
        self.out = nn.Dense(width, cfg.width, has_bias=False)
        self.mlp_norm = nn.LayerNorm([cfg.width])
        self.up = nn.Dense(cfg.width, hidden, bias_init="zeros")
        self.down = nn.Dense(hidden, cfg.width, has_bias=False)
        # Operators, not functions: on Ascend each of them is told how it is cut.
        self.split_heads, self.join_heads = ops.Transpose(), ops.Transpose()
        self.compare, self.mix = ops.BatchMatMul(transpose_b=True), ops.BatchMatMul()
        self.scale, self.softmax, self.gelu = ops.Mul(), ops.Softmax(), ops.GeLU()
        # A rank that is alone has the whole network and nobody to talk to.
        self.enter = Enter() if cfg.device_num > 1 else nn.Identity()
        self.leave = Leave() if cfg.device_num > 1 else nn.Identity()

    def construct(self, x: Tensor) -> Tensor:
        x = x + self.leave(self.attend(self.enter(self.attention_norm(x))))
        return x + self.leave(self.down(self.gelu(self.up(self.enter(self.mlp_norm(x))))))

    def attend(self, x: Tensor) -> Tensor:
        query, key, value = self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x))
        weights = self.softmax(self.scale(self.compare(query, key), self.head_size**-0.5))
        mixed = self.join_heads(self.mix(weights, value), (0, 2, 1, 3))
        return self.out(mixed.reshape(-1, LENGTH, self.out.in_channels))

    def heads(self, x: Tensor) -> Tensor:
        """Return one matrix for each head that this rank has."""
        return self.split_heads(x.reshape(-1, LENGTH, x.shape[-1] // self.head_size, self.head_size), (0, 2, 1, 3))


class Enter(nn.Cell):
    """From whole activations to cut matrices. Each rank's gradient is only that of its slices, so they are summed."""

    def __init__(self) -> None:
        super().__init__()
        self.sum = ops.AllReduce()

    def construct(self, x: Tensor) -> Tensor:
        return x

    def bprop(self, _x: Tensor, _out: Tensor, dout: Tensor) -> tuple[Tensor]:
        return (self.sum(dout),)


class Leave(nn.Cell):
    """From what the slices yield to their sum, the whole. Its gradient is whole on every rank and goes back as it is;
    the backward of a bare AllReduce would sum it once more, and make it too large by the number of ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.sum = ops.AllReduce()

    def construct(self, x: Tensor) -> Tensor:
        return self.sum(x)

    def bprop(self, _x: Tensor, _out: Tensor, dout: Tensor) -> tuple[Tensor]:
        return (dout,)
