"""Whether a set of shards is what its strategy says: each kind of finding, all at once, with where it is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mslaunch.checkpoint.formats.table import read_shard
from mslaunch.checkpoint.sharding.sets import find_set
from mslaunch.checkpoint.sharding.strategy import Layout, Strategy, read_strategy
from mslaunch.checkpoint.sharding.verify import ShardFinding, verify
from mslaunch.documents import protobuf
from tests.beds.sharded import (
    FIXTURES,
    STRATEGIES,
    Content,
    checkpoints,
    content_of,
    json_strategy,
    needs_mindspore,
    safetensors_bytes,
    strategy_file,
    strategy_of,
    write_anew,
    write_shard,
    write_with_mindspore,
)
from tests.conftest import Bench

PIPELINE = FIXTURES / "strategies" / "pp2tp2"
HEAD = "net.head"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_with_mindspore(tmp_path_factory)


def copy_of(layout: str, folder: Path) -> Path:
    """A set that may be spoiled."""
    shutil.copytree(checkpoints(layout), folder)
    return folder


def shard_path(folder: Path, rank: int) -> Path:
    return folder / f"rank_{rank}" / f"net{rank}.ckpt"


def change(folder: Path, rank: int, **changes: tuple[str, tuple[int, ...], bytes] | None) -> None:
    """Change parameters of a rank's shard, by their names with _ for dots, or take them out."""
    path = shard_path(folder, rank)
    content: Content = content_of(path)
    for key, value in changes.items():
        name = next(name for name in content if name.replace(".", "_") == key)
        if value is None:
            del content[name]
        else:
            content[name] = value
    path.unlink()
    write_shard(path, content)


def flip(path: Path, name: str) -> None:
    """Change one bit of a tensor."""
    data = bytearray(path.read_bytes())
    data[read_shard(path).tensors[name].parts[0][0]] ^= 1
    write_anew(path, bytes(data))


def findings(folder: Path, strategy: Strategy | None, replicas: bool = False) -> list[ShardFinding]:
    found = find_set(folder, strategy.world_size if strategy else None)
    return list(verify(found, strategy, replicas).findings)


@pytest.mark.parametrize("layout", STRATEGIES)
def test_what_mindspore_wrote_has_no_findings(layout: str) -> None:
    """Neither in shape nor in content, for every layout."""
    assert findings(checkpoints(layout), strategy_of(layout), replicas=True) == []


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    """With how many there should be."""
    folder = copy_of("tp4", tmp_path / "set")
    shutil.rmtree(folder / "rank_2")
    assert findings(folder, strategy_of("tp4")) == [
        ShardFinding("no checkpoint", 2, expected="one for each of 4 ranks")
    ]


def test_more_ranks_than_the_strategy_has_are_told() -> None:
    """A stage's own strategy is the usual reason."""
    for layout, strategy in (("tp4", strategy_file("tp2")), ("pp2tp2", PIPELINE / "strategy_0.ckpt")):
        (finding,) = findings(checkpoints(layout), read_strategy(strategy))
        assert finding.what == "2 more ranks than the strategy has (rank 2 to 3)"
        assert finding.expected == "2 ranks"
        assert "mslaunch strategy merge" in str(finding.found)


@pytest.mark.parametrize("replicas", [False, True])
def test_a_later_stage_alone_is_the_only_finding(replicas: bool) -> None:
    """Nothing can be compared with it."""
    (finding,) = findings(checkpoints("pp2tp2"), read_strategy(PIPELINE / "strategy_2.ckpt"), replicas)
    assert "strategy_2.ckpt is stage 1 of a pipeline alone; merge its stages" in finding.what


def test_a_truncated_shard_is_named_with_its_file(tmp_path: Path) -> None:
    """And the others are checked all the same."""
    folder = copy_of("tp4", tmp_path / "set")
    path = shard_path(folder, 3)
    write_anew(path, path.read_bytes()[:-7])
    change(folder, 1, net_emb=None)
    truncated, missing = findings(folder, strategy_of("tp4"))
    assert (truncated.rank, truncated.file) == (3, "rank_3/net3.ckpt")
    assert truncated.what.startswith("not a whole checkpoint: truncated: the parameter at byte")
    assert (missing.rank, missing.parameter, missing.what) == (1, "net.emb", "missing")


