"""`mslaunch ckpt import` and `export`: partners by name and shape, shards, types, and nothing half done."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from mslaunch.weights import transfer as api
from tests.beds.sharded import (
    ask_mindspore,
    content_of,
    contents_of,
    json_strategy,
    needs_mindspore,
    safetensors_bytes,
    write_hollow,
    write_shard,
)
from tests.beds.torch_files import Saved, save_state, save_zip
from tests.beds.two_networks import MINDSPORE, TORCH, floats, zeros
from tests.conftest import Bench


def test_each_parameter_finds_its_partner_in_the_network(bench: Bench) -> None:
    """BatchNorm, LayerNorm, Embedding and Conv1d by name and shape; PyTorch's counter has none and needs none."""
    save_state(bench.folder / "net.pth", TORCH)
    write_shard(bench.folder / "init.ckpt", zeros(MINDSPORE))
    done = bench.mslaunch("ckpt", "import", "net.pth", "--to", "net.ckpt", "--like", "init.ckpt")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("net.ckpt: 10 parameters, 412 B")
    assert content_of(bench.folder / "net.ckpt") == MINDSPORE


def test_a_network_inside_another_is_found_too(bench: Bench) -> None:
    """A wrapper puts a word before each name, on either side."""
    save_state(bench.folder / "net.pth", {f"encoder.{name}": value for name, value in TORCH.items()})
    write_shard(bench.folder / "init.ckpt", {f"network.{name}": value for name, value in zeros(MINDSPORE).items()})
    save_state(bench.folder / "bare.pth", TORCH)
    assert bench.mslaunch("ckpt", "import", "bare.pth", "--to", "a.ckpt", "--like", "init.ckpt").returncode == 0
    write_shard(bench.folder / "bare.ckpt", zeros(MINDSPORE))
    assert bench.mslaunch("ckpt", "import", "net.pth", "--to", "b.ckpt", "--like", "bare.ckpt").returncode == 0
    assert content_of(bench.folder / "b.ckpt") == MINDSPORE


def test_without_a_network_only_what_is_certain_is_renamed(bench: Bench) -> None:
    """Normalisations and embeddings; the rest keeps its name and shape."""
    save_state(bench.folder / "net.pth", TORCH)
    assert bench.mslaunch("ckpt", "import", "net.pth", "--to", "net.ckpt").returncode == 0
    assert content_of(bench.folder / "net.ckpt") == {**MINDSPORE, "conv.weight": TORCH["conv.weight"]}


def test_export_is_the_way_back(bench: Bench) -> None:
    """To PyTorch's names and shapes, in a file that says so; PyTorch's counter is not needed for loading it."""
    save_state(bench.folder / "net.pth", TORCH)
    write_shard(bench.folder / "net.ckpt", MINDSPORE)
    done = bench.mslaunch("ckpt", "export", "net.ckpt", "--to", "net.safetensors", "--like", "net.pth")
    assert (done.returncode, done.stderr) == (0, "")
    expected = {name: value for name, value in TORCH.items() if "batches" not in name}
    assert content_of(bench.folder / "net.safetensors") == expected
    assert b'"format":"pt"' in (bench.folder / "net.safetensors").read_bytes()


@pytest.mark.parametrize("kept", ["emb", "head"])
def test_of_tied_weights_one_partner_is_enough(bench: Bench, kept: str) -> None:
    """The network in MindSpore has one of the two; on the way back both get its values."""
    dtype, shape, data = floats(10, 4)
    tied = {f"{name}.weight": Saved("0", dtype, shape) for name in ("emb", "head")}
    save_zip(bench.folder / "net.pth", tied, {"0": data})
    write_shard(bench.folder / "init.ckpt", {f"{kept}.embedding_table": (dtype, shape, bytes(len(data)))})
    done = bench.mslaunch("ckpt", "import", "net.pth", "--to", "net.ckpt", "--like", "init.ckpt")
    assert (done.returncode, done.stderr) == (0, "")
    assert content_of(bench.folder / "net.ckpt") == {f"{kept}.embedding_table": (dtype, shape, data)}
    back = bench.mslaunch("ckpt", "export", "net.ckpt", "--to", "back.safetensors", "--like", "net.pth")
    assert (back.returncode, back.stderr) == (0, "")
    assert bench.mslaunch("ckpt", "diff", "net.pth", "back.safetensors").returncode == 0


