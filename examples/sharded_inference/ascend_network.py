"""The network for Ascend: written down whole, and cut by MindSpore as its operators say. Not run on an NPU."""

from __future__ import annotations

from mindspore import nn
from mslaunch.runtime import Config

from network import Block, make_network


def make_ascend_network(cfg: Config) -> nn.Cell:
    """Return the whole network, whose operators are to be cut over all ranks."""
    network = make_network(Config({**cfg, "device_num": 1, "rank_id": 0}))
    for block in network.blocks:
        cut(block, cfg.device_num)
    return network


def cut(block: Block, ranks: int) -> None:
    """Say into how many parts each dimension of each operator's inputs is cut, as CUTS does for the parameters.

    MindSpore adds the collectives. Operators that are not named here it runs data parallel.
    """
    for layer in (block.query, block.key, block.value, block.up):
        layer.matmul.shard(((1, 1), (ranks, 1)))
    for layer in (block.out, block.down):
        layer.matmul.shard(((1, ranks), (1, ranks)))
    block.up.bias_add.shard(((1, ranks), (ranks,)))
    block.gelu.shard(((1, 1, ranks),))
    heads = (1, ranks, 1, 1)
    block.split_heads.shard(((1, 1, ranks, 1),))
    block.compare.shard((heads, heads))
    block.scale.shard((heads, ()))
    block.softmax.shard((heads,))
    block.mix.shard((heads, heads))
    block.join_heads.shard((heads,))
