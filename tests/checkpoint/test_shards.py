"""Checkpoint files of both formats: their headers, the same bytes as MindSpore's, and whatever else is in a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mslaunch.checkpoint.formats import ckpt
from mslaunch.checkpoint.formats.table import read_shard
from mslaunch.checkpoint.sharding.reshard import Target
from mslaunch.checkpoint.sharding.strategy import Layout, Strategy
from mslaunch.documents import protobuf
from mslaunch.errors import RequestError, ShardUnreadable
from tests.beds.sharded import (
    FIXTURES,
    Content,
    checkpoints,
    ckpt_tensor,
    ckpt_value,
    content_of,
    contents_of,
    known_content,
    needs_mindspore,
    plan,
    safetensors_bytes,
    shard_bytes,
    write_anew,
    write_shard,
    write_with_mindspore,
)
from tests.conftest import Bench

FILES = sorted((FIXTURES / "checkpoints").rglob("*.ckpt"))
SMALL: Content = {
    "net.weight": ("Float32", (2, 3), bytes(range(24))),
    "net.brain": ("BFloat16", (3,), b"abcdef"),
    "step": ("Int32", (), b"\x07\0\0\0"),
}
ANY_FILE = settings(max_examples=200, deadline=None)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_with_mindspore(tmp_path_factory)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.parent.name}-{path.stem}")
def test_the_frame_is_mindspores_own(path: Path) -> None:
    """A shard that is taken apart and framed anew is the same file, byte for byte."""
    assert shard_bytes(path, content_of(path)) == path.read_bytes()


def test_headers_tell_names_types_shapes_and_sizes() -> None:
    """In the order of the file."""
    shard = read_shard(checkpoints("full") / "rank_0" / "net.ckpt")
    assert len(shard.tensors) == 31
    head = shard.tensors["net.head"]
    assert (head.dtype, head.shape, head.nbytes, head.words()) == ("Float32", (16, 64), 4096, "Float32 16x64")
    assert [*shard.tensors][-1] == "global_step"
    assert (shard.crc, shard.redundancy_removed) == (None, False)


@needs_mindspore
@pytest.mark.parametrize("name", ["plain.ckpt", "split.ckpt", "split_async.ckpt", "crc.ckpt", "plain.safetensors"])
def test_what_mindspore_wrote_is_read_as_it_was_meant(written: Path, name: str) -> None:
    """All types, scalars, and tensors in one piece or in several."""
    content = content_of(written / name)
    note = content.pop("note", None)
    assert content == known_content(written)
    assert (note is not None) is (name == "plain.ckpt")  # a text has a type of its own
    assert (read_shard(written / name).crc is not None) is name.startswith("crc")


def pieces(path: Path, name: str) -> list[int]:
    return [length for _, length in read_shard(path).tensors[name].parts]


@needs_mindspore
def test_large_tensors_are_split_where_mindspore_splits_them(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every so many bytes, whatever the type: the same file, byte for byte."""
    path = written / "split.ckpt"
    assert pieces(path, "rows") == [1024, 1024, 1024, 928]
    assert pieces(path, "brain") == [1024] * 4 + [104]
    assert pieces(path, "scalar") == [4]
    monkeypatch.setattr(ckpt, "SPLIT_ABOVE", 1024)
    assert shard_bytes(path, content_of(path)) == path.read_bytes()


@needs_mindspore
def test_tensors_that_mindspore_split_by_rows_are_read(written: Path) -> None:
    """That is what it does where it saves asynchronously; some pieces may even be empty."""
    assert pieces(written / "split_async.ckpt", "rows") == [1200, 1200, 800, 800]
    assert pieces(written / "split_async.ckpt", "wide") == [4000] * 3 + [0] * 9


@needs_mindspore
def test_plain_files_of_mindspore_are_framed_the_same(written: Path) -> None:
    """Also scalars, and a text among the parameters."""
    path = written / "plain.ckpt"
    assert shard_bytes(path, content_of(path)) == path.read_bytes()


@pytest.mark.parametrize("suffix", [".ckpt", ".safetensors"])
def test_what_is_written_is_read_back(tmp_path: Path, suffix: str) -> None:
    """Both formats, with a scalar, a tensor of no elements, and names beyond ASCII."""
    content: Content = {**SMALL, "größe.重": ("Int8", (3,), b"abc"), "none": ("Float32", (0, 4), b"")}
    assert content_of(write_shard(tmp_path / f"a{suffix}", content)) == content