def test_export_without_a_network_gives_the_words_of_torch(bench: Bench) -> None:
    """Each word of MindSpore's layers has one."""
    write_shard(bench.folder / "net.ckpt", MINDSPORE)
    assert bench.mslaunch("ckpt", "export", "net.ckpt", "--to", "net.safetensors").returncode == 0
    names = set(content_of(bench.folder / "net.safetensors"))
    assert names == {name for name in TORCH if "batches" not in name}


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (("up.weight", (100, 64)), ("up.weight", (128, 64)), "up.weight: shape 100x64, wanted 128x64"),
        (
            ("up.weight", (4, 2)),
            ("up.weight", (2, 4)),
            "up.weight: shape 4x2, wanted 2x4; `transpose: true` in a rule?",
        ),
        (("bn.weight", (4,)), ("net.bn.gamma", (5,)), "bn.weight, net.bn.gamma: shape 4, wanted 5"),
    ],
)
def test_a_wrong_shape_is_one_line(
    bench: Bench, ours: tuple[str, tuple[int, ...]], theirs: tuple[str, tuple[int, ...]], words: str
) -> None:
    """What it has and what is wanted; a transposed one is told with the way out."""
    save_state(bench.folder / "net.pth", {"a.weight": floats(2), ours[0]: floats(*ours[1])})
    write_shard(bench.folder / "init.ckpt", {"a.weight": floats(2), theirs[0]: floats(*theirs[1])})
    done = bench.mslaunch("ckpt", "import", "net.pth", "--to", "net.ckpt", "--like", "init.ckpt")
    assert (done.returncode, done.stderr.splitlines()) == (
        2,
        [
            f"mslaunch: net.pth: {words}",
            "mslaunch: net.pth: nothing was written. Give --names RULES, or --partial to leave these out.",
        ],
    )


@pytest.mark.parametrize(
    ("verb", "target", "names"),
    [
        ("import", "new.ckpt", ("bn.weight", "bn.bias", "bn.gamma")),
        ("export", "new.safetensors", ("bn.gamma", "bn.weight")),
    ],
)
def test_no_parameter_takes_the_name_of_another(bench: Bench, verb: str, target: str, names: tuple[str, ...]) -> None:
    """Where names are given without a network, one would be lost."""
    write_shard(bench.folder / "net.safetensors", {name: floats(4) for name in names})
    done = bench.mslaunch("ckpt", verb, "net.safetensors", "--to", target)
    assert (done.returncode, "would get this name" in done.stderr) == (2, True)
    assert not (bench.folder / target).exists()


def test_what_finds_no_partner_is_listed_and_nothing_is_written(bench: Bench) -> None:
    """With the nearest candidates of both sides; --partial leaves it out."""
    save_state(bench.folder / "net.pth", {"a.weight": floats(2), "block.dense.weight": floats(2, 3)})
    write_shard(bench.folder / "init.ckpt", {"a.weight": floats(2), "block.dens.weight": floats(3, 2)})
    args = ("ckpt", "import", "net.pth", "--to", "net.ckpt", "--like", "init.ckpt")
    done = bench.mslaunch(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "mslaunch: net.pth: block.dense.weight (Float32 2x3) has no partner; nearest: block.dens.weight (3x2)",
        "mslaunch: net.pth: block.dens.weight (3x2) gets no weights; nearest: block.dense.weight (Float32 2x3)",
        "mslaunch: net.pth: nothing was written. Give --names RULES, or --partial to leave these out.",
    ]
    assert not (bench.folder / "net.ckpt").exists()
    done = bench.mslaunch(*args, "--partial")
    assert (done.returncode, len(done.stderr.splitlines())) == (0, 2)
    assert content_of(bench.folder / "net.ckpt") == {"a.weight": floats(2)}


