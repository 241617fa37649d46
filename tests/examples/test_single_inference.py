"""examples/single_inference with real MindSpore: a plain checkpoint, the same on many ranks, a sharded set merged."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from tests.conftest import ROOT, Bench

pytestmark = [
    pytest.mark.mindspore,
    pytest.mark.skipif(find_spec("mindspore") is None, reason="MindSpore is not installed"),
]


def infer(bench: Bench, workers: int, *args: str) -> Any:
    """Run inference and return the answers of all ranks in the order of the points."""
    shutil.rmtree(bench.folder / "output", ignore_errors=True)
    job = ("--config", "config.yaml", "--script", "infer.py", "--workers", str(workers))
    done = bench.mslaunch("infer", *job, *args)
    assert done.returncode == 0, done.stdout
    found = np.zeros(1000, int)
    for rank in range(workers):
        found[rank::workers] = np.load(bench.folder / "output" / f"rank_{rank}.npy")
    return found


def test_one_card_and_many_answer_alike(bench: Bench) -> None:
    """From the plain file on one rank and on two, and from shards of two ranks merged for one."""
    shutil.copytree(ROOT / "examples/single_inference", bench.folder, dirs_exist_ok=True)
    done = bench.mslaunch("train", "--workers", "2", "--config", "config.yaml", "--set", "epochs=2")
    assert done.returncode == 0, done.stdout
    alone = infer(bench, 1, "--ckpt", "net.ckpt")
    assert "1000 points here" in bench.log(0)
    np.testing.assert_array_equal(infer(bench, 2, "--ckpt", "net.ckpt"), alone)
    done = bench.mslaunch("train", "--workers", "2", "--config", "config.yaml", "--script", "strategy.py")
    assert done.returncode == 0, done.stdout
    done = bench.mslaunch("ckpt", "reshard", "net.ckpt", "--to", "strategy.json", "-o", "shards")
    assert (done.returncode, (bench.folder / "shards/rank_1").is_dir()) == (0, True), done.stderr
    np.testing.assert_array_equal(infer(bench, 1, "--strategy", "strategy.json", "--ckpt", "shards"), alone)
