"""Files of torch.save and folders of safetensors: every tensor is found and read, whatever is cut short is refused."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mslaunch.checkpoint.moving.views import bytes_of
from mslaunch.errors import MslaunchError, RequestError
from mslaunch.weights.diff import Files
from mslaunch.weights.opening import open_weights
from tests.beds.sharded import Content, safetensors_bytes, write_shard
from tests.beds.torch_files import Call, Global, Saved, ask_torch, needs_torch, save_older, save_state, save_zip

BYTES = bytes(range(24))
STATE: Content = {"a.weight": ("Int8", (2, 3), b"abcdef"), "a.bias": ("Int8", (3,), b"xyz")}

TORCH = """
import json, sys
import torch
torch.manual_seed(0)
tied = torch.randn(6, 4)
state = {
    "e4m3": torch.randn(3, 5).to(torch.float8_e4m3fn), "e5m2": torch.randn(70).to(torch.float8_e5m2),
    "brain": torch.randn(2, 2, dtype=torch.bfloat16), "half": torch.randn(7).half(), "double": torch.randn(4).double(),
    "u16": torch.arange(2).to(torch.uint16), "i64": torch.arange(4), "i8": torch.arange(4).to(torch.int8),
    "bool": torch.tensor([True, False]), "parameter": torch.nn.Parameter(torch.randn(2)), "scalar": torch.tensor(1.5),
    "empty": torch.zeros(0, 3), "transposed": torch.arange(6.0).reshape(2, 3).t(), "every_second": torch.arange(6)[::2],
    "expanded": torch.tensor([3.0]).expand(4, 2), "inner": torch.randn(10, 10)[2:5, 3:7],
    "permuted": torch.randn(300, 500, 2).permute(2, 0, 1), "tied": tied, "tied_too": tied, "row": tied[2:4],
}
torch.save(state, sys.argv[1] + "/zip.pth")
torch.save(state, sys.argv[1] + "/older.pth", _use_new_zipfile_serialization=False)
wrapped = torch.nn.DataParallel(torch.nn.BatchNorm1d(3))
torch.save({"epoch": 3, "state_dict": wrapped.state_dict()}, sys.argv[1] + "/nested.pth")
known = {
    name: [list(t.shape), t.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes().hex()]
    for name, t in state.items()
}
with open(sys.argv[1] + "/known.json", "w") as file:
    json.dump(known, file)