def test_a_checkpoint_of_a_training_serves_as_the_network(bench: Bench) -> None:
    """What belongs to its optimizer needs no weights."""
    save_state(bench.folder / "net.pth", {"fc.weight": floats(2, 2)})
    training = {"fc.weight": floats(2, 2), "moment1.fc.weight": floats(2, 2), "global_step": ("Int32", (1,), bytes(4))}
    write_shard(bench.folder / "net-1_2.ckpt", training)
    done = bench.mslaunch("ckpt", "import", "net.pth", "--to", "net.ckpt", "--like", "net-1_2.ckpt")
    assert (done.returncode, done.stderr) == (0, "")
    assert content_of(bench.folder / "net.ckpt") == {"fc.weight": floats(2, 2)}


def test_a_parameter_that_fits_two_is_not_guessed(bench: Bench) -> None:
    """Two layers of one name in different parts of the network."""
    save_state(bench.folder / "net.pth", {"fc.weight": floats(2, 2)})
    write_shard(bench.folder / "init.ckpt", {"a.fc.weight": floats(2, 2), "b.fc.weight": floats(2, 2)})
    done = bench.mslaunch("ckpt", "import", "net.pth", "--to", "net.ckpt", "--like", "init.ckpt")
    assert done.returncode == 2
    assert "fc.weight (Float32 2x2) fits a.fc.weight and b.fc.weight" in done.stderr


def test_two_parameters_that_fit_one_are_told_so(bench: Bench) -> None:
    """Their shapes are right, so these are not blamed."""
    save_state(bench.folder / "net.pth", {"a.fc.weight": floats(2, 2), "b.fc.weight": floats(2, 2)})
    write_shard(bench.folder / "init.ckpt", {"fc.weight": floats(2, 2)})
    done = bench.mslaunch("ckpt", "import", "net.pth", "--to", "net.ckpt", "--like", "init.ckpt")
    assert (done.returncode, "a.fc.weight (Float32 2x2) is one of 2 that fit fc.weight" in done.stderr) == (2, True)


def test_rules_and_a_network_work_together(bench: Bench) -> None:
    """First the rules, then the partners."""
    save_state(bench.folder / "net.pth", {"old.weight": floats(4, 3), "n.weight": floats(4)})
    bench.write("rules.yaml", r"rules: [{from: 'old\.weight', to: new.weight, transpose: true}]")
    write_shard(bench.folder / "init.ckpt", {"new.weight": floats(3, 4), "n.gamma": floats(4)})
    args = ("--like", "init.ckpt", "--names", "rules.yaml")
    assert bench.mslaunch("ckpt", "import", "net.pth", "--to", "net.ckpt", *args).returncode == 0
    expected = np.arange(12, dtype=np.float32).reshape(4, 3).T.tobytes()
    assert content_of(bench.folder / "net.ckpt")["new.weight"] == ("Float32", (3, 4), expected)


RULES = {
    "llama": ["mslaunch: --names llama: no rule of it applies to a parameter; the first one matches "],
    "typo.yaml": ["mslaunch: typo.yaml, rule 2 (fc.wieght) applies to no parameter"],
    "good.yaml": [],
}


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("verb", ["import", "diff", "no partner"])
def test_a_rule_that_applies_to_nothing_is_told(bench: Bench, rules: str, verb: str) -> None:
    """A typo, or the rules of another network; also where parameters have no partner for that reason."""
    bench.write("typo.yaml", "rules: [{from: 'fc.bias', to: out.bias}, {from: fc.wieght, to: out.weight}]")
    bench.write("good.yaml", "rules: [{from: 'fc.(weight|bias)', to: 'out.\\1'}]")
    save_state(bench.folder / "net.pth", {"fc.weight": floats(2, 3), "fc.bias": floats(2)})
    write_shard(bench.folder / "init.ckpt", {"out.weight": floats(2, 3), "out.bias": floats(2)})
    args = {
        "import": ("import", "net.pth", "--to", "net.ckpt"),
        "diff": ("diff", "net.pth", "init.ckpt"),
        "no partner": ("import", "net.pth", "--to", "net.ckpt", "--like", "init.ckpt"),
    }
    done = bench.mslaunch("ckpt", *args[verb], "--names", rules)
    told = [line for line in done.stderr.splitlines() if "applies to" in line]
    assert len(told) == len(RULES[rules])
    assert all(line.startswith(start) for line, start in zip(told, RULES[rules], strict=True))


