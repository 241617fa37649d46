"""Which files make up a set: one a rank, all of one step, wherever they lie."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mslaunch.checkpoint.sharding.sets import find_set, parse_step
from mslaunch.checkpoint.sharding.verify import verify
from mslaunch.errors import RequestError
from tests.beds.sharded import Content, checkpoints, json_strategy, strategy_file, write_anew, write_shard
from tests.conftest import Bench

CONTENT: Content = {"w": ("Int8", (3,), b"abc")}


def fill(folder: Path, *names: str, ranks: int = 2) -> Path:
    """A folder with the same files on each rank."""
    for rank in range(ranks):
        for name in names:
            write_shard(folder / f"rank_{rank}" / name, CONTENT)
    return folder


def names(folder: Path, step: str | None = None, prefix: str | None = None) -> dict[int, str]:
    found = find_set(folder, step=step, prefix=prefix)
    return {rank: found.name_of(rank) for rank in found.files}


def test_steps_are_numbers(tmp_path: Path) -> None:
    """10 comes after 9, and epoch 10 after epoch 9, where a dictionary has it otherwise."""
    folder = fill(tmp_path, "net-1_9.ckpt", "net-1_10.ckpt", "net-1_8.ckpt")
    assert names(folder) == {0: "rank_0/net-1_10.ckpt", 1: "rank_1/net-1_10.ckpt"}
    fill(tmp_path, "net-9_1.ckpt", "net-10_1.ckpt")
    assert names(folder)[0] == "rank_0/net-10_1.ckpt"


def test_a_newer_step_that_is_not_complete_is_a_warning(tmp_path: Path, bench: Bench) -> None:
    """The newest that all ranks have whole is taken, and what was passed over is told, with its ranks."""
    folder = fill(tmp_path, "net-1_9.ckpt", "net-1_10.ckpt", "net-1_11.ckpt", "net-1_12.ckpt")
    (folder / "rank_1" / "net-1_12.ckpt").unlink()
    write_anew(folder / "rank_0" / "net-1_11.ckpt", b"\x0a\x09")
    found = find_set(folder)
    assert found.step is not None
    assert found.step[:2] == (1, 10)
    assert [(finding.severity, finding.what) for finding in verify(found, None).findings] == [
        ("warning", "step 1_12 is newer, but missing or cut short on rank 1"),
        ("warning", "step 1_11 is newer, but missing or cut short on rank 0"),
    ]
    done = bench.mslaunch("ckpt", "verify", str(folder))
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == f"{folder}: 2 ranks, step 1_10: complete"


def test_a_rank_that_the_strategy_wants_counts(tmp_path: Path) -> None:
    """A step that is complete on the ranks that are there is not, if the strategy has more."""
    folder = fill(tmp_path, "net-1_9.ckpt", ranks=3)
    fill(tmp_path, "net-1_10.ckpt", ranks=2)
    found = find_set(folder, ranks=3)
    assert found.step is not None
    assert (found.step[1], sorted(found.files)) == (9, [0, 1, 2])
    assert [sorted(newer.faults) for newer in found.passed_over] == [[2]]


def test_where_no_step_is_complete_the_least_incomplete_is_looked_at(tmp_path: Path, bench: Bench) -> None:
    """So that one can be told what is missing."""
    folder = fill(tmp_path, "net-1_1.ckpt", ranks=3)
    fill(tmp_path, "net-1_2.ckpt", ranks=1)
    (folder / "rank_2" / "net-1_1.ckpt").unlink()
    (tmp_path / "s.json").write_bytes(json_strategy({"w": {"dev_matrix": [3], "tensor_map": [0]}}))
    done = bench.mslaunch("ckpt", "verify", str(folder), "--strategy", str(tmp_path / "s.json"))
    assert done.returncode == 2
    assert done.stdout == f"{folder}: error: rank 2: no checkpoint of step 1_1: expected one for each of 3 ranks\n"


def test_a_step_can_be_asked_for(tmp_path: Path) -> None:
    """As it stands in the names; what is not there is told with what is."""
    folder = fill(tmp_path, "net-1_9.ckpt", "net-2_10.ckpt")
    assert names(folder, step="1_9")[1] == "rank_1/net-1_9.ckpt"
    with pytest.raises(RequestError, match=r"no rank has step 3_9. It holds 1_9, 2_10."):
        find_set(folder, step="3_9")
    with pytest.raises(RequestError, match=r"write EPOCH_STEP"):
        parse_step("last")


def test_a_second_run_counts_and_an_earlier_one_can_be_asked_for(tmp_path: Path) -> None:
    """MindSpore gives its files a number; a later step of the first run is a warning."""
    folder = fill(tmp_path, "net-2_9.ckpt", "net_1-1_9.ckpt")
    assert names(folder)[0] == "rank_0/net_1-1_9.ckpt"
    assert [finding.what for finding in verify(find_set(folder), None).findings] == [
        "net-2_9.ckpt has a later step, but is of an earlier run in the same folder"
    ]
    assert names(folder, prefix="net-")[1] == "rank_1/net-2_9.ckpt"
    assert names(folder, prefix="net_1")[1] == "rank_1/net_1-1_9.ckpt"


@pytest.mark.parametrize(
    ("files", "listed"),
    [
        (("generator-1_9.ckpt", "critic-1_9.ckpt"), "critic, generator"),
        (("stage1-3_120.ckpt", "stage2-3_120.ckpt"), "stage1, stage2"),
        (("net_1-1_9.ckpt", "net_2-1_9.ckpt"), "net_1, net_2"),
        (("resnet-1_9.ckpt", "resnet_50-1_9.ckpt"), "resnet, resnet_50"),
        (("a/net-1_9.ckpt", "b/net-1_9.ckpt"), "a/net, b/net"),
        (("a.ckpt", "b.ckpt"), "a, b"),
    ],
)
def test_two_networks_in_a_folder_need_a_prefix(tmp_path: Path, files: tuple[str, str], listed: str) -> None:
    """They are never mixed, whichever was written last; the names that are listed can be typed."""
    folder = fill(tmp_path, *files)
    for rank in range(2):
        os.utime(folder / f"rank_{rank}" / files[rank], (1000, 1000))
    first, second = listed.split(", ")
    with pytest.raises(RequestError, match=rf"several networks \({listed}\)\. Name one: --prefix '{first}'"):
        find_set(folder)
    for prefix in (first, second):
        assert {Path(name).relative_to(f"rank_{rank}") for rank, name in names(folder, prefix=prefix).items()} == {
            Path(name) for name in files if name.startswith((f"{prefix}-", f"{prefix}."))
        }


def test_only_the_rank_s_own_number_may_differ_between_ranks(tmp_path: Path) -> None:
    """net0 of rank 0 and net1 of rank 1 belong together; a of rank 0 and b of rank 1 do not."""
    for folder, rows in {"own": ("net0", "net1"), "next": ("net1", "net2"), "other": ("a", "b")}.items():
        for rank, prefix in enumerate(rows):
            write_shard(tmp_path / folder / f"rank_{rank}" / f"{prefix}-1_9.ckpt", CONTENT)
    assert names(tmp_path / "own") == {0: "rank_0/net0-1_9.ckpt", 1: "rank_1/net1-1_9.ckpt"}
    for folder in ("next", "other"):
        with pytest.raises(RequestError, match="several networks"):
            find_set(tmp_path / folder)


def test_runs_that_may_be_two_networks_are_refused(tmp_path: Path) -> None:
    """net_1 has other ranks or other parameters than net: one of them is left from another job."""
    fewer = fill(tmp_path / "ranks", "net-1_9.ckpt", ranks=3)
    fill(fewer, "net_1-1_9.ckpt", ranks=2)
    with pytest.raises(RequestError, match=r"net has files of 3 ranks, net_1 of 2.*--prefix 'net_1', or .*'net-'"):
        find_set(fewer)
    other = fill(tmp_path / "parameters", "net-1_9.ckpt")
    for rank in range(2):
        write_shard(other / f"rank_{rank}" / "net_1-1_9.ckpt", {"v": ("Int8", (3,), b"abc")})
    with pytest.raises(RequestError, match=r"net_1-1_9.ckpt is of a later run and lacks w, which net-1_9.ckpt has"):
        find_set(other)


def test_a_step_that_lacks_a_parameter_is_passed_over(tmp_path: Path, bench: Bench) -> None:
    """Cut between two parameters it can be read, but the step before has more; with --step it is an error."""
    whole: Content = {"w": ("Int8", (3,), b"abc"), "v": ("Int8", (1,), b"x")}
    for rank in range(2):
        write_shard(tmp_path / f"rank_{rank}" / "net-1_1.ckpt", whole)
        write_shard(tmp_path / f"rank_{rank}" / "net-1_2.ckpt", whole if rank else CONTENT)
    done = bench.mslaunch("ckpt", "verify", str(tmp_path))
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        f"{tmp_path}: warning: step 1_2 is newer, but not whole on rank 0 (lacks v, which net-1_1.ckpt has)",
        f"{tmp_path}: 2 ranks, step 1_1: complete",
    ]
    done = bench.mslaunch("ckpt", "convert", str(tmp_path), "--step", "1_2", "-o", str(tmp_path / "new"))
    assert done.returncode == 2
    assert "rank 0, rank_0/net-1_2.ckpt: lacks v, which net-1_1.ckpt has" in done.stderr


def test_a_rank_without_the_step_of_the_others_is_an_error(tmp_path: Path) -> None:
    """Also where no strategy says how many ranks there are."""
    for rank in range(2):
        write_shard(tmp_path / f"rank_{rank}" / f"net-1_{rank}.ckpt", CONTENT)
    assert [finding.words() for finding in verify(find_set(tmp_path), None).errors] == [
        "error: rank 0: no checkpoint of step 1_1, which other ranks have"
    ]


def test_a_prefix_that_no_file_has_is_refused(tmp_path: Path) -> None:
    """With names that are there."""
    with pytest.raises(RequestError, match=r"no file begins with 'x' \(--prefix\); there are net-1_9.ckpt"):
        find_set(fill(tmp_path, "net-1_9.ckpt"), prefix="x")


def test_two_formats_in_one_place_are_not_mixed(tmp_path: Path) -> None:
    """One that all ranks have is taken; two that differ are refused."""
    folder = fill(tmp_path, "net-1_9.ckpt", ranks=3)
    fill(tmp_path, "net-1_9.safetensors", ranks=2)
    assert names(folder) == {rank: f"rank_{rank}/net-1_9.ckpt" for rank in range(3)}
    write_shard(tmp_path / "rank_2" / "net-1_9.safetensors", {"w": ("Int8", (3,), b"xyz")})
    with pytest.raises(RequestError, match=r"net-1_9.ckpt and net-1_9.safetensors are of one step and differ \(w\)"):
        find_set(folder)
    assert names(folder, prefix="net-1_9.s")[2] == "rank_2/net-1_9.safetensors"


def test_files_may_lie_a_level_below_or_beside_each_other(tmp_path: Path) -> None:
    """rank_0/checkpoint/net.ckpt, or net_rank_0.ckpt; a number in the prefix is the rank's."""
    for rank in range(11):
        write_shard(tmp_path / f"below/rank_{rank}/checkpoint/net{rank}-1_1.safetensors", CONTENT)
        write_shard(tmp_path / f"beside/net_rank_{rank}-1_1.ckpt", CONTENT)
    assert names(tmp_path / "below")[10] == "rank_10/checkpoint/net10-1_1.safetensors"
    assert names(tmp_path / "beside")[10] == "net_rank_10-1_1.ckpt"
    assert len(names(tmp_path / "below")) == len(names(tmp_path / "beside")) == 11


