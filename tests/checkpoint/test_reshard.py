"""From one layout to another: bit-equal to what MindSpore made, in both formats, and refused where it cannot be."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from mslaunch.checkpoint.formats.table import read_shard
from mslaunch.checkpoint.moving import file_io
from mslaunch.checkpoint.sharding.reshard import STRATEGY, Target, natural_layout
from mslaunch.checkpoint.sharding.sets import find_set
from mslaunch.checkpoint.sharding.strategy import Layout, Strategy, read_strategy
from mslaunch.checkpoint.sharding.verify import SetIsWrong, verify
from mslaunch.errors import RequestError
from tests.beds.sharded import (
    FIXTURES,
    PAIRS,
    Content,
    checkpoints,
    content_of,
    contents_of,
    json_strategy,
    known_content,
    needs_mindspore,
    plan,
    safetensors_bytes,
    strategy_file,
    strategy_of,
    write_anew,
    write_shard,
    write_with_mindspore,
)
from tests.conftest import Bench


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_every_layout_becomes_every_other(tmp_path: Path, one: str, other: str) -> None:
    """Bit by bit what MindSpore's transform made of the whole model for that layout."""
    plan(checkpoints(one), strategy_of(one), Target(strategy_of(other))).write(tmp_path / "new")
    made, known = contents_of(tmp_path / "new"), contents_of(checkpoints(other))
    assert made == known
    target = strategy_of(other)
    assert target is None or verify(find_set(tmp_path / "new"), target, replicas=True).findings == ()


@pytest.mark.parametrize("other", ["full", "tp4", "pp2tp2"])
def test_the_other_format_holds_the_same(tmp_path: Path, other: str) -> None:
    """A reshard may change the format on its way, there and back."""
    planned = plan(checkpoints("tp2"), strategy_of("tp2"), Target(strategy_of(other), suffix=".safetensors"))
    planned.write(tmp_path / "st")
    made = find_set(tmp_path / "st")
    assert {path.suffix for path in made.files.values()} == {".safetensors"}
    assert contents_of(tmp_path / "st") == contents_of(checkpoints(other))
    plan(tmp_path / "st", strategy_of(other), Target(strategy_of("tp2"), suffix=".ckpt")).write(tmp_path / "back")
    assert contents_of(tmp_path / "back") == contents_of(checkpoints("tp2"))


def test_order_in_the_file_is_kept(tmp_path: Path) -> None:
    """A model made whole again is the same file as before it was cut, byte for byte."""
    plan(checkpoints("tp4"), strategy_of("tp4"), Target()).write(tmp_path / "whole")
    whole = (tmp_path / "whole" / "rank_0" / "net0.ckpt").read_bytes()
    assert whole == (checkpoints("full") / "rank_0" / "net.ckpt").read_bytes()


@pytest.mark.parametrize(("degree", "layout"), [(1, "full"), (2, "tp2"), (4, "tp4")])
def test_a_degree_names_the_natural_layout(bench: Bench, degree: int, layout: str) -> None:
    """--to-tp cuts what was cut, where it was cut, and writes the strategy beside the shards."""
    source = ("ckpt", "reshard", str(checkpoints("tp2")), "--from", str(strategy_file("tp2")))
    done = bench.mslaunch(*source, "--to-tp", str(degree), "-o", "new")
    ranks = f"{degree} rank{'s' if degree > 1 else ''}"
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"new: {ranks}, ")
    new = bench.folder / "new"
    assert contents_of(new) == contents_of(checkpoints(layout))
    assert (new / STRATEGY).exists() is (degree > 1)
    if degree > 1:
        made = read_strategy(new / STRATEGY)
        assert (made.tensor_parallel, made.world_size) == (degree, degree)
        assert verify(find_set(new), made, replicas=True).findings == ()


def test_a_pipeline_becomes_one_stage(tmp_path: Path) -> None:
    """With --to-tp all stages' parameters go to every rank."""
    plan(checkpoints("pp2tp2"), strategy_of("pp2tp2"), Target(degree=4)).write(tmp_path / "new")
    assert contents_of(tmp_path / "new") == contents_of(checkpoints("tp4"))


