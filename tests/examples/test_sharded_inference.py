"""examples/sharded_inference with real MindSpore: trained in slices on four ranks, inferred on four, two and one."""

from __future__ import annotations

import re
import shutil
from importlib.util import find_spec

import numpy as np
import pytest

from tests.conftest import ROOT, Bench

pytestmark = [
    pytest.mark.mindspore,
    pytest.mark.skipif(find_spec("mindspore") is None, reason="MindSpore is not installed"),
]


def test_a_network_trained_in_slices_serves_any_number_of_ranks(bench: Bench) -> None:
    """Its scores on four, two and one rank are those of the unsharded network, within rounding."""
    shutil.copytree(ROOT / "examples/sharded_inference", bench.folder, dirs_exist_ok=True)
    done = bench.mslaunch("train", "--config", "config.yaml")
    assert done.returncode == 0, done.stdout
    verified = bench.mslaunch("ckpt", "verify", "ckpt", "--strategy", "ckpt/strategy.json", "--replicas")
    assert verified.returncode == 0, verified.stdout
    scores, numbers = {}, set()
    for workers in (4, 2, 1):
        asked = ("--strategy", "ckpt/strategy.json", "--workers", str(workers), "--set", f"output=scores{workers}.npy")
        done = bench.mslaunch("infer", "--config", "config.yaml", "--script", "infer.py", *asked)
        assert done.returncode == 0, done.stdout
        scores[workers] = np.load(bench.folder / f"scores{workers}.npy")
        for rank in range(workers):
            numbers |= set(re.findall(r"numbers (\w+)", bench.log(rank)))
    right = re.search(r"rank 0: (\d+) of 64 sequences continued rightly", bench.log(0))
    assert right is not None
    assert int(right[1]) > 48
    assert len(numbers) == 1
    for workers in (4, 2):
        np.testing.assert_allclose(scores[workers], scores[1], rtol=1e-4, atol=1e-4)