def test_ready_rules_may_be_unused_in_part(bench: Bench) -> None:
    """They cover variants of a network."""
    save_state(bench.folder / "net.pth", {"model.norm.weight": floats(4)})
    done = bench.mslaunch("ckpt", "import", "net.pth", "--to", "net.ckpt", "--names", "llama")
    assert (done.returncode, done.stderr) == (0, "")


STRATEGY = json_strategy(
    {
        "fc.weight": {"dev_matrix": [2], "tensor_map": [-1, 0]},
        "emb.embedding_table": {"dev_matrix": [2], "tensor_map": [0, -1]},
    }
)


def test_weights_go_straight_to_the_shards_of_ranks(bench: Bench) -> None:
    """Cut as the strategy says; what it does not list, every rank gets whole. Export merges them again."""
    save_state(bench.folder / "net.pth", TORCH)
    (bench.folder / "s.json").write_bytes(STRATEGY)
    done = bench.mslaunch("ckpt", "import", "net.pth", "--strategy", "s.json", "-o", "shards")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("shards: 2 ranks, 10 parameters, 616 B")
    shards = contents_of(bench.folder / "shards")
    table, dense = np.arange(40, dtype=np.float32).reshape(10, 4), np.arange(12, dtype=np.float32).reshape(3, 4)
    for rank in range(2):
        assert shards[rank]["emb.embedding_table"][2] == table[5 * rank : 5 * rank + 5].tobytes()
        assert shards[rank]["fc.weight"][2] == dense[:, 2 * rank : 2 * rank + 2].tobytes()
        assert shards[rank]["fc.bias"] == TORCH["fc.bias"]
    done = bench.mslaunch("ckpt", "export", "shards", "--strategy", "s.json", "--to", "back.safetensors")
    assert (done.returncode, done.stderr) == (0, "")
    expected = {name: value for name, value in TORCH.items() if "batches" not in name}
    assert content_of(bench.folder / "back.safetensors") == expected


def test_a_parameter_of_the_strategy_that_gets_nothing_is_told(bench: Bench) -> None:
    """The shards would not be a network."""
    save_state(bench.folder / "net.pth", {"fc.weight": floats(3, 4)})
    (bench.folder / "s.json").write_bytes(STRATEGY)
    done = bench.mslaunch("ckpt", "import", "net.pth", "--strategy", "s.json", "-o", "shards")
    assert done.returncode == 2
    assert "emb.embedding_table, which s.json lists, gets no weights" in done.stderr


def test_types_are_cast_where_asked(bench: Bench) -> None:
    """Floating-point values alone, rounded to the nearest, while they are cut and put into order."""
    exact = np.array([[1.0, 1.00390625, 1.01171875], [-2.5, 3e38, np.inf]], np.float32)
    save_state(
        bench.folder / "a.pth",
        {"w": ("Float32", (2, 3), exact.tobytes()), "n": ("Int64", (1,), bytes(8)), "s": floats()},
    )
    bench.write("rules.yaml", "rules: [{from: w, to: w, transpose: true}]")
    done = bench.mslaunch("ckpt", "import", "a.pth", "--to", "a.ckpt", "--dtype", "bfloat16", "--names", "rules.yaml")
    assert done.returncode == 0
    made = content_of(bench.folder / "a.ckpt")
    bits = [[0x3F80, 0xC020], [0x3F80, 0x7F62], [0x3F82, 0x7F80]]  # ties go to the even one
    assert made["w"] == ("BFloat16", (3, 2), np.array(bits, np.uint16).tobytes())
    assert (made["n"][0], made["s"][:2]) == ("Int64", ("BFloat16", ()))