"""


def values(path: Path, key: str | None = None) -> dict[str, tuple[tuple[int, ...], bytes]]:
    """Shape and bytes of everything at a place."""
    with ExitStack() as opened:
        files = Files(opened)
        return {
            name: (weight.shape, bytes(bytes_of(files.block(weight, tuple((0, size) for size in weight.shape)))))
            for name, weight in open_weights(path, key=key).items()
        }


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torch")
    ask_torch(TORCH, folder)
    return folder


@needs_torch
@pytest.mark.parametrize("name", ["zip.pth", "older.pth"])
def test_what_torch_saved_is_read_bit_by_bit(written: Path, name: str) -> None:
    """All types, views that are strided, shared, expanded, empty or scalar, in both formats."""
    known = json.loads((written / "known.json").read_text())
    assert values(written / name) == {key: (tuple(shape), bytes.fromhex(data)) for key, (shape, data) in known.items()}


@needs_torch
def test_a_state_dict_of_torch_is_found_in_what_was_saved(written: Path) -> None:
    """Below state_dict, and without the word that DataParallel puts before each name."""
    names = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    assert list(values(written / "nested.pth")) == names


VIEWS = {
    "whole": (Saved("s", "Int8", (2, 3), count=24), BYTES[:6]),
    "transposed": (Saved("s", "Int8", (3, 2), (1, 3), count=24), bytes([0, 3, 1, 4, 2, 5])),
    "from the middle": (Saved("s", "Int8", (4,), (1,), 20, 24), BYTES[20:]),
    "every third": (Saved("s", "Int8", (4,), (3,), 1, 24), bytes([1, 4, 7, 10])),
    "expanded": (Saved("s", "Int8", (2, 3), (0, 1), 5, 24), bytes([5, 6, 7] * 2)),
    "scalar": (Saved("s", "Int8", (), (), 7, 24), b"\x07"),
    "empty": (Saved("s", "Int8", (0, 5), (5, 1), 0, 24), b""),
    "one of many dimensions": (Saved("s", "Int8", (1, 2, 1, 2), (99, 2, 99, 1), 0, 24), bytes([0, 1, 2, 3])),
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_of_a_storage_is_read_as_what_it_shows(tmp_path: Path, view: str) -> None:
    """By offset and strides, in both formats; the storage is shared with another."""
    saved, expected = VIEWS[view]
    value = {"w": saved, "other": Saved("s", "Int8", (24,))}
    assert values(save_zip(tmp_path / "a.pth", value, {"s": BYTES}))["w"] == (saved.shape, expected)
    assert values(save_older(tmp_path / "b.pth", value, {"s": (24, BYTES)}))["w"] == (saved.shape, expected)


NESTED: dict[str, tuple[Any, str | None]] = {
    "state_dict": ({"epoch": 1, "state_dict": {"w": Saved("s", "Int8", (2,))}, "note": "x"}, None),
    "model in state_dict": ({"state_dict": {"model": {"w": Saved("s", "Int8", (2,))}}}, None),
    "an only one": ({"generator": {"w": Saved("s", "Int8", (2,))}, "lr": 1}, None),
    "beside an optimizer": (
        {"model": {"w": Saved("s", "Int8", (2,))}, "optimizer": {"state": {0: {"avg": Saved("s", "Int8", (2,))}}}},
        None,
    ),
    "by its key": (
        {"a": {"b": {"w": Saved("s", "Int8", (2,))}}, "c": {"w": Saved("s", "Int8", (1,))}},
        "a.b",
    ),
    "an OrderedDict": (Call(Global("collections.OrderedDict"), ([("w", Saved("s", "Int8", (2,)))],)), None),
    "DataParallel": ({"module.w": Saved("s", "Int8", (2,))}, None),
    "torch.compile": ({"_orig_mod.module.w": Saved("s", "Int8", (2,))}, None),
}


@pytest.mark.parametrize("kind", NESTED)
def test_the_state_dict_is_found_where_programs_keep_it(tmp_path: Path, kind: str) -> None:
    """Under the usual words, as the only one, or by --key."""
    value, key = NESTED[kind]
    assert values(save_zip(tmp_path / "a.pth", value, {"s": b"ab"}), key) == {"w": ((2,), b"ab")}


TENSOR = Saved("s", "Int8", (2,))
IN_PARTS: dict[str, tuple[Any, set[str]]] = {
    "lists and tuples": (
        {"w": TENSOR, "blocks": [TENSOR, {"a": TENSOR}], "tup": (TENSOR,), "sizes": (1, 2), "same": (1, 2)},
        {"w", "blocks.0", "blocks.1.a", "tup.0"},
    ),
    "only a list": ({"blocks": [TENSOR, TENSOR]}, {"blocks.0", "blocks.1"}),
    "a list in a state_dict": ({"state_dict": {"blocks": [[TENSOR]]}, "epoch": 3}, {"blocks.0.0"}),
    "a name like an optimizer's": (
        {"w": TENSOR, "optimal_head": {"weight": TENSOR}},
        {"w", "optimal_head.weight"},
    ),
    "beside a list of optimizers' states": (
        {"w": TENSOR, "optimizers": [{"state": {0: TENSOR}, "param_groups": []}], "rng_state": [TENSOR]},
        {"w"},
    ),
}


@pytest.mark.parametrize("kind", IN_PARTS)
def test_no_tensor_of_a_network_is_lost(tmp_path: Path, kind: str) -> None:
    """Those in lists and tuples are named by their places, and a name alone makes nothing an optimizer's."""
    value, names = IN_PARTS[kind]
    assert values(save_zip(tmp_path / "a.pth", value, {"s": b"ab"})) == dict.fromkeys(names, ((2,), b"ab"))