def test_a_degree_that_does_not_divide_is_refused() -> None:
    """With the parameter and its shape."""
    with pytest.raises(RequestError, match=r"net.blocks.0.bias: dimension 0 of 48 cannot be cut into 5 equal parts"):
        plan(checkpoints("tp2"), strategy_of("tp2"), Target(degree=5))


def test_a_degree_needs_to_know_where_to_cut() -> None:
    """Neither a whole model nor a strategy that cuts nothing tells."""
    with pytest.raises(RequestError, match=r"a whole model does not say where its parameters are to be cut"):
        plan(checkpoints("full"), None, Target(degree=2))
    with pytest.raises(RequestError, match=r"cuts no parameter, so it does not say where to cut"):
        plan(checkpoints("dp4"), strategy_of("dp4"), Target(degree=2))


def test_of_two_dimensions_that_were_cut_the_one_with_more_cuts_is_kept() -> None:
    """And a parameter that was whole stays whole."""
    source = Strategy("s", {0: {"w": Layout((2, 4), ((0,), (1,))), "v": Layout((2, 4), ((), ()))}}, False)
    made = natural_layout(source, 3, {"w": (2, 12), "v": (5, 7)})
    assert made.stages[0] == {"w": Layout((3,), ((), (0,))), "v": Layout((3,), ((), ()))}


@needs_mindspore
@pytest.mark.parametrize("suffix", [".ckpt", ".safetensors"])
def test_no_value_is_touched(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, suffix: str) -> None:
    """Types that NumPy does not know, and all the others, cut and put together again, are the same bytes."""
    content = known_content(write_with_mindspore(tmp_path_factory))
    content["brain"] = ("BFloat16", (30, 70), bytes(range(250)) * 16 + bytes(200))  # NaNs of all kinds among them
    write_shard(tmp_path / "whole" / f"net{suffix}", content)
    cuts = {"rows": (1,), "brain": (0,), "bytes": (1,), "wide": (0,)}
    layouts = {
        name: Layout(
            (3,),
            tuple((0,) if index in cuts.get(name, ()) and size % 3 == 0 else () for index, size in enumerate(shape)),
        )
        for name, (_, shape, _) in content.items()
    }
    cut = Strategy("cut", {0: layouts}, False)
    plan(tmp_path / "whole", None, Target(cut)).write(tmp_path / "cut")
    pieces = contents_of(tmp_path / "cut")
    assert {rank: piece["bytes"][1] for rank, piece in pieces.items()} == dict.fromkeys(range(3), (7, 100))
    assert all(
        piece["brain"][2] == content["brain"][2][1400 * rank : 1400 * (rank + 1)] for rank, piece in pieces.items()
    )
    plan(tmp_path / "cut", cut, Target()).write(tmp_path / "again")
    assert contents_of(tmp_path / "again") == {0: content}


def test_what_the_target_does_not_list_is_left_out_and_said(bench: Bench) -> None:
    """A strategy for inference lists no moments; numbers that no strategy lists go to every rank."""
    names = [name for name in strategy_names("tp2") if not name.startswith("moment")]
    layouts = {name: {"dev_matrix": [2], "tensor_map": [-1] * dims(name)} for name in names}
    (bench.folder / "infer.json").write_bytes(json_strategy(layouts))
    source = ("ckpt", "reshard", str(checkpoints("tp2")), "--from", str(strategy_file("tp2")))
    done = bench.mslaunch(*source, "--to", "infer.json", "-o", "new")
    assert done.returncode == 0
    assert done.stderr == (
        "mslaunch: left out, since infer.json does not list them: 20 parameters (moment1.net.blocks.0.bias …)\n"
    )
    whole = contents_of(checkpoints("full"))[0]
    wanted = {name: whole[name] for name in whole if name in names or name == "global_step"}
    assert contents_of(bench.folder / "new") == {0: wanted, 1: wanted}


def strategy_names(layout: str) -> list[str]:
    strategy = strategy_of(layout)
    assert strategy is not None
    return sorted(strategy.names())


def dims(name: str) -> int:
    return len(read_shard(checkpoints("full") / "rank_0" / "net.ckpt").tensors[name].shape)