def test_a_parameter_that_one_rank_lacks_is_named(tmp_path: Path) -> None:
    """With rank and file."""
    folder = copy_of("tp2", tmp_path / "set")
    change(folder, 1, net_head=None)
    wanted = ShardFinding("missing", 1, "rank_1/net1.ckpt", HEAD, "as on the other ranks of its stage")
    assert findings(folder, strategy_of("tp2")) == [wanted]


@pytest.mark.parametrize("layout", ["tp4", "dp2tp2opt"])
def test_a_wrong_slice_is_named_with_both_shapes(tmp_path: Path, layout: str) -> None:
    """Known from the strategy where it records whole shapes (JSON), else from what most ranks have."""
    folder = copy_of(layout, tmp_path / "set")
    right = "16x16" if layout == "tp4" else "8x32"
    change(folder, 2, net_head=("Float32", (4, 8), bytes(128)))
    wanted = ShardFinding("wrong slice", 2, "rank_2/net2.ckpt", HEAD, right, "4x8")
    assert findings(folder, strategy_of(layout)) == [wanted]


def test_a_slice_that_is_wrong_on_all_ranks_is_found_where_the_strategy_knows(tmp_path: Path) -> None:
    """The majority is not always right."""
    folder = copy_of("tp4", tmp_path / "set")
    for rank in range(4):
        change(folder, rank, net_head=("Float32", (16, 8), bytes(512)))
    told = findings(folder, strategy_of("tp4"))
    assert [(f.rank, f.what, f.expected, f.found) for f in told] == [
        (rank, "wrong slice", "16x16", "16x8") for rank in range(4)
    ]


def test_a_wrong_type_and_a_wrong_rank_of_shape_are_told(tmp_path: Path) -> None:
    """Each with what was expected and what was found."""
    folder = copy_of("dp4", tmp_path / "set")
    change(folder, 0, net_blocks_0_gamma=("Float16", (16,), bytes(32)))
    change(folder, 3, net_emb=("Float32", (1024,), bytes(4096)))
    assert findings(folder, strategy_of("dp4")) == [
        ShardFinding("wrong type", 0, "rank_0/net0.ckpt", "net.blocks.0.gamma", "Float32", "Float16"),
        ShardFinding(
            "wrong shape", 3, "rank_3/net3.ckpt", "net.emb", "2 dimensions, as the strategy's layout has", "1024"
        ),
    ]


def test_what_is_derived_may_be_left_out(tmp_path: Path) -> None:
    """A checkpoint for inference has no moments, none has accumulated gradients; but a weight must be there."""
    folder = copy_of("pp2tp2", tmp_path / "set")
    for rank in range(4):
        path = shard_path(folder, rank)
        content = {name: value for name, value in content_of(path).items() if not name.startswith("moment")}
        path.unlink()
        write_shard(path, content)
    assert findings(folder, strategy_of("pp2tp2")) == []
    for rank in (2, 3):
        change(folder, rank, net_head=None)
    wanted = ShardFinding("on no rank", parameter=HEAD, expected="the strategy lists it")
    assert findings(folder, strategy_of("pp2tp2")) == [wanted]


def test_a_strategy_of_another_network_is_one_finding(tmp_path: Path) -> None:
    """Not one for each parameter."""
    (tmp_path / "s.json").write_bytes(json_strategy({"bert.w": {"dev_matrix": [2], "tensor_map": [0]}}))
    (finding,) = findings(checkpoints("tp2"), read_strategy(tmp_path / "s.json"), replicas=True)
    assert "it belongs to another network" in finding.what
    assert (finding.expected, finding.found) == ("for example bert.w", "global_step, moment1.net.blocks.0.bias")


def test_a_strategy_that_was_cut_short_is_found_out(tmp_path: Path) -> None:
    """Between two parameters nothing tells that more came, but slices that it does not list differ between ranks."""
    whole = strategy_file("tp2").read_bytes()
    *_, last = (content for number, _, _, content in protobuf.fields(whole) if number == 3)
    (tmp_path / "s.ckpt").write_bytes(whole[: -len(protobuf.field_bytes(3, last))])
    shorter = read_strategy(tmp_path / "s.ckpt")
    (name,) = read_strategy(strategy_file("tp2")).names() - shorter.names()
    what = "is not in the strategy, and differs between ranks"
    wanted = ShardFinding(what, 1, "rank_1/net1.ckpt", name, "the bytes of rank 0", "others")
    assert findings(checkpoints("tp2"), shorter) == [wanted]