def _without(path: Path, name: str) -> None:
    """Write a zip file again without one entry."""
    with zipfile.ZipFile(path) as old:
        kept = {entry: old.read(entry) for entry in old.namelist() if not entry.endswith(name)}
    with zipfile.ZipFile(path, "w") as new:
        for entry, data in kept.items():
            new.writestr(entry, data)


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-30]), "no whole zip file"),
    "empty": (lambda path: path.write_bytes(b""), "neither a zip file nor a pickle"),
    "text": (lambda path: path.write_bytes(b"hello"), "neither a zip file nor a pickle"),
    "no pickle": (lambda path: _without(path, "data.pkl"), "a zip file without data.pkl"),
    "no storage": (lambda path: _without(path, "data/a.bias"), "a.bias: its storage a.bias is not in the file"),
    "another pickle": (lambda path: path.write_bytes(b"\x80\x02N."), "a pickle, but not one of torch.save"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_file_that_is_not_whole_is_refused(tmp_path: Path, kind: str) -> None:
    """In one sentence with its name."""
    path = save_state(tmp_path / "a.pth", STATE)
    spoil, words = BROKEN[kind]
    spoil(path)
    with pytest.raises(RequestError, match=words) as refused:
        open_weights(path)
    assert str(refused.value).startswith(f"{path}: not a state_dict that can be read: ")


def _with_metadata(name: str) -> Call:
    """A tensor as torch saves one whose values it changes when they are read."""
    call = Saved("s", "Int8", (2,)).call()
    return Call(call.callee, (*call.arguments, {name: True}))


NEGATED, CONJUGATED = _with_metadata("neg"), _with_metadata("conj")
WRONG: dict[str, tuple[Any, dict[str, bytes], str]] = {
    "beyond its storage": ({"w": Saved("s", "Int8", (3,))}, {}, "reaches to byte 3 of a storage of 2"),
    "strides beyond": ({"w": Saved("s", "Int8", (2,), (9,))}, {}, "reaches to byte 10 of a storage of 2"),
    "a view that repeats": ({"w": Saved("s", "Int8", (1 << 40,), (0,))}, {}, "a view that makes 1048576 MB of 2 bytes"),
    "big-endian": ({"w": Saved("s", "Int8", (2,))}, {"byteorder": b"big"}, "big-endian"),
    "a program": ({"w": Saved("s", "Int8", (2,))}, {"constants.pkl": b""}, "a TorchScript program"),
    "no tensor": ({"epoch": 1}, {}, "it holds no tensor"),
    "several": (
        {"a": {"w": Saved("s", "Int8", (2,))}, "b": {"w": Saved("s", "Int8", (2,))}},
        {},
        r"several state_dicts \(a, b\). Say which one with --key",
    ),
    "an optimizer's state, or not": (
        {"w": Saved("s", "Int8", (2,)), "optim": {"weight": Saved("s", "Int8", (2,))}},
        {},
        "optim holds tensors, and may be an optimizer's state or a part of the network",
    ),
    "negated when it is read": ({"a.w": NEGATED}, {}, r"a.w is a view .* \(neg\). Save its .resolve_neg\(\)"),
    "conjugated when it is read": ({"w": CONJUGATED}, {}, r"w is a view .* \(conj\). Save its .resolve_conj\(\)"),
    "a set of tensors": (
        {"a": Saved("s", "Int8", (2,)), "w": Call(Global("builtins.set"), ([Saved("s", "Int8", (2,))],))},
        {},
        "puts a tensor into builtins.set",
    ),
    "a name twice": (
        {"a.w": Saved("s", "Int8", (2,)), "a": {"w": Saved("s", "Int8", (1,))}},
        {},
        "a.w stands in it twice",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_cannot_be_read_right_is_refused(tmp_path: Path, kind: str) -> None:
    """With the tensor and the reason."""
    value, more, words = WRONG[kind]
    with pytest.raises(RequestError, match=words):
        open_weights(save_zip(tmp_path / "a.pth", value, {"s": b"ab"}, **more))


def test_a_compressed_file_is_refused(tmp_path: Path) -> None:
    """Its bytes do not lie in it as they are."""
    path = tmp_path / "a.pth"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}." + b" " * 100)
    with pytest.raises(RequestError, match="compressed or encrypted"):
        open_weights(path)


def _write_parts(folder: Path) -> None:
    write_shard(folder / "model-00001-of-00002.safetensors", {"a": ("Int8", (2,), b"ab")})
    write_shard(folder / "model-00002-of-00002.safetensors", {"b": ("Int8", (1,), b"c")})


PARTS = {"a": ((2,), b"ab"), "b": ((1,), b"c")}
MAP = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}


def test_numbered_files_belong_together(tmp_path: Path) -> None:
    """Named by one of them, by their folder, or by an index."""
    _write_parts(tmp_path)
    assert values(tmp_path / "model-00002-of-00002.safetensors") == values(tmp_path) == PARTS
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": MAP}))
    assert values(tmp_path) == values(tmp_path / "model.safetensors.index.json") == PARTS


INDEXES: dict[str, tuple[Any, str]] = {
    "not JSON": (b"{", "not an index"),
    "no map": ({}, "not an index"),
    "a map of numbers": ({"weight_map": {"a": 1}}, "its weight_map is to give each name a file"),
    "a file elsewhere": ({"weight_map": {"a": "../x.safetensors"}}, "a file in the same folder"),
    "a name in the other file": ({"weight_map": {"a": MAP["b"], "b": MAP["a"]}}, "a is not in model-00002"),
    "a name that is nowhere": ({"weight_map": {**MAP, "c": MAP["a"]}}, "c is not in model-00001"),
    "a name too few": ({"weight_map": {"a": MAP["a"], "x": MAP["b"]}}, "x is not in"),
    "a file that is not there": ({"weight_map": {"a": "none.safetensors"}}, "no such file"),
}


@pytest.mark.parametrize("kind", INDEXES)
def test_an_index_must_be_true(tmp_path: Path, kind: str) -> None:
    """Every name in the file that it says, and all files in its folder."""
    index, words = INDEXES[kind]
    _write_parts(tmp_path)
    text = index if isinstance(index, bytes) else json.dumps(index).encode()
    (tmp_path / "model.safetensors.index.json").write_bytes(text)
    with pytest.raises(MslaunchError, match=words):
        open_weights(tmp_path)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    """What is left would be half a network."""
    _write_parts(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(RequestError, match=r"1 of 2 files are missing \(model-00002-of-00002.safetensors\)"):
        open_weights(tmp_path / "model-00001-of-00002.safetensors")


def test_float8_of_safetensors_is_known(tmp_path: Path) -> None:
    """It has a size, so that it can be cut and cast."""
    header = {"w": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}
    (tmp_path / "a.safetensors").write_bytes(safetensors_bytes(header, b"ab"))
    assert open_weights(tmp_path / "a.safetensors")["w"].dtype == "Float8_e4m3fn"
