"""Traces of networks: recorded cell by cell, read back with suspicion, compared in order of execution."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mslaunch.runtime.trace import torch_trace
from tests.beds.traced import Called, Network, Tensor, index_of, record
from tests.conftest import Bench


def test_an_output_is_recorded_with_its_statistics(bench: Bench) -> None:
    """Name, class, place in the order, shape, type, numbers, and how many values are not finite."""
    record(bench.folder / "a", fc=Tensor(np.array([[3, -4], [np.nan, 0]], np.float32)))
    (row,) = index_of(bench.folder / "a")["outputs"]
    assert row == {
        "name": "fc",
        "class": "Layer",
        "call": 0,
        "place": "",
        "order": 0,
        "values": 0,
        "shape": [2, 2],
        "dtype": "float32",
        "step": 1,
        "kept": 4,
        "mean": pytest.approx(-1 / 3),
        "std": pytest.approx(np.std([3, -4, 0])),
        "min": -4,
        "max": 3,
        "norm": 5,
        "not_finite": 1,
    }


def test_an_output_that_is_the_next_input_is_kept_once(bench: Bench) -> None:
    """Inputs are recorded as outputs are, and the same values have one file."""
    record(bench.folder / "a", fc=Called((Tensor([1]),), Tensor([2])), out=Called((Tensor([2]),), Tensor([3])))
    index = index_of(bench.folder / "a")
    assert [(row["name"], row["place"], row["values"]) for row in index["inputs"]] == [("fc", "0", 0), ("out", "0", 1)]
    assert [(row["name"], row["values"]) for row in index["outputs"]] == [("fc", 1), ("out", 2)]
    assert len(list((bench.folder / "a").glob("*.npy"))) == 3


def test_an_argument_by_name_has_it_as_its_place(bench: Bench) -> None:
    """Beside the numbers of those without a name."""
    record(bench.folder / "a", fc=Called((Tensor([1]),), Tensor([2]), {"mask": Tensor([3])}))
    assert [row["place"] for row in index_of(bench.folder / "a")["inputs"]] == ["0", "mask"]


def test_tensors_inside_an_output_have_a_place(bench: Bench) -> None:
    """Those of tuples, lists and dictionaries; what is no tensor is left out."""
    record(bench.folder / "a", fc=(Tensor([1]), {"hidden": [Tensor([2]), None]}))
    assert [row["place"] for row in index_of(bench.folder / "a")["outputs"]] == ["0", "1.hidden.0"]


def test_an_output_without_plain_values_is_a_note(bench: Bench) -> None:
    """The script goes on, the other outputs are recorded, and the comparison shows the note."""

    class Sparse(Tensor):
        def asnumpy(self) -> Any:
            raise TypeError("sparse tensors have none")

    for name in ("a", "b"):
        record(bench.folder / name, table=Sparse([1]), fc=Tensor([1]))
    done = bench.mslaunch("trace", "compare", "a", "b")
    assert done.returncode == 0, done.stderr
    assert "mslaunch: a: table: an output has no plain values: sparse tensors have none\n" in done.stdout


def test_a_trace_replaces_an_earlier_one(bench: Bench) -> None:
    """Nothing of the earlier one is left."""
    record(bench.folder / "a", fc=Tensor([1]), out=Tensor([2]))
    record(bench.folder / "a", fc=Tensor([1]))
    assert {path.name for path in (bench.folder / "a").iterdir()} == {"trace.json", "0.npy"}


def test_a_folder_of_other_files_is_not_touched(bench: Bench) -> None:
    """It could be anything, so it is refused."""
    bench.write("a/weights.npy", "mine")
    with pytest.raises(ValueError, match="holds other files than a trace"):
        record(bench.folder / "a", fc=Tensor([1]))
    assert (bench.folder / "a/weights.npy").read_text() == "mine"


def test_hooks_are_gone_after_the_trace(bench: Bench) -> None:
    """Also where the network fails; what was recorded until then is kept."""
    network = Network(fc=Tensor([1]), out=Tensor([2]))
    network.layers["out"].register_forward_hook(lambda *_: 1 / 0)  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError), torch_trace(network, str(bench.folder / "a")):
        network()
    network()
    assert len(index_of(bench.folder / "a")["outputs"]) == 1


def test_the_first_difference_is_named(bench: Bench) -> None:
    """In the order of execution, with both classes and by how much; the exit code is 1."""
    record(bench.folder / "a", conv=Tensor([1.0, 2]), bn=Tensor([1.0, 2]), fc=Tensor([4.0]))
    record(bench.folder / "b", conv=Tensor([1.0, 2 + 1e-5]), bn=Tensor([1.0, 2.5]), fc=Tensor([5.0]))
    done = bench.mslaunch("trace", "compare", "a", "b")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == (
        "mslaunch: first difference: bn (Layer, Layer): 2.0e-01 is more than 0.00015; 2 of 3 outputs differ"
    )
    bars = [line.split()[-1] for line in done.stdout.splitlines()[1:4]]
    assert set(bars[0]) == {"-"}
    assert set(bars[1]) == {"#"}
    assert len(bars[0]) < len(bars[1])


def test_the_same_outputs_are_the_same(bench: Bench) -> None:
    """Within the tolerance, NaN and infinity beside their like, in another type."""
    values = np.array([1, np.nan, -np.inf, 0])
    record(bench.folder / "a", fc=Tensor(values), empty=Tensor([]), zero=Tensor([0.0]))
    record(bench.folder / "b", fc=Tensor(values.astype(np.float16)), empty=Tensor([]), zero=Tensor([0]))
    done = bench.mslaunch("trace", "compare", "a", "b")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "mslaunch: 3 outputs, the same within 0.01")


@pytest.mark.parametrize("stray", [np.nan, -np.inf, 1])
def test_a_stray_nan_or_infinity_is_a_difference(bench: Bench, stray: float) -> None:
    """However large the tolerance is."""
    record(bench.folder / "a", fc=Tensor([1, np.inf]))
    record(bench.folder / "b", fc=Tensor([1, stray]))
    done = bench.mslaunch("trace", "compare", "a", "b", "--tolerance", "1e9", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["outputs"][0]["difference"] == "inf"


def test_another_shape_is_a_difference(bench: Bench) -> None:
    """Both are shown."""
    record(bench.folder / "a", fc=Tensor([[1, 2]]))
    record(bench.folder / "b", fc=Tensor([1, 2]))
    done = bench.mslaunch("trace", "compare", "a", "b")
    assert (done.returncode, "shape [1, 2] and [2]" in done.stdout) == (1, True)


def test_rules_for_parameters_name_modules_too(bench: Bench) -> None:
    """`fc.weight` becomes `classifier.weight`, so fc is classifier; what has no partner is listed."""
    bench.write("rules.yaml", r"rules: [{from: '(.*)fc\.weight', to: '\1classifier.weight'}, {from: old, to: new}]")
    record(bench.folder / "a", net_fc=Tensor([1]), old=Tensor([2]), dropout=Tensor([3]))
    record(bench.folder / "b", net_classifier=Tensor([1]), new=Tensor([2]), cast=Tensor([3]))
    done = bench.mslaunch("trace", "compare", "a", "b", "--names", "rules.yaml", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [(pair["first"]["name"], pair["second"]["name"]) for pair in told["outputs"]] == [
        ("net.fc", "net.classifier"),
        ("old", "new"),
    ]
    assert (told["only_first"], told["only_second"]) == (["dropout"], ["cast"])


LAYERS: dict[str, Any] = {"conv": Tensor([1.0]), "fc": Tensor([2.0]), "": Tensor([3.0])}


@pytest.mark.parametrize("pair", [("a", "e"), ("e", "a")])
def test_a_word_before_all_names_does_no_harm(bench: Bench, pair: tuple[str, str]) -> None:
    """A network inside a wrapper is compared module by module with the bare one, on either side."""
    record(bench.folder / "a", **LAYERS)
    wrapped: dict[str, Any] = {
        "net_conv": Tensor([1.0]),
        "net_fc": Tensor([2.5]),
        "net": Tensor([3.0]),
        "": Tensor([9.0]),
    }
    record(bench.folder / "e", **wrapped)
    done = bench.mslaunch("trace", "compare", *pair, "--json")
    told = json.loads(done.stdout)
    names = [tuple(one[side]["name"] for side in ("first", "second")) for one in told["outputs"]]
    bare, inside = ["conv", "fc", ""], ["net.conv", "net.fc", "net"]
    assert names == list(zip(bare, inside, strict=True) if pair[0] == "a" else zip(inside, bare, strict=True))
    assert (done.returncode, told["first_different"]["name"].endswith("fc")) == (1, True)
    assert told["only_second" if pair[0] == "a" else "only_first"] == ["(network)"]
    assert told["notes"] == ["e: `net.` before its names is left out"]


def test_wrappers_that_fit_equally_are_not_guessed(bench: Bench) -> None:
    """Two parts of a network that are built alike."""
    record(bench.folder / "a", fc=Tensor([1.0]), out=Tensor([1.0]))
    record(bench.folder / "b", x_fc=Tensor([1.0]), y_fc=Tensor([1.0]), out=Tensor([1.0]))
    done = bench.mslaunch("trace", "compare", "a", "b", "--json")
    assert [one["second"]["name"] for one in json.loads(done.stdout)["outputs"]] == ["out"]


def test_networks_compared_only_as_a_whole_are_not_the_same(bench: Bench) -> None:
    """Where no module has a partner, the exit code is 1 and the way out is told."""
    record(bench.folder / "a", **LAYERS)
    others: dict[str, Any] = {"x": Tensor([1.0]), "y": Tensor([2.0]), "": Tensor([3.0])}
    record(bench.folder / "b", **others)
    done = bench.mslaunch("trace", "compare", "a", "b")
    assert done.returncode == 1
    assert "only the networks as a whole were compared: 2 outputs of a and 2 of b have no partner" in done.stdout
    assert json.loads(bench.mslaunch("trace", "compare", "a", "b", "--json").stdout)["same"] is False


def broken(folder: Path, kind: str) -> None:
    index = folder / "trace.json"
    if kind == "no folder":
        index.rename(folder.parent / "gone.json")
    elif kind == "pipe":
        index.unlink()
        os.mkfifo(index)
    elif kind == "pipe of values":
        (folder / "0.npy").unlink()
        os.mkfifo(folder / "0.npy")
    elif kind in TEXTS:
        index.write_text(TEXTS[kind])
    elif kind == "pickle":
        np.save(folder / "0.npy", np.array([print], dtype=object), allow_pickle=True)
    elif kind == "other values":
        np.save(folder / "0.npy", np.zeros(3))
    else:
        data = (folder / "0.npy").read_bytes()
        short = {
            "truncated": data[:-4],
            "no header": b"x",
            "huge": data.replace(b"(2,)", b"(9999999999999,)"),
            "unclosed": data.replace(b"(2,)", b"(2, "),
        }
        (folder / "0.npy").write_bytes(short[kind])


ROW = (
    '{"name": "fc", "class": "L", "call": 0, "place": "", "order": 0, "values": 0, "shape": [2], "dtype": "f",'
    '"step": 1, "kept": 2, "mean": 1, "std": 1, "min": 1, "max": 2, "norm": 2.5, "not_finite": 0}'
)
WHOLE = (
    '{"version": 2, "framework": "torch", "ended_by": null, "notes": [], "not_called": [], "inputs": [],'
    '"outputs": [%s]}'
)
TEXTS = {
    "empty": "",
    "not JSON": "{",
    "older": WHOLE.replace('"version": 2', '"version": 1') % ROW,
    "newer": WHOLE.replace('"version": 2', '"version": 3') % ROW,
    "a path": WHOLE % ROW.replace('"values": 0', '"values": "../../x"'),
    "negative": WHOLE % ROW.replace("[2]", "[-2]"),
    "no step": WHOLE % ROW.replace('"step": 1', '"step": 0'),
    "more than all": WHOLE % ROW.replace('"kept": 2', '"kept": 3'),
    "less than all": WHOLE % ROW.replace('"kept": 2', '"kept": 1'),
    "a hundred dimensions": WHOLE % ROW.replace("[2]", str([10**17] * 100)),
    "no inputs": (WHOLE % ROW).replace('"inputs": [],', ""),
    "a list": "[]",
    "a word": WHOLE % '"fc"',
}
VALUES = ("pipe of values", "pickle", "other values", "truncated", "no header", "huge", "unclosed")


@pytest.mark.parametrize("kind", ["no folder", "pipe", *TEXTS, *VALUES])
def test_a_broken_trace_is_one_line(bench: Bench, kind: str) -> None:
    """It is said which file it is; there is no traceback, and nothing is run or awaited."""
    record(bench.folder / "a", fc=Tensor([1.0, 2]))
    record(bench.folder / "b", fc=Tensor([1.0, 2]))
    broken(bench.folder / "b", kind)
    done = bench.mslaunch("trace", "compare", "a", "b")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"mslaunch: b/{'0.npy' if kind in VALUES else 'trace.json'}:"), done.stderr


def test_the_index_of_the_broken_ones_is_right_itself(bench: Bench) -> None:
    """Without what breaks it."""
    record(bench.folder / "a", fc=Tensor([1.0, 2]))
    record(bench.folder / "b", fc=Tensor([1.0, 2]))
    (bench.folder / "b/trace.json").write_text(WHOLE % ROW)
    assert bench.mslaunch("trace", "compare", "a", "b").returncode == 0


def test_networks_without_a_common_name_are_refused(bench: Bench) -> None:
    """With names of both, so that rules can be written."""
    record(bench.folder / "a", fc=Tensor([1]))
    record(bench.folder / "b", head=Tensor([1]))
    done = bench.mslaunch("trace", "compare", "a", "b")
    assert (done.returncode, "(fc; head). Write rules" in done.stderr) == (2, True)