def test_a_number_that_differs_between_ranks_is_a_warning(tmp_path: Path) -> None:
    """No strategy lists such; a rank may well have one of its own."""
    folder = copy_of("tp2", tmp_path / "set")
    change(folder, 1, global_step=("Int32", (1,), b"\x09\0\0\0"))
    (finding,) = findings(folder, strategy_of("tp2"))
    assert (finding.severity, finding.rank, finding.parameter) == ("warning", 1, "global_step")


def test_one_file_cannot_be_two_ranks(tmp_path: Path) -> None:
    """A link to another rank's slices is told; where all ranks hold the same it does no harm."""
    for layout, wanted in (("tp2", ["is the same file as rank 0's"]), ("dp4", [])):
        folder = copy_of(layout, tmp_path / layout)
        shard_path(folder, 1).unlink()
        shard_path(folder, 1).symlink_to(shard_path(folder, 0))
        assert [finding.what for finding in findings(folder, strategy_of(layout))] == wanted


def test_stages_must_agree_on_a_shared_parameter(tmp_path: Path) -> None:
    """An embedding that the first and the last stage hold has one whole shape."""
    layout = {"dev_matrix": [2], "tensor_map": [0]}
    (tmp_path / "s.json").write_bytes(json_strategy({"0-emb": layout, "1-emb": layout}))
    for rank, rows in enumerate((2, 2, 3, 3)):
        write_shard(tmp_path / f"set/rank_{rank}/net.ckpt", {"emb": ("Int8", (rows,), bytes(rows))})
    wanted = ShardFinding("stages disagree on its whole shape", None, None, "emb", "4", "6")
    assert findings(tmp_path / "set", read_strategy(tmp_path / "s.json")) == [wanted]


@needs_mindspore
@pytest.mark.parametrize("suffix", [".ckpt", ".safetensors"])
@pytest.mark.parametrize("name", ["rows", "steps", "half"])
def test_changed_bytes_are_found_by_mindspores_checksum(written: Path, tmp_path: Path, suffix: str, name: str) -> None:
    """In both formats, scalars included, which MindSpore counts in a way of its own."""
    path = tmp_path / f"net{suffix}"
    shutil.copy(written / f"crc{suffix}", path)
    recorded = read_shard(path).crc
    assert findings(path, None) == []
    flip(path, name)
    (finding,) = findings(path, None)
    assert (finding.what, finding.rank, finding.file) == ("its bytes have changed (crc_num)", 0, path.name)
    assert finding.expected == str(recorded)
    assert str(finding.found).isdigit()
    assert finding.found != finding.expected


def test_replicas_are_compared_where_asked(tmp_path: Path) -> None:
    """Data parallel ranks hold the same weights, bit by bit; that costs reading everything."""
    folder = copy_of("dp2tp2opt", tmp_path / "set")
    flip(shard_path(folder, 2), HEAD)  # optimizer parallelism leaves no replica of it
    assert findings(folder, strategy_of("dp2tp2opt"), replicas=True) == []
    folder = copy_of("dp4", tmp_path / "other")
    flip(shard_path(folder, 2), HEAD)
    assert findings(folder, strategy_of("dp4")) == []
    wanted = ShardFinding("differs from its replica", 2, "rank_2/net2.ckpt", HEAD, "the bytes of rank 0", "others")
    assert findings(folder, strategy_of("dp4"), replicas=True) == [wanted]


def test_replicas_may_have_been_left_out_when_it_was_saved(tmp_path: Path) -> None:
    """remove_redundancy: a parameter need only be on one of its replicas, and the file says so."""
    entry = {"dtype": "I8", "shape": [2], "data_offsets": [0, 2]}
    layout = {"dev_matrix": [2], "tensor_map": [-1]}
    (tmp_path / "s.json").write_bytes(json_strategy({"w": layout, "v": layout}))
    strategy = read_strategy(tmp_path / "s.json")
    for removed, expected in (("True", []), ("False", [(0, "v"), (1, "w")])):
        folder = tmp_path / removed
        for rank, name in enumerate("wv"):
            (folder / f"rank_{rank}").mkdir(parents=True)
            header = {"__metadata__": {"format": "ms", "remove_redundancy": removed}, name: entry}
            (folder / f"rank_{rank}" / "net.safetensors").write_bytes(safetensors_bytes(header, b"ab"))
        assert [(f.rank, f.parameter) for f in findings(folder, strategy)] == expected


