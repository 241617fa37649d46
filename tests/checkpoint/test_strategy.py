"""Strategy files: reading both forms, merging the stages of a pipeline, refusing what is none."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mslaunch.checkpoint.sharding.strategy import Layout, merge_stages, read_strategy, write_strategy
from mslaunch.documents import protobuf
from mslaunch.errors import RequestError, StrategyUnreadable
from tests.beds.sharded import FIXTURES, STRATEGIES, checkpoints, json_strategy, strategy_file, write_anew
from tests.conftest import Bench

FOLDER = FIXTURES / "strategies"
PIPELINE = FOLDER / "pp2tp2"
ANY_FILE = settings(max_examples=150, deadline=None)


@pytest.mark.parametrize(
    ("layout", "degrees"),
    [
        ("tp2", (1, 2, 2, 2, 1, 1)),
        ("tp4", (1, 4, 4, 4, 1, 1)),
        ("dp4", (1, 4, 4, 1, 4, 1)),
        ("dp2tp2opt", (1, 4, 4, 2, 2, 4)),
        ("pp2tp2", (2, 2, 4, 2, 1, 1)),
    ],
)
def test_degrees_are_what_the_network_was_compiled_with(layout: str, degrees: tuple[int, ...]) -> None:
    """Stages, devices a stage, ranks, and the degrees of tensor, data and optimizer parallelism."""
    read = read_strategy(strategy_file(layout))
    parallel = (read.tensor_parallel, read.data_parallel, read.optimizer_parallel)
    assert (len(read.stages), read.stage_devices, read.world_size, *parallel) == degrees
    assert read.merged is (layout == "pp2tp2")


@pytest.mark.parametrize("layout", ["tp2", "tp4", "dp4", "dp2tp2opt"])
def test_all_ranks_of_a_stage_wrote_the_same(layout: str) -> None:
    """Any rank's file will do."""
    stages = [read_strategy(path).stages for path in sorted((FOLDER / layout).iterdir())]
    assert all(stage == stages[0] for stage in stages)


def test_a_parameter_is_cut_as_its_layout_says() -> None:
    """Tensor parallelism cuts the dimension that is mapped, optimizer parallelism dimension 0 further."""
    layouts = read_strategy(strategy_file("dp2tp2opt")).stages[0]
    assert (layouts["net.head"].tensor_cuts, layouts["net.head"].cuts) == ((1, 2), (2, 2))
    assert (layouts["net.blocks.0.bias"].tensor_cuts, layouts["net.blocks.0.bias"].cuts) == ((2,), (4,))
    assert (layouts["net.emb"].tensor_cuts, layouts["net.emb"].cuts) == ((1, 1), (4, 1))


def test_both_forms_say_the_same(tmp_path: Path) -> None:
    """JSON also records whole shapes; all else can be said in either form."""
    from_json = read_strategy(strategy_file("tp4")).stages[0]
    path = tmp_path / "same.ckpt"
    path.write_bytes(write_strategy(from_json.items()))
    from_protobuf = read_strategy(path).stages[0]
    assert from_json["net.head"].shape == (16, 64)
    assert {name: (x.devices, x.axes) for name, x in from_protobuf.items()} == {
        name: (x.devices, x.axes) for name, x in from_json.items()
    }


def test_merging_stages_gives_what_mindspore_gives() -> None:
    """Byte for byte what merge_pipeline_strategys wrote of the same files."""
    data, suffix, merged = merge_stages(PIPELINE)
    assert (data, suffix) == (strategy_file("pp2tp2").read_bytes(), ".ckpt")
    assert (len(merged.stages), merged.world_size) == (2, 4)


def test_json_stages_are_merged_too(tmp_path: Path) -> None:
    """The merged file is JSON, with every name of every stage."""
    for stage in range(3):
        layouts = {
            "w": {"dev_matrix": [2], "tensor_map": [0]},
            f"only_{stage}": {"dev_matrix": [2], "tensor_map": [-1]},
        }
        (tmp_path / f"s{stage}.json").write_bytes(json_strategy(layouts, stage))
    data, suffix, merged = merge_stages(tmp_path)
    (tmp_path / "all.json").write_bytes(data)
    read = read_strategy(tmp_path / "all.json")
    assert suffix == ".json"
    assert (read.stages, read.merged, read.world_size) == (merged.stages, True, 6)
    assert [sorted(layouts) for layouts in read.stages.values()] == [[f"only_{stage}", "w"] for stage in range(3)]