def test_safetensors_are_aligned(tmp_path: Path) -> None:
    """Each tensor begins at a multiple of its element's size, whatever their order was."""
    content: Content = {
        "a": ("Bool", (3,), bytes(3)),
        "b": ("Float16", (1,), bytes(2)),
        "c": ("Int64", (1,), bytes(8)),
        "d": ("Float32", (3,), bytes(12)),
        "e": ("Float64", (), bytes(8)),
    }
    for tensor in read_shard(write_shard(tmp_path / "a.safetensors", content)).tensors.values():
        assert tensor.itemsize is not None
        assert tensor.parts[0][0] % tensor.itemsize == 0


def test_a_text_cannot_go_into_safetensors(tmp_path: Path) -> None:
    """The parameter and the way out are named."""
    with pytest.raises(RequestError, match=r"note: str cannot be written to .safetensors. Keep .ckpt."):
        write_shard(tmp_path / "a.safetensors", {"note": ("str", (), b"abcd")})


@pytest.mark.parametrize("dtype", ["Float32", "BFloat16"])
def test_split_tensors_are_resharded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    """Pieces of the old file and of the new one need not meet at the same places."""
    monkeypatch.setattr(ckpt, "SPLIT_ABOVE", 100)
    size = 4 if dtype == "Float32" else 2
    data = bytes(index % 251 for index in range(14 * 12 * size))
    write_shard(tmp_path / "whole" / "net.ckpt", {"w": (dtype, (14, 12), data)})
    cut = Strategy("cut", {0: {"w": Layout((3, 2), ((1,), (0,)))}}, False)
    plan(tmp_path / "whole", None, Target(cut)).write(tmp_path / "cut")
    shards = contents_of(tmp_path / "cut")
    for rank, content in shards.items():
        top, left = 7 * (rank % 2), 4 * (rank // 2)
        rows = [data[(row * 12 + left) * size : (row * 12 + left + 4) * size] for row in range(top, top + 7)]
        assert content == {"w": (dtype, (7, 4), b"".join(rows))}
    assert len(pieces(tmp_path / "whole" / "net.ckpt", "w")) > 3
    assert len(pieces(tmp_path / "cut/rank_0/net0.ckpt", "w")) == (2 if dtype == "Float32" else 1)
    plan(tmp_path / "cut", cut, Target()).write(tmp_path / "again")
    assert contents_of(tmp_path / "again")[0] == {"w": (dtype, (14, 12), data)}


ONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
NAME, TYPE = protobuf.field_bytes(1, b"w"), protobuf.field_bytes(2, b"Float32")
HOSTILE: dict[str, tuple[str, bytes]] = {
    "an empty .ckpt": (".ckpt", b""),
    "an empty .safetensors": (".safetensors", b""),
    "zeros": (".ckpt", bytes(100)),
    "zeros called .safetensors": (".safetensors", bytes(100)),
    "a value of 2^63 bytes": (".ckpt", protobuf.field_head(1, 1 << 63) + bytes(50)),
    "a tensor of 2^63 bytes": (".ckpt", protobuf.field_bytes(1, NAME + protobuf.field_head(2, 1 << 63))),
    "contents of 2^63 bytes": (".ckpt", ckpt_value(b"w", TYPE, protobuf.field_head(3, 1 << 63))),
    "contents of 2^64 - 1 bytes": (".ckpt", ckpt_value(b"w", TYPE, protobuf.field_head(3, (1 << 64) - 1))),
    "a name of 2^63 bytes": (".ckpt", protobuf.field_bytes(1, protobuf.field_head(1, 1 << 63))),
    "a name of 2 MB": (".ckpt", ckpt_value(b"n" * (2 << 20), ckpt_tensor([0]))),
    "a name that is no text": (".ckpt", ckpt_value(b"\xff\xfe", ckpt_tensor([0]))),
    "no name": (".ckpt", ckpt_value(b"", ckpt_tensor([0]))),
    "no type": (".ckpt", ckpt_value(b"w", ckpt_tensor([1], b"", b"abcd"))),
    "no contents": (".ckpt", ckpt_value(b"w", TYPE)),
    "no tensor": (".ckpt", protobuf.field_bytes(1, NAME)),
    "a map": (".ckpt", protobuf.field_bytes(1, NAME + protobuf.field_bytes(3, b"x"))),
    "a negative dimension": (".ckpt", ckpt_value(b"w", ckpt_tensor([-1, -4], data=b"abcd" * 4))),
    "a shape that is too large": (".ckpt", ckpt_value(b"w", ckpt_tensor([1 << 62, 1 << 62], data=b"abcd"))),
    "a shape that is too small": (".ckpt", ckpt_value(b"w", ckpt_tensor([1], data=b"abcdefgh"))),
    "a shape beyond printing": (".ckpt", ckpt_value(b"w", ckpt_tensor([1 << 62] * 240, data=b"abcd"))),
    "endless dimensions": (".ckpt", ckpt_value(b"w", ckpt_tensor([1 << 62] * 60_000, data=b"abcd"))),
    "packed dimensions without end": (".ckpt", ckpt_value(b"w", protobuf.field_bytes(1, b"\xff"), TYPE)),
    "a field that no tensor has": (".ckpt", ckpt_value(b"w", protobuf.field_bytes(9, b"x"), ckpt_tensor([0]))),
    "the same name twice": (
        ".ckpt",
        b"".join(ckpt_value(n, ckpt_tensor([1], data=b"abcd")) for n in (b"a", b"b", b"a")),
    ),
    "one name, two types": (".ckpt", ckpt_value(b"a", ckpt_tensor([0])) + ckpt_value(b"a", ckpt_tensor([0], b"Int8"))),
    "a strategy": (".ckpt", (FIXTURES / "strategies/tp2/strategy_0.ckpt").read_bytes()),
    "a header of 2^63 bytes": (".safetensors", (1 << 63).to_bytes(8, "little") + b"{}"),
    "a header of 2^64 - 1 bytes": (".safetensors", b"\xff" * 20),
    "a header that is no JSON": (".safetensors", safetensors_bytes(b"{nothing}")),
    "a header that is no text": (".safetensors", safetensors_bytes(b"\xff\xff")),
    "a header that is a list": (".safetensors", safetensors_bytes([1])),
    "a bottomless header": (".safetensors", safetensors_bytes(b'{"a":' * 100_000)),
    "a bottomless list": (".safetensors", safetensors_bytes(b"[" * 100_000)),
    "metadata that is a list": (".safetensors", safetensors_bytes({"__metadata__": [1]})),
    "a name twice": (
        ".safetensors",
        safetensors_bytes(b'{"w":%b,"w":%b}' % ((json.dumps(ONE).encode(),) * 2), b"abcd"),
    ),
    "a name that is no character": (".safetensors", safetensors_bytes({"\ud800": ONE}, b"abcd")),
    "an entry that is a number": (".safetensors", safetensors_bytes({"w": 5})),
    "an entry without offsets": (".safetensors", safetensors_bytes({"w": {"dtype": "F32", "shape": [1]}}, b"abcd")),
    "bytes behind the last": (".safetensors", safetensors_bytes({"w": ONE}, b"abcde")),
    "a byte too few": (".safetensors", safetensors_bytes({"w": ONE}, b"abc")),
    "overlapping": (".safetensors", safetensors_bytes({"w": ONE, "v": {**ONE, "data_offsets": [2, 6]}}, b"abcdef")),
    "one on the other": (".safetensors", safetensors_bytes({"w": ONE, "v": ONE}, b"abcd")),
    "a gap": (".safetensors", safetensors_bytes({"w": ONE, "v": {**ONE, "data_offsets": [6, 10]}}, bytes(10))),
}
ENTRIES: dict[str, Any] = {
    "shape": [-1, [-1, -4], [1 << 70], [10**4000] * 2, [1.0], ["1"], [True], None, {}, [[1]], [1 << 40] * 300],
    "data_offsets": [[4, 0], [-4, 0], [0], [0, 4, 8], [0, 1 << 63], [10**4299 * 9] * 2, ["0", "4"], None, [0, 8]],
    "dtype": [5, None, ["F32"], "F64", "\ud800"],
}
HOSTILE |= {
    f"{key} {index}": (".safetensors", safetensors_bytes({"w": {**ONE, key: value}}, b"abcd"))
    for key, values in ENTRIES.items()
    for index, value in enumerate(values)
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, kind: str) -> None:
    """Whatever is wrong with a file: one error with its name, never a traceback."""
    suffix, data = HOSTILE[kind]
    path = tmp_path / f"a{suffix}"
    path.write_bytes(data)
    with pytest.raises(ShardUnreadable, match=f"a{suffix}: not a whole checkpoint: ."):
        read_shard(path)


def test_what_is_no_file_is_no_checkpoint(tmp_path: Path) -> None:
    """A folder, nothing at all, and a pipe that nobody writes to, which must not make it wait."""
    (tmp_path / "folder.ckpt").mkdir()
    os.mkfifo(tmp_path / "pipe.ckpt")
    for name, words in (("folder", "no regular file"), ("none", "no such file"), ("pipe", "no regular file")):
        with pytest.raises(ShardUnreadable, match=words):
            read_shard(tmp_path / f"{name}.ckpt")
    with pytest.raises(RequestError, match=r"checkpoints end in .ckpt or .safetensors"):
        read_shard(tmp_path / "net.h5")


def test_hostile_files_take_no_memory(tmp_path: Path) -> None:
    """All of them, and large ones with room for what they announce, within 64 MB more than Python itself has."""
    for index, (suffix, data) in enumerate(HOSTILE.values()):
        (tmp_path / f"{index}{suffix}").write_bytes(data)
    for name, start in (
        ("name.ckpt", protobuf.field_head(1, (1 << 40) - 20) + protobuf.field_head(1, 1 << 39)),
        ("header.safetensors", (1 << 39).to_bytes(8, "little") + b"{"),
        ("zeros.ckpt", b""),
    ):
        with (tmp_path / name).open("wb") as file:
            file.write(start)
            file.truncate(1 << 40)
    code = (
        "import pathlib, resource, sys\nfrom mslaunch.checkpoint.formats.table import read_shard\n"
        "from mslaunch.errors import ShardUnreadable\n"
        "pages = int(open('/proc/self/statm').read().split()[0])\n"
        "resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (64 << 20),) * 2)\n"
        "for path in map(pathlib.Path, sys.argv[1:]):\n"
        "    try:\n        read_shard(path)\n    except ShardUnreadable:\n        print(path.name)\n"
    )
    names = sorted(path.name for path in tmp_path.iterdir())
    done = subprocess.run([sys.executable, "-c", code, *names], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, names), done.stderr[-2000:]


def test_a_tensor_in_very_many_pieces_is_read(tmp_path: Path) -> None:
    """They are put together once, not again with every piece."""
    path = tmp_path / "a.ckpt"
    path.write_bytes(ckpt_value(b"w", ckpt_tensor([20_000], b"Int8", b"a")) * 20_000)
    assert pieces(path, "w") == [1] * 20_000


@pytest.mark.parametrize("length", [10, 4000, 4050, *range(4060, 4080), 5000, 100_000])
def test_a_name_may_be_long(tmp_path: Path, length: int) -> None:
    """Also where the head of a value ends just at the end of what is read at first."""
    content: Content = {"n" * length: ("Int8", (1,), b"a")}
    assert content_of(write_shard(tmp_path / "a.ckpt", content)) == content


@pytest.mark.parametrize("suffix", [".ckpt", ".safetensors"])
def test_every_cut_is_seen(tmp_path: Path, suffix: str) -> None:
    """In a length, a name, a shape, a tensor; only between two values of a .ckpt nothing tells that more came."""
    path = tmp_path / f"a{suffix}"
    whole = shard_bytes(path, SMALL)
    between = (
        {len(shard_bytes(path, dict([*SMALL.items()][:count]))) for count in (1, 2)} if suffix == ".ckpt" else set()
    )
    for size in range(len(whole)):
        write_anew(path, whole[:size])
        if size not in between:
            with pytest.raises(ShardUnreadable):
                read_shard(path)


def read_anyway(path: Path, data: bytes) -> None:
    """Read what may be a checkpoint or not; nothing but ShardUnreadable may come of it."""
    write_anew(path, data)
    try:
        shard = read_shard(path)
    except ShardUnreadable:
        return
    for tensor in shard.tensors.values():
        assert all(at >= 0 and at + length <= len(data) for at, length in tensor.parts)


@pytest.mark.parametrize("suffix", [".ckpt", ".safetensors"])
def test_no_flipped_bit_makes_it_stumble(tmp_path: Path, suffix: str) -> None:
    """Every bit of a small file, one at a time: refused, or read with every tensor inside the file."""
    path = tmp_path / f"a{suffix}"
    whole = shard_bytes(path, SMALL)
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        read_anyway(path, bytes(data))


@ANY_FILE
@given(st.data(), st.sampled_from([".ckpt", ".safetensors"]))
def test_no_damage_makes_it_stumble(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, suffix: str) -> None:
    """Random bytes, and files with bytes changed, taken out or put in anywhere."""
    path = tmp_path_factory.getbasetemp() / f"damaged{suffix}"
    content = bytearray(data.draw(st.just(shard_bytes(path, SMALL)) | st.binary(min_size=1, max_size=300)))
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(content)))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    read_anyway(path, bytes(content))


def test_show_lists_a_file_and_a_set(bench: Bench) -> None:
    """As text and as JSON, from headers alone."""
    path = checkpoints("tp2") / "rank_1" / "net1.ckpt"
    lines = bench.mslaunch("ckpt", "show", str(path)).stdout.splitlines()
    assert lines[0] == f"{path}: 31 parameters, 38.2 KB"
    assert "net.head                    Float32  [16, 32]  2.0 KB" in lines
    shown = json.loads(bench.mslaunch("ckpt", "show", "--json", str(checkpoints("tp2"))).stdout)
    assert [shown["step"], *shown["ranks"]] == [None, "0", "1"]
    head = {"name": "net.head", "type": "Float32", "shape": [16, 32], "bytes": 2048}
    assert head in shown["ranks"]["1"]["parameters"]
    assert "2 ranks, no step in the names, 76.4 KB" in bench.mslaunch("ckpt", "show", str(checkpoints("tp2"))).stdout
