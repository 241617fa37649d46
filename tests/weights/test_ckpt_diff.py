"""`mslaunch ckpt diff`: what differs, by how much, and under which name it was found."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.beds.sharded import Content, checkpoints, strategy_file, write_shard
from tests.beds.torch_files import Saved, save_state, save_zip
from tests.beds.two_networks import MINDSPORE, TORCH, floats, zeros
from tests.conftest import Bench


def test_the_same_weights_have_no_difference(bench: Bench) -> None:
    """Whatever files they lie in; shards are merged."""
    save_state(bench.folder / "net.pth", TORCH)
    write_shard(bench.folder / "net.safetensors", TORCH)
    done = bench.mslaunch("ckpt", "diff", "net.pth", "net.safetensors")
    assert (done.returncode, done.stdout) == (0, "net.pth and net.safetensors: the same\n")
    whole, cut = str(checkpoints("full") / "rank_0" / "net.ckpt"), str(checkpoints("tp2"))
    done = bench.mslaunch("ckpt", "diff", whole, cut, "--strategy", str(strategy_file("tp2")))
    assert done.returncode == 0, done.stdout + done.stderr


def test_differences_are_listed_with_their_size(bench: Bench) -> None:
    """Missing, extra, shape, type, values; exit code 1."""
    ours = np.array([3.0, 4.0], np.float32)
    theirs = np.array([3.0, 0.0], np.float32)
    odd = np.array([np.nan, 1.0, np.inf], np.float32), np.array([np.nan, np.inf, 2.0], np.float32)
    first: Content = {
        "gone": floats(1),
        "shape": floats(2, 3),
        "type": floats(2),
        "values": ("Float32", (2,), ours.tobytes()),
        "odd": ("Float32", (3,), odd[0].tobytes()),
        "same": floats(3),
    }
    second: Content = {
        "shape": floats(3, 2),
        "type": ("Float64", (2,), np.arange(2, dtype=np.float64).tobytes()),
        "values": ("Float32", (2,), theirs.tobytes()),
        "odd": ("Float32", (3,), odd[1].tobytes()),
        "same": floats(3),
        "new": floats(1),
    }
    write_shard(bench.folder / "a.ckpt", first)
    write_shard(bench.folder / "b.ckpt", second)
    done = bench.mslaunch("ckpt", "diff", "a.ckpt", "b.ckpt", "--json")
    found = {one["name"]: one for one in json.loads(done.stdout)}
    kinds = {"gone": "missing", "shape": "shape", "type": "type", "values": "values", "odd": "values", "new": "extra"}
    assert (done.returncode, {name: one["kind"] for name, one in found.items()}) == (1, kinds)
    assert (found["values"]["max"], found["values"]["mean"], found["values"]["cosine"]) == (4.0, 2.0, 0.6)
    assert (found["type"]["max"], found["type"]["first"]) == (0.0, "Float32 2")
    assert found["odd"]["not_finite"] == 2
    table = bench.mslaunch("ckpt", "diff", "a.ckpt", "b.ckpt")
    assert table.returncode == 1
    assert table.stdout.splitlines()[0].split() == ["PARAMETER", "DIFFERS", "MAX", "MEAN", "COSINE", "A", "B"]


def test_diff_takes_rules_for_the_first(bench: Bench) -> None:
    """So that PyTorch's weights can be compared with what became of them."""
    save_state(bench.folder / "a.pth", {"model.norm.weight": floats(4)})
    write_shard(bench.folder / "b.ckpt", {"model.norm_out.weight": floats(4)})
    assert bench.mslaunch("ckpt", "diff", "a.pth", "b.ckpt", "--names", "llama").returncode == 0
    assert bench.mslaunch("ckpt", "diff", "a.pth", "b.ckpt").returncode == 1


@pytest.mark.parametrize("like", [("--like", "init.ckpt"), ()])
@pytest.mark.parametrize("before", ["", "network."])
def test_what_was_imported_is_the_same(bench: Bench, like: tuple[str, ...], before: str) -> None:
    """Diff matches names and shapes as import does, with either file first, and tells that names differ."""
    save_state(bench.folder / "net.pth", {f"{before}{name}": value for name, value in TORCH.items()})
    write_shard(bench.folder / "init.ckpt", zeros(MINDSPORE))
    assert bench.mslaunch("ckpt", "import", "net.pth", "--to", "net.ckpt", *like).returncode == 0
    for pair in (("net.pth", "net.ckpt"), ("net.ckpt", "net.pth")):
        done = bench.mslaunch("ckpt", "diff", *pair)
        assert (done.returncode, done.stdout) == (0, f"{pair[0]} and {pair[1]}: the same\n")
        assert "matched as by import: " in done.stderr


def test_partners_with_other_values_differ(bench: Bench) -> None:
    """A parameter with another name is compared, not passed over."""
    save_state(bench.folder / "net.pth", TORCH)
    write_shard(bench.folder / "net.ckpt", {**MINDSPORE, "bn.gamma": zeros(MINDSPORE)["bn.gamma"]})
    done = bench.mslaunch("ckpt", "diff", "net.pth", "net.ckpt", "--json")
    assert (done.returncode, [(one["name"], one["kind"]) for one in json.loads(done.stdout)]) == (
        1,
        [("bn.gamma", "values")],
    )


def test_a_counter_that_one_of_two_lacks_is_a_difference(bench: Bench) -> None:
    """Where both files have counters, that is; without any in one of them they need no partner."""
    both = {**TORCH, "other.num_batches_tracked": TORCH["bn.num_batches_tracked"]}
    save_state(bench.folder / "both.pth", both)
    save_state(bench.folder / "one.pth", TORCH)
    done = bench.mslaunch("ckpt", "diff", "both.pth", "one.pth")
    assert (done.returncode, done.stdout.splitlines()[1].split()[:2]) == (1, ["other.num_batches_tracked", "missing"])


def test_a_tied_weight_needs_no_partner_of_its_own(bench: Bench) -> None:
    """One of its names is in the other file."""
    dtype, shape, data = floats(10, 4)
    save_zip(
        bench.folder / "a.pth", {f"{name}.weight": Saved("0", dtype, shape) for name in ("emb", "head")}, {"0": data}
    )
    write_shard(bench.folder / "b.ckpt", {"head.weight": (dtype, shape, data)})
    assert bench.mslaunch("ckpt", "diff", "a.pth", "b.ckpt").returncode == 0