def test_what_cannot_be_cut_as_the_target_says_is_refused(tmp_path: Path) -> None:
    """Another network's strategy, other dimensions, or a size that does not divide."""
    cases = {
        "lists no parameter of": {"other": {"dev_matrix": [2], "tensor_map": [0]}},
        "lays out 1 dimensions, and the parameter is 16x64": {"net.head": {"dev_matrix": [2], "tensor_map": [0]}},
        "cuts dimension 0 of 16x64 into 3 parts": {"net.head": {"dev_matrix": [3], "tensor_map": [0, -1]}},
    }
    for words, layouts in cases.items():
        (tmp_path / "s.json").write_bytes(json_strategy(layouts))
        with pytest.raises(RequestError, match=words):
            plan(checkpoints("full"), None, Target(read_strategy(tmp_path / "s.json")))
    lone = read_strategy(FIXTURES / "strategies" / "pp2tp2" / "strategy_2.ckpt")
    with pytest.raises(RequestError, match="one stage of a pipeline alone"):
        plan(checkpoints("full"), None, Target(lone))


def test_a_set_that_is_wrong_is_not_resharded(tmp_path: Path) -> None:
    """Everything that is wrong with it is told, as verify does."""
    folder = shutil.copytree(checkpoints("tp4"), tmp_path / "set")
    shutil.rmtree(folder / "rank_1")
    write_shard(folder / "rank_2" / "net2.ckpt", {"net.emb": ("Float32", (1,), bytes(4))})
    with pytest.raises(SetIsWrong) as told:
        plan(folder, strategy_of("tp4"), Target())
    assert "rank 1: no checkpoint" in str(told.value)
    assert "rank 2, rank_2/net2.ckpt, moment1.net.blocks.0.bias: missing" in str(told.value)
    assert "and 23 more; `mslaunch ckpt verify` lists all" in str(told.value)


def test_ranks_without_a_strategy_are_refused() -> None:
    """Nothing says how they belong together."""
    with pytest.raises(RequestError, match=r"2 ranks, and no strategy says how they belong together. Give --from"):
        plan(checkpoints("tp2"), None, Target(strategy_of("tp4")))


def write_without_redundancy(folder: Path, *names: str) -> Path:
    """A set saved with remove_redundancy, where each rank holds one parameter of two bytes."""
    for rank, name in enumerate(names):
        entry = {"dtype": "I8", "shape": [2], "data_offsets": [0, 2]}
        header = {"__metadata__": {"format": "ms", "remove_redundancy": "True"}, name: entry}
        write_anew(folder / f"rank_{rank}/net.safetensors", safetensors_bytes(header, b"a%d" % rank))
    return folder


def test_replicas_that_were_left_out_are_not_needed(tmp_path: Path) -> None:
    """What one rank holds is enough, unless it is but a slice."""
    folder = write_without_redundancy(tmp_path / "set", "w", "v")
    replicas = Strategy("s", {0: {"w": Layout((2,), ((),)), "v": Layout((2,), ((),))}}, False)
    plan(folder, replicas, Target(suffix=".ckpt")).write(tmp_path / "new")
    assert contents_of(tmp_path / "new") == {0: {"w": ("Int8", (2,), b"a0"), "v": ("Int8", (2,), b"a1")}}
    slices = Strategy("s", {0: {"w": Layout((2,), ((0,),)), "v": Layout((2,), ((),))}}, False)
    with pytest.raises(RequestError, match="w: its slices hold 2 of 4 elements"):
        plan(folder, slices, Target())


def test_a_text_is_moved_whole(tmp_path: Path) -> None:
    """What has no elements of a size is neither cut nor joined, but every rank gets it."""
    content: Content = {"w": ("Int8", (4,), b"abcd"), "note": ("str", (), "größe".encode("utf-32-le"))}
    write_shard(tmp_path / "whole" / "net.ckpt", content)
    target = Strategy("s", {0: {"w": Layout((2,), ((0,),))}}, False)
    plan(tmp_path / "whole", None, Target(target)).write(tmp_path / "new")
    halves = (b"ab", b"cd")
    assert contents_of(tmp_path / "new") == {
        rank: {"w": ("Int8", (2,), half), "note": content["note"]} for rank, half in enumerate(halves)
    }