def fill(folder: Path, **files: Path) -> Path:
    for name, path in files.items():
        shutil.copy(path, folder / f"{name}{path.suffix}")
    return folder


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (
            {"a": PIPELINE / "strategy_0.ckpt", "b": FOLDER / "tp2/strategy_0.ckpt"},
            r"a.ckpt and b.ckpt are both of stage 0, but differ: only one lists accu_grads.net.blocks.0.bias",
        ),
        (
            {"a": FOLDER / "dp4/strategy_0.ckpt", "b": FOLDER / "dp2tp2opt/strategy_0.ckpt"},
            r"a.ckpt and b.ckpt are both of stage 0, but lay out moment1.net.blocks.0.bias differently",
        ),
        ({"a": PIPELINE / "strategy_3.ckpt"}, r"stage 0 is missing; found 1 \(a.ckpt\)"),
        ({"a": strategy_file("pp2tp2")}, "already merged"),
        ({"a": PIPELINE / "strategy_0.ckpt", "b": strategy_file("tp4")}, "both .ckpt and .json"),
        ({"a": FOLDER / "dp4/strategy_0.ckpt", "b": PIPELINE / "strategy_2.ckpt"}, "4 in stage 0, 2 in stage 1"),
        ({"a": checkpoints("full") / "rank_0" / "net.ckpt"}, "It looks like a checkpoint"),
        ({}, "no strategy files"),
    ],
)
def test_what_cannot_be_merged_is_refused(tmp_path: Path, files: dict[str, Path], words: str) -> None:
    """Conflicts, gaps and foreign files, each with its name; MindSpore would silently keep one of them."""
    with pytest.raises(RequestError, match=words):
        merge_stages(fill(tmp_path, **files))


def test_a_single_dimension_cut_along_two_axes_is_written_as_one(tmp_path: Path) -> None:
    """It must not come back as two dimensions."""
    layouts = {"w": Layout((2, 3), ((1, 0),)), "v": Layout((2, 3), ((), (0, 1), ()))}
    path = tmp_path / "s.ckpt"
    path.write_bytes(write_strategy(layouts.items()))
    assert read_strategy(path).stages[0] == layouts


@st.composite
def layouts(draw: st.DrawFn, devices: tuple[int, ...]) -> Layout:
    """A parameter of up to four dimensions, each cut along any axes that are left."""
    free = list(draw(st.permutations(range(len(devices)))))
    axes = []
    for _ in range(draw(st.integers(0, 4))):
        count = draw(st.integers(0, min(2, len(free))))
        axes.append(tuple(free.pop() for _ in range(count)))
    return Layout(devices, tuple(axes))


@ANY_FILE
@given(st.data(), st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple))
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, devices: tuple[int, ...]
) -> None:
    """Whatever the device matrix, and however the dimensions are cut."""
    names = st.text(min_size=1, max_size=8).map(lambda text: f"net.{text}")
    wanted = data.draw(st.dictionaries(names, layouts(devices), min_size=1, max_size=4))
    path = tmp_path_factory.getbasetemp() / "written.ckpt"
    write_anew(path, write_strategy(wanted.items()))
    assert read_strategy(path).stages == {0: wanted}


LAYOUT = {"dev_matrix": [2, 2], "tensor_map": [1, -1]}
IMPOSSIBLE: dict[str, tuple[dict[str, Any], str]] = {
    "no devices": ({"dev_matrix": []}, "device matrix is"),
    "zero devices": ({"dev_matrix": [2, 0]}, "device matrix is"),
    "an axis that is not there": ({"tensor_map": [5, -1]}, "names an axis"),
    "one axis twice": ({"tensor_map": [1, 1]}, "along one axis twice"),
    "slices that devices cannot share": ({"opt_weight_shard_step": 1, "opt_weight_shard_size": 3}, "cannot share"),
    "an uneven cut": ({"param_split_shape": [1, 3]}, "unevenly"),
    "a field": ({"field": 7}, "unevenly"),
    "infinity": ({"dev_matrix": [float("inf")]}, "Infinity is not JSON"),
    "an infinite size": ({"opt_weight_shard_size": float("inf")}, "not a strategy"),
    "a shape of other dimensions": ({"tensor_shape": [4]}, "not as many dimensions"),
    "a shape that cannot be cut so": ({"tensor_shape": [5, 2]}, "cannot be cut as its tensor map says"),
    "endless devices": ({"dev_matrix": [1 << 40, 1 << 40]}, "devices"),
    "endless axes": ({"dev_matrix": [1 << 62] * 300}, "axes"),
    "a number of 4000 digits": ({"dev_matrix": [10**4000, 2]}, "4001 digits"),
    "words for numbers": ({"tensor_map": ["x", None]}, "not a strategy"),
    "no tensor map": ({"tensor_map": None}, "not a strategy"),
}


