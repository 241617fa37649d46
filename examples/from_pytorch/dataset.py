"""Points on the arms of a spiral, made from a seed: NumPy alone, for both frameworks."""

from __future__ import annotations

import numpy as np

ARMS = 3


def make_points(samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return `samples` points of the plane, and for each the arm it lies on."""
    random = np.random.default_rng(seed)
    labels = random.integers(ARMS, size=samples)
    radius = random.uniform(0.1, 1.0, size=samples)
    angle = 4 * radius + 2 * np.pi * labels / ARMS + random.normal(scale=0.3, size=samples)
    points = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return points.astype(np.float32), labels.astype(np.int32)


def held_out_points() -> tuple[np.ndarray, np.ndarray]:
    """Return the points that both frameworks are measured with."""
    return make_points(1000, 2)