def test_steps_and_prefixes_are_carried_on(tmp_path: Path) -> None:
    """rank_0/net_rank_0-3_120.ckpt becomes rank_0/net-3_120.ckpt."""
    for rank in range(2):
        write_shard(
            tmp_path / f"set/rank_{rank}/net_rank_{rank}-3_120.ckpt", {"w": ("Int8", (1,), b"ab"[rank : rank + 1])}
        )
    source = Strategy("s", {0: {"w": Layout((2,), ((0,),))}}, False)
    plan(tmp_path / "set", source, Target()).write(tmp_path / "new")
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.glob("new/*/*")] == ["new/rank_0/net-3_120.ckpt"]
    assert content_of(tmp_path / "new/rank_0/net-3_120.ckpt") == {"w": ("Int8", (2,), b"ab")}


def test_writes_are_of_the_size_that_costs_the_kernel_least(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of 64 KB, so cut that the kernel gives the file no more than 32 KB of memory in one stretch."""
    written: list[tuple[int, int]] = []
    pwrite = os.pwrite

    def noted(fd: int, data: bytes, at: int) -> int:
        written.append((at, len(data)))
        return pwrite(fd, data, at)

    content = os.urandom(300_000)
    monkeypatch.setattr(os, "pwrite", noted)
    with (tmp_path / "new").open("wb") as file:
        file_io.write_at(file.fileno(), memoryview(content), 100)
    kb = 1 << 10
    middle = [(at, 64 * kb) for at in range(32 * kb, 288 * kb, 64 * kb)]
    assert written == [(100, 32 * kb - 100), *middle, (288 * kb, 300_100 - 288 * kb)]
    assert (tmp_path / "new").read_bytes() == bytes(100) + content


def test_a_file_system_that_reserves_no_room_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS 3 has no fallocate; the files are the same."""
    monkeypatch.setattr(file_io, "_fallocate", lambda *_: errno.EOPNOTSUPP)
    plan(checkpoints("tp2"), strategy_of("tp2"), Target(strategy_of("tp4"))).write(tmp_path / "new")
    assert contents_of(tmp_path / "new") == contents_of(checkpoints("tp4"))


def test_room_is_reserved_before_anything_is_written(tmp_path: Path) -> None:
    """A new file has its blocks from the beginning."""
    with (tmp_path / "new").open("wb") as file:
        file_io.reserve(file.fileno(), 1 << 20)
        found = os.fstat(file.fileno())
    assert found.st_size == 1 << 20
    assert found.st_blocks * 512 >= 1 << 20


@pytest.mark.parametrize("axis", [0, 1])
def test_rows_and_columns_are_cut_right(tmp_path: Path, axis: int) -> None:
    """Rows are one stretch of the source and columns are not; there and back the bytes are the same."""
    content: Content = {"w": ("Int8", (512, 1024), os.urandom(1 << 19))}
    write_shard(tmp_path / "old" / "net.ckpt", content)
    cut = Strategy("s", {0: {"w": Layout((2,), ((0,), ()) if axis == 0 else ((), (0,)))}}, False)
    plan(tmp_path / "old", None, Target(cut)).write(tmp_path / "cut")
    data = content["w"][2]
    rows = [data[begin : begin + 1024] for begin in range(0, len(data), 1024)]
    halves = [rows[:256], rows[256:]] if axis == 0 else [[row[:512] for row in rows], [row[512:] for row in rows]]
    made = contents_of(tmp_path / "cut")
    assert [made[rank]["w"][2] for rank in range(2)] == [b"".join(half) for half in halves]
    plan(tmp_path / "cut", cut, Target()).write(tmp_path / "whole")
    assert contents_of(tmp_path / "whole") == {0: content}


def test_a_tensor_in_parts_is_copied_part_by_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Source and target split it at different places."""
    content: Content = {"w": ("Int8", (1000, 1024), os.urandom(1024_000))}
    monkeypatch.setattr("mslaunch.checkpoint.formats.ckpt.SPLIT_ABOVE", 300_001)
    write_shard(tmp_path / "old" / "net.ckpt", content)
    planned = plan(tmp_path / "old", None, Target(Strategy("s", {0: {"w": Layout((1,), ((), ()))}}, False)))
    monkeypatch.setattr("mslaunch.checkpoint.formats.ckpt.SPLIT_ABOVE", 170_003)
    planned.write(tmp_path / "new")
    assert contents_of(tmp_path / "new") == {0: content}
