"""In PyTorch's environment: load the weights that were exported, and compare the scores with those of infer.py."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from dataset import held_out_points
from torch_network import Network


def main() -> None:
    network = Network()
    # BatchNorm's counter of batches is PyTorch's alone, so the file does not hold it.
    missing, unexpected = network.load_state_dict(load("back.safetensors"), strict=False)
    assert not unexpected
    assert all(name.endswith("num_batches_tracked") for name in missing)
    with torch.no_grad():
        scores = network.eval()(torch.from_numpy(held_out_points()[0])).numpy()
    np.testing.assert_allclose(scores, np.load("scores.npy"), rtol=1e-4, atol=1e-4)
    print("PyTorch: the same scores as MindSpore")


def load(path: str) -> dict[str, torch.Tensor]:
    """Read float32 weights; `safetensors.torch.load_file` does the same for all types."""
    data = Path(path).read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    rows = json.loads(data[8:begin])
    rows.pop("__metadata__", None)
    return {
        name: torch.from_numpy(
            np.frombuffer(data, np.float32, int(np.prod(row["shape"])), begin + row["data_offsets"][0])
            .reshape(row["shape"])
            .copy()
        )
        for name, row in rows.items()
    }


if __name__ == "__main__":
    main()