@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_an_impossible_layout_is_refused(tmp_path: Path, kind: str) -> None:
    """The parameter or the reason is named; no number is too large to say so."""
    change, words = IMPOSSIBLE[kind]
    path = tmp_path / "s.json"
    path.write_bytes(json_strategy({"w": {**LAYOUT, **change}}))
    with pytest.raises(StrategyUnreadable, match=words):
        read_strategy(path)


NO_STRATEGIES: dict[str, tuple[str, bytes, str]] = {
    "empty": (".ckpt", b"", "lists no parameter"),
    "empty JSON": (".json", b"", "not a strategy"),
    "no layouts": (".json", b'{"parallel_layout_item": {}}', "lists no parameter"),
    "other JSON": (".json", b"[1, 2]", "not a strategy"),
    "bottomless JSON": (".json", b"[" * 100_000, "not a strategy"),
    "JSON called .ckpt": (".ckpt", json_strategy({"w": LAYOUT}), r"give it a name that ends in .json"),
    "two sizes": (".json", json_strategy({"w": LAYOUT, "v": {**LAYOUT, "dev_matrix": [2, 4]}}), "numbers of devices"),
    "a stage beyond reason": (".json", json_strategy({"w": LAYOUT}, stage=1 << 62), "it is of stage"),
    "a merged one with gaps": (".json", json_strategy({"0-w": LAYOUT, "2-w": LAYOUT}), "it holds stages 0, 2"),
    "a length of 2^63": (".ckpt", protobuf.field_head(3, 1 << 63) + b"abc", "where 3 are left"),
    "a name that is no text": (".ckpt", protobuf.field_bytes(3, protobuf.field_bytes(1, b"\xff")), "not a strategy"),
    "a checkpoint": (".ckpt", (checkpoints("full") / "rank_0/net.ckpt").read_bytes(), "It looks like a checkpoint"),
}


@pytest.mark.parametrize("kind", NO_STRATEGIES)
def test_what_is_no_strategy_is_refused(tmp_path: Path, kind: str) -> None:
    """MindSpore parses a checkpoint to an empty strategy and then loads nothing; here it is an error."""
    suffix, data, words = NO_STRATEGIES[kind]
    path = tmp_path / f"s{suffix}"
    path.write_bytes(data)
    with pytest.raises(StrategyUnreadable, match=words):
        read_strategy(path)


def test_what_is_no_file_is_no_strategy(tmp_path: Path) -> None:
    """A folder, nothing at all, and a pipe that nobody writes to: each is said as it is, at once."""
    os.mkfifo(tmp_path / "pipe.ckpt")
    with pytest.raises(StrategyUnreadable, match="it is no regular file"):
        read_strategy(tmp_path / "pipe.ckpt")
    with pytest.raises(StrategyUnreadable, match="it is a folder"):
        read_strategy(tmp_path)
    with pytest.raises(RequestError, match="no such strategy file"):
        read_strategy(tmp_path / "none.ckpt")


def test_a_name_with_a_long_number_is_a_name(tmp_path: Path) -> None:
    """Only a short number before the first dash is a stage."""
    path = tmp_path / "s.json"
    path.write_bytes(json_strategy({"9" * 5000 + "-w": LAYOUT}))
    assert not read_strategy(path).merged


@pytest.mark.parametrize("layout", STRATEGIES)
def test_a_truncated_strategy_is_refused(tmp_path: Path, layout: str) -> None:
    """Every cut, but those of protobuf that fall between two parameters: there nothing tells that more came."""
    source = strategy_file(layout)
    data = source.read_bytes()
    between = set()
    if source.suffix == ".ckpt":
        at = 0
        for number, _, value, content in protobuf.fields(data):
            at += len(protobuf.field_bytes(number, content) if content else protobuf.field_number(number, value))
            between.add(at)
        assert at == len(data)
    path = tmp_path / source.name
    for size in range(0, len(data), 11):
        write_anew(path, data[:size])
        if size not in between:
            with pytest.raises(StrategyUnreadable):
                read_strategy(path)