def test_float8_needs_a_type_that_mindspore_has(bench: Bench) -> None:
    """It is refused with the way out, and cast exactly."""
    header = {"w": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}
    (bench.folder / "a.safetensors").write_bytes(safetensors_bytes(header, bytes([0x38, 0xB8, 0x01, 0x7E])))
    done = bench.mslaunch("ckpt", "import", "a.safetensors", "--to", "a.ckpt")
    assert done.returncode == 2
    assert done.stderr == "mslaunch: w: MindSpore's checkpoints have no Float8_e4m3fn. Give --dtype bfloat16.\n"
    assert bench.mslaunch("ckpt", "import", "a.safetensors", "--to", "a.ckpt", "--dtype", "float32").returncode == 0
    expected = np.array([1.0, -1.0, 2.0**-9, 448.0], np.float32).tobytes()
    assert content_of(bench.folder / "a.ckpt")["w"][2] == expected


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("import", "net.pth"), "neither --to nor -o says where to write"),
        (("import", "net.pth", "--strategy", "s"), "neither --to nor -o says where to write"),
        (("import", "net.pth", "--to", "a.ckpt", "-o", "b"), "--to and -o both say where to write"),
        (("import", "net.pth", "--to", "a.ckpt", "-o", "b", "--strategy", "s"), "--to and -o both say where to write"),
        (("import", "net.pth", "-o", "b"), "-o writes one shard a rank and needs --strategy"),
        (("import", "net.pth", "--to", "a.ckpt", "--strategy", "s"), "--to is one file"),
        (("import", "net.safetensors", "--to", "a.ckpt", "--key", "ema"), "--key ema: "),
        (("diff", "net.safetensors", "net.safetensors", "--key", "ema"), "--key ema: "),
        (("export", "there.ckpt", "--to", "a.pth"), "must end in .safetensors."),
        (("import", "net.pth", "--to", "a.onnx"), "must end in .ckpt or .safetensors"),
        (("import", "net.pth", "--to", "there.ckpt"), "there.ckpt: is there already"),
        (("import", "none.pth", "--to", "a.ckpt"), "none.pth: no such file"),
        (("import", "net.pth", "--to", "a.ckpt", "--dtype", "int8"), "one of float32, float16, bfloat16, float64"),
        (("import", "net.pth", "--to", "a.ckpt", "--names", "lamma"), "--names lamma: no such file or network"),
        (("import", "net.pth", "--to", "a.ckpt", "--key", "ema"), "holds no state_dict under ema"),
        (("import", "net.pth", "--to", "a.ckpt", "--like", "none.ckpt"), "none.ckpt: no such file"),
        (("import", "note.txt", "--to", "a.ckpt"), "weights are in files that end in"),
        (("import", "empty", "--to", "a.ckpt"), "empty: no weights"),
        (("export", "there.ckpt", "--to", "a.ckpt"), "must end in .safetensors"),
        (("export", "net.pth", "--to", "a.safetensors", "--names", "lamma"), "--names lamma: no such file or network"),
        (("diff", "net.pth", "none.pth"), "none.pth: no such file"),
    ],
)
def test_wrong_requests_change_nothing(bench: Bench, args: tuple[str, ...], words: str) -> None:
    """One line tells, and the exit code is 2."""
    save_state(bench.folder / "net.pth", {"w": floats(2)})
    write_shard(bench.folder / "net.safetensors", {"w": floats(2)})
    bench.write("there.ckpt", "mine")
    bench.write("note.txt", "mine")
    (bench.folder / "empty").mkdir()
    before = sorted(bench.folder.iterdir())
    done = bench.mslaunch("ckpt", *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert sorted(bench.folder.iterdir()) == before


def test_a_pipe_is_no_checkpoint(bench: Bench) -> None:
    """It is refused at once, and nobody waits for its other end."""
    os.mkfifo(bench.folder / "net.pth")
    done = bench.mslaunch("ckpt", "import", "net.pth", "--to", "a.ckpt")
    assert done.returncode == 2
    assert done.stderr == "mslaunch: net.pth: not a state_dict that can be read: it is no regular file.\n"


def test_large_weights_are_cut_transposed_and_cast_in_blocks(bench: Bench) -> None:
    """A tensor of many blocks, in an order of its own, comes out as NumPy makes it."""
    values = np.random.default_rng(1).random((1500, 2500), np.float32)
    save_state(bench.folder / "a.pth", {"w": ("Float32", values.shape, values.tobytes())})
    bench.write("rules.yaml", "rules: [{from: w, to: w, transpose: true}]")
    done = bench.mslaunch("ckpt", "import", "a.pth", "--to", "a.ckpt", "--names", "rules.yaml", "--dtype", "float16")
    assert done.returncode == 0
    assert content_of(bench.folder / "a.ckpt")["w"][2] == values.T.astype(np.float16).tobytes()


def test_a_full_disk_leaves_nothing(bench: Bench) -> None:
    """More than fits is refused before anything is written."""
    write_hollow(bench.folder / "big.safetensors", {"w": (1 << 28, 1 << 12)})
    done = bench.mslaunch("ckpt", "import", "big.safetensors", "--to", "big.ckpt")
    assert (done.returncode, done.stdout) == (3, "")
    assert "MB are needed and" in done.stderr
    assert [path.name for path in bench.folder.iterdir()] == ["big.safetensors"]


def test_python_programs_import_and_compare(tmp_path: Path) -> None:
    """The functions that the command calls; nothing is written before write()."""
    save_state(tmp_path / "net.pth", TORCH)
    target = tmp_path / "net.ckpt"
    planned = api.import_weights(str(tmp_path / "net.pth"), str(target))
    assert (planned.nbytes, planned.left_out, target.exists()) == (412, (), False)
    moved: list[int] = []
    planned.write(moved.append)
    assert sum(moved) == 412
    found = api.diff_weights(str(tmp_path / "net.pth"), str(target))
    assert found == []


NETWORK = """
import sys
import mindspore, numpy
from mindspore import nn

class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(10, 4)
        self.conv = nn.Conv1d(2, 4, 3)
        self.norm = nn.LayerNorm((4,))
        self.bn = nn.BatchNorm1d(4)
        self.fc = nn.Dense(4, 3)

network = Network()
if sys.argv[2] == "save":
    mindspore.save_checkpoint(network, sys.argv[1])
else:
    missing, extra = mindspore.load_param_into_net(network, mindspore.load_checkpoint(sys.argv[1]), strict_load=True)
    assert not missing and not extra, (missing, extra)
    assert network.emb.embedding_table.asnumpy().tolist() == numpy.arange(40.0).reshape(10, 4).tolist()
    assert network.conv.weight.asnumpy().tolist() == numpy.arange(24.0).reshape(4, 2, 1, 3).tolist()
"""


@needs_mindspore
@pytest.mark.mindspore
def test_a_network_of_mindspore_loads_what_was_imported_for_it(bench: Bench) -> None:
    """Its own initial checkpoint says what its layers call their parameters, and nothing is left over."""
    save_state(bench.folder / "net.pth", TORCH)
    ask_mindspore(NETWORK, bench.folder / "init.ckpt", "save")
    done = bench.mslaunch("ckpt", "import", "net.pth", "--to", "net.ckpt", "--like", "init.ckpt")
    assert (done.returncode, done.stderr) == (0, "")
    ask_mindspore(NETWORK, bench.folder / "net.ckpt", "load")
