"""What `mslaunch ckpt` prints about numbers of things, sizes and rates."""

from __future__ import annotations

import pytest

from mslaunch.cli.console.progress_bar import written_words
from tests.beds.sharded import write_shard
from tests.conftest import Bench


@pytest.mark.parametrize(
    ("nbytes", "seconds", "words"),
    [
        (67 << 10, 0.01, "67.0 KB"),
        (67 << 10, 0.2, "67.0 KB in 0.2 s, 335.0 KB/s"),
        (6 << 30, 3.0, "6.0 GB in 3.0 s, 2.0 GB/s"),
    ],
)
def test_a_rate_has_the_unit_that_fits(nbytes: int, seconds: float, words: str) -> None:
    """A small file is not written with 0.0 GB/s."""
    assert written_words(nbytes, seconds) == words


def test_one_rank_is_one_rank(bench: Bench) -> None:
    """Words agree with their numbers."""
    write_shard(bench.folder / "ckpt" / "rank_0" / "net.ckpt", {"w": ("Float32", (1,), bytes(4))})
    done = bench.mslaunch("ckpt", "verify", "ckpt")
    assert (done.returncode, done.stdout) == (0, "ckpt: 1 rank: complete\n")
    assert bench.mslaunch("ckpt", "show", "ckpt").stdout.startswith("ckpt: 1 rank, ")
    shown = bench.mslaunch("ckpt", "show", "ckpt/rank_0/net.ckpt").stdout
    assert shown.startswith("ckpt/rank_0/net.ckpt: 1 parameter, ")