def read_anyway(path: Path, data: bytes) -> None:
    """Read what may be a strategy or not; nothing but StrategyUnreadable may come of it."""
    write_anew(path, data)
    try:
        read = read_strategy(path)
    except StrategyUnreadable:
        return
    assert read.world_size >= 1
    assert read.names()


@ANY_FILE
@given(st.binary(max_size=400), st.sampled_from([".ckpt", ".json"]))
def test_random_bytes_never_make_it_stumble(tmp_path_factory: pytest.TempPathFactory, data: bytes, suffix: str) -> None:
    """They are refused, whatever they are."""
    read_anyway(tmp_path_factory.getbasetemp() / f"random{suffix}", data)


@ANY_FILE
@given(st.data(), st.sampled_from([*STRATEGIES]))
def test_damaged_strategies_never_make_it_stumble(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, layout: str
) -> None:
    """Bytes changed, taken out or put in anywhere: refused, or read as a strategy."""
    source = strategy_file(layout)
    content = bytearray(source.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    read_anyway(tmp_path_factory.getbasetemp() / f"damaged{source.suffix}", bytes(content))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=10,
)


@ANY_FILE
@given(st.dictionaries(st.sampled_from([*LAYOUT, "field", "param_split_shape", "opt_weight_shard_size"]), JSON), JSON)
def test_no_json_makes_it_stumble(tmp_path_factory: pytest.TempPathFactory, layout: dict[str, Any], stage: Any) -> None:
    """Wrong types anywhere are refused, never a traceback."""
    raw = {"parallel_layout_item": {"w": layout}, "parallel_strategy_item": {"op": {"stage": stage}}}
    read_anyway(tmp_path_factory.getbasetemp() / "any.json", json.dumps(raw).encode())


def test_show_tells_stages_degrees_and_cuts(bench: Bench) -> None:
    """One line on the whole, one on each parameter."""
    done = bench.mslaunch("strategy", "show", str(strategy_file("pp2tp2")))
    assert done.returncode == 0
    first, _, head, *rows = done.stdout.splitlines()
    assert first.endswith("2 stages x 2 devices = 4 ranks; tensor parallel 2, data parallel 1, optimizer parallel 1")
    assert head.split() == ["STAGE", "PARAMETER", "CUT"]
    assert len(rows) == 40
    assert "1      net.head                       dimension 1 into 2" in rows
    assert "0      net.emb                        whole" in rows
    lone = bench.mslaunch("strategy", "show", str(PIPELINE / "strategy_2.ckpt")).stdout
    assert "stage 1 of a pipeline, 2 devices; `mslaunch strategy merge` joins the stages" in lone


def test_show_writes_json(bench: Bench) -> None:
    """The same as text, for programs."""
    shown = json.loads(bench.mslaunch("strategy", "show", "--json", str(strategy_file("dp2tp2opt"))).stdout)
    head = next(row for row in shown["parameters"] if row["name"] == "net.head")
    assert (shown["world_size"], shown["stages"], shown["tensor_parallel"], shown["merged"]) == (4, [0], 2, False)
    assert (head["cuts"], head["tensor_cuts"], head["optimizer_cut"]) == ([2, 2], [1, 2], 2)


def test_merge_writes_a_file_that_can_be_shown(bench: Bench) -> None:
    """The command does what the library does, and refuses in one line with exit code 2."""
    done = bench.mslaunch("strategy", "merge", str(PIPELINE), "-o", "all.ckpt")
    assert (done.returncode, done.stdout) == (0, "all.ckpt: 2 stages, 4 ranks\n")
    assert (bench.folder / "all.ckpt").read_bytes() == strategy_file("pp2tp2").read_bytes()
    for args, words in (
        ((str(PIPELINE), "-o", "all.json"), "the stages are .ckpt files"),
        ((str(PIPELINE), "-o", "none/all.ckpt"), "cannot be written: No such file or directory"),
        ((str(FOLDER), "-o", "again.ckpt"), "already merged"),
        ((str(PIPELINE), "-o", "all.ckpt"), "all.ckpt: exists already"),
    ):
        refused = bench.mslaunch("strategy", "merge", *args)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert words in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
    assert sorted(path.name for path in bench.folder.iterdir()) == ["all.ckpt"]