def test_a_run_is_searched_for_the_layout_that_mindspore_writes(tmp_path: Path) -> None:
    """ckpt/rank_N inside each rank's folder, also below a working directory; links lead to the project."""
    write_shard(tmp_path / "project" / "net-9_9.ckpt", CONTENT)
    run = tmp_path / "run"
    for rank in (0, 1):
        work = run / f"rank_{rank}" / "work" / "tools"
        write_shard(work / "ckpt" / f"rank_{rank}" / "net-1_2.ckpt", CONTENT)
        (work / "net-9_9.ckpt").symlink_to(tmp_path / "project" / "net-9_9.ckpt")
        (work / "old").symlink_to(tmp_path / "project")
    (run / "run.json").touch()
    assert names(run) == {rank: f"rank_{rank}/work/tools/ckpt/rank_{rank}/net-1_2.ckpt" for rank in (0, 1)}


def test_what_is_no_checkpoint_is_passed_over(tmp_path: Path) -> None:
    """Strategies are called .ckpt too, and MindSpore leaves graphs and breakpoints beside its checkpoints."""
    folder = fill(tmp_path, "net.ckpt")
    for rank in range(2):
        (folder / f"rank_{rank}" / "strategy.ckpt").write_bytes(strategy_file("tp2").read_bytes())
        (folder / f"rank_{rank}" / "net-graph.meta").write_bytes(b"x")
        (folder / f"rank_{rank}" / "net_breakpoint.ckpt").write_bytes(b"x")
    assert names(folder) == {0: "rank_0/net.ckpt", 1: "rank_1/net.ckpt"}