def test_everything_is_told_at_once(tmp_path: Path, bench: Bench) -> None:
    """One run names all that is wrong, in lines that say where, what, expected and found; the exit code is 2."""
    folder = copy_of("tp4", tmp_path / "set")
    shutil.rmtree(folder / "rank_0")
    write_anew(shard_path(folder, 1), b"\x0a\xff")
    change(folder, 2, net_emb=None, net_head=("Float32", (16, 8), bytes(512)))
    change(folder, 3, net_blocks_0_gamma=("Int32", (16,), bytes(64)))
    args = ("ckpt", "verify", str(folder), "--strategy", str(strategy_file("tp4")))
    done = bench.mslaunch(*args)
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout.splitlines() == [
        f"{folder}: error: {words}"
        for words in (
            "rank 1, rank_1/net1.ckpt: not a whole checkpoint: a number without end",
            "rank 0: no checkpoint: expected one for each of 4 ranks",
            "rank 3, rank_3/net3.ckpt, net.blocks.0.gamma: wrong type: expected Float32, found Int32",
            "rank 2, rank_2/net2.ckpt, net.emb: missing: expected as on the other ranks of its stage",
            "rank 2, rank_2/net2.ckpt, net.head: wrong slice: expected 16x16, found 16x8",
        )
    ]
    as_json = bench.mslaunch(*args, "--json")
    assert as_json.returncode == 2
    last = json.loads(as_json.stdout)[-1]
    assert last == {
        "what": "wrong slice",
        "rank": 2,
        "file": "rank_2/net2.ckpt",
        "parameter": "net.head",
        "expected": "16x16",
        "found": "16x8",
        "severity": "error",
    }


def test_a_set_that_is_right_exits_with_zero(bench: Bench) -> None:
    """Said in one line, or as an empty list."""
    folder, strategy = str(checkpoints("pp2tp2")), str(strategy_file("pp2tp2"))
    done = bench.mslaunch("ckpt", "verify", folder, "--strategy", strategy, "--replicas")
    assert (done.returncode, done.stdout) == (0, f"{folder}: 4 ranks: complete and as {strategy} says\n")
    done = bench.mslaunch("ckpt", "verify", folder, "--strategy", strategy, "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, [])


def test_replicas_need_a_strategy(bench: Bench) -> None:
    """Nothing else says which ranks hold the same."""
    done = bench.mslaunch("ckpt", "verify", str(checkpoints("dp4")), "--replicas")
    assert done.returncode == 2
    assert done.stderr.startswith("mslaunch: --replicas needs --strategy")


@pytest.mark.parametrize("kind", ["overlapping", "right", "zeros"])
def test_slices_that_mindspore_wrote_wrong_are_a_warning(tmp_path: Path, kind: str) -> None:
    """With safetensors 0.8 its transform writes a view as if it had no gaps: the next slice begins inside this one."""
    whole = bytes(range(64)) if kind != "zeros" else bytes(64)
    for rank in range(2):
        rows = b"".join(whole[row + 4 * rank : row + 4 * rank + 4] for row in range(0, 64, 8))
        data = whole[4 * rank : 4 * rank + 32] if kind == "overlapping" else rows
        content: Content = {"a": ("Int8", (8, 4), data), "w": ("Int8", (8, 4), data)}
        write_shard(tmp_path / f"rank_{rank}/net.safetensors", content)
    strategy = Strategy("s", {0: dict.fromkeys(("a", "w"), Layout((2,), ((), (0,))))}, False)
    found = [finding.words() for finding in findings(tmp_path, strategy)]
    assert len(found) == (kind == "overlapping")
    for words in found:
        assert words.startswith("warning: rank 1, rank_1/net.safetensors, a: begins inside the slice of rank 0, and so")
        assert "with safetensors 0.8: make the set again with `mslaunch ckpt reshard`" in words
