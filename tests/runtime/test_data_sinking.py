"""examples/data_sinking with real MindSpore: both loops, on a CPU, which does not sink and says so."""

from __future__ import annotations

import re
import shutil
from importlib.util import find_spec

import pytest

from tests.conftest import ROOT, Bench

pytestmark = [
    pytest.mark.mindspore,
    pytest.mark.skipif(find_spec("mindspore") is None, reason="MindSpore is not installed"),
]


def test_both_loops_end_with_the_same_network(bench: Bench) -> None:
    """On both ranks, bit for bit, having been measured after every epoch."""
    shutil.copytree(ROOT / "examples/data_sinking", bench.folder, dirs_exist_ok=True)
    networks = set()
    for loop in ("model", "custom"):
        done = bench.mslaunch("train", "--workers", "2", "--config", "config.yaml", "--set", f"loop={loop}")
        assert done.returncode == 0, done.stdout
        for rank in range(2):
            log = bench.log(rank)
            assert f"rank {rank}: a CPU has no data sinking" in log
            accuracies = re.findall(rf"rank {rank}: epoch (\d), accuracy (\S+)", log)
            assert [epoch for epoch, _ in accuracies] == ["1", "2", "3", "4"]
            assert float(accuracies[-1][1]) > 0.9
            networks |= set(re.findall(rf"rank {rank}: parameters (\w+)", log))
    assert len(networks) == 1
