"""In PyTorch's environment: train the network, save its weights, record what each module computes."""

from __future__ import annotations

import numpy as np
import torch
from mslaunch.runtime.trace import torch_trace
from torch.nn.functional import cross_entropy

from dataset import held_out_points, make_points
from torch_network import Network


def main() -> None:
    torch.manual_seed(1)
    network = Network()
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    points, arms = make_points(2400, 1)
    for batch in np.array_split(np.arange(len(points)), 75):
        loss = cross_entropy(network(torch.from_numpy(points[batch])), torch.from_numpy(arms[batch]).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(network.state_dict(), "model.pth")
    network.eval()
    points, arms = held_out_points()
    with torch.no_grad(), torch_trace(network, "torch_trace"):
        scores = network(torch.from_numpy(points)).numpy()
    print(f"PyTorch: accuracy {(scores.argmax(axis=1) == arms).mean():.4f}")


if __name__ == "__main__":
    main()
