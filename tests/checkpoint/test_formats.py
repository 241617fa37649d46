"""The table of checkpoint formats, and the copies of it that cannot import it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mslaunch.checkpoint.formats.table import FORMATS, Parameter, Shard, describe, recognise
from mslaunch.checkpoint.formats.tensor import Tensor
from mslaunch.checkpoint.sharding.strategy import Layout, Strategy
from mslaunch.cli.new import IGNORED
from mslaunch.runtime.checkpoints import LOAD_OPTIONS


def test_what_runs_in_ranks_knows_every_checkpoint_format() -> None:
    """The runtime, which travels without the table, has an entry for every format and for no other."""
    assert set(LOAD_OPTIONS) == set(FORMATS)


def test_a_new_project_ignores_checkpoints_of_every_format() -> None:
    """The .gitignore of a new project lists the suffix of every format."""
    assert {f"*{suffix}" for suffix in FORMATS} <= set(IGNORED.splitlines())


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_folder_is_searched_for_checkpoints_of_every_format(tmp_path: Path, suffix: str) -> None:
    """Files are found by the suffix of their format; folders, dangling links and other files are left out."""
    (tmp_path / f"net-1_2{suffix}").write_bytes(b"\x0a")
    (tmp_path / f"folder{suffix}").mkdir()
    (tmp_path / f"dangling{suffix}").symlink_to(tmp_path / "nowhere")
    (tmp_path / "notes.txt").write_text("")
    assert recognise(tmp_path) == [tmp_path / f"net-1_2{suffix}"]


def test_a_strategy_or_breakpoint_is_not_a_checkpoint(tmp_path: Path) -> None:
    """MindSpore's strategies and breakpoints end in .ckpt too; neither is taken for a checkpoint."""
    (tmp_path / "strategy.ckpt").write_bytes(b"\x08\x01")
    (tmp_path / "net-1_2_breakpoint.ckpt").write_bytes(b"\x0a")
    assert recognise(tmp_path) == []


def test_a_step_is_described_by_the_boxes_of_its_parameters() -> None:
    """A step is described by each parameter's whole shape, and the file and bytes of every distinct box of it."""
    strategy = Strategy("two ranks", {0: {"w": Layout((2,), ((0,), ()))}}, False)
    half, step = Tensor("w", "Float32", (2, 3), ((16, 24),)), Tensor("step", "Int32", (), ((50, 4),))
    files = [Path(f"rank_{rank}/net-1_2.ckpt") for rank in range(2)]
    shards = {rank: Shard(file, {"w": half, "step": step}, 60) for rank, file in enumerate(files)}
    assert describe(shards, strategy) == {
        "w": Parameter((4, 3), ((((0, 2), (0, 3)), files[0], half), (((2, 4), (0, 3)), files[1], half))),
        "step": Parameter((), (((), files[0], step),)),
    }
