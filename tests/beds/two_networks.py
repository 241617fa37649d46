"""One small network as PyTorch and as MindSpore name its parameters."""

from __future__ import annotations

import numpy as np

from tests.beds.sharded import Content


def floats(*shape: int) -> tuple[str, tuple[int, ...], bytes]:
    count = int(np.prod(shape))
    return "Float32", shape, np.arange(count, dtype=np.float32).tobytes()


TORCH: Content = {
    "emb.weight": floats(10, 4),
    "conv.weight": floats(4, 2, 3),
    "norm.weight": floats(4),
    "norm.bias": floats(4),
    "bn.weight": floats(4),
    "bn.bias": floats(4),
    "bn.running_mean": floats(4),
    "bn.running_var": floats(4),
    "bn.num_batches_tracked": ("Int64", (), b"\1" + bytes(7)),
    "fc.weight": floats(3, 4),
    "fc.bias": floats(3),
}
MINDSPORE: Content = {
    "emb.embedding_table": floats(10, 4),
    "conv.weight": floats(4, 2, 1, 3),
    "norm.gamma": floats(4),
    "norm.beta": floats(4),
    "bn.gamma": floats(4),
    "bn.beta": floats(4),
    "bn.moving_mean": floats(4),
    "bn.moving_variance": floats(4),
    "fc.weight": floats(3, 4),
    "fc.bias": floats(3),
}


def zeros(content: Content) -> Content:
    """The same network before it was trained."""
    return {name: (dtype, shape, bytes(len(data))) for name, (dtype, shape, data) in content.items()}