@pytest.mark.parametrize(("made", "words"), [(False, "no such checkpoint"), (True, "no checkpoint")])
def test_a_place_without_checkpoints_is_refused(tmp_path: Path, made: bool, words: str) -> None:
    """With what was looked for."""
    if made:
        (tmp_path / "set" / "rank_0").mkdir(parents=True)
    with pytest.raises(RequestError, match=words):
        find_set(tmp_path / "set")


def test_one_file_is_a_set_of_one() -> None:
    """Whatever it is called."""
    path = checkpoints("tp2") / "rank_1" / "net1.ckpt"
    found = find_set(path)
    assert (found.files, found.name_of(0), found.step) == ({0: path}, "net1.ckpt", None)


def test_what_a_run_saved_beside_its_script_is_found(tmp_path: Path) -> None:
    """In code/, by the ranks' numbers; what the snapshot put there is the project's, and not the run's."""
    (tmp_path / "run.json").touch()
    for name in ("ckpt/rank_0/net-1_2.ckpt", "ckpt/rank_1/net-1_2.ckpt", "net-9_9.ckpt"):
        write_shard(tmp_path / "code" / name, CONTENT)
    status = (tmp_path / "code/net-9_9.ckpt").stat()
    copies = {"net-9_9.ckpt": [status.st_size, status.st_mtime_ns, 0]}
    (tmp_path / "code.json").write_text(json.dumps({"copies": copies, "links": []}))
    assert names(tmp_path) == {rank: f"code/ckpt/rank_{rank}/net-1_2.ckpt" for rank in range(2)}
