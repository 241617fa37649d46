"""`mslaunch ckpt import`, `export` and `diff` with real checkpoints: trainings, other layers, guesses, transposes."""

from __future__ import annotations

import json

import pytest

from tests.beds.sharded import Content, ask_mindspore, content_of, needs_mindspore, write_shard
from tests.beds.torch_files import Saved, ask_torch, needs_torch, save_state, save_zip
from tests.beds.two_networks import MINDSPORE, TORCH, floats, zeros
from tests.conftest import Bench

TRAINING: Content = {
    **MINDSPORE,
    **{
        f"{state}.{name}": floats(*shape)
        for state in ("moment1", "moment2")
        for name, (_, shape, _) in MINDSPORE.items()
    },
    "learning_rate": floats(),
    "beta1_power": floats(),
    "global_step": ("Int32", (1,), bytes(4)),
}
"""What Adam leaves in a checkpoint."""
NETWORK = {name: value for name, value in TORCH.items() if "batches" not in name}


@pytest.mark.parametrize("like", [(), ("--like", "net.pth")])
def test_export_leaves_out_what_belongs_to_the_training(bench: Bench, like: tuple[str, ...]) -> None:
    """Moments and counters are no part of the network, and a line says how many there were."""
    write_shard(bench.folder / "net-1_4.ckpt", TRAINING)
    save_state(bench.folder / "net.pth", TORCH)
    done = bench.mslaunch("ckpt", "export", "net-1_4.ckpt", "--to", "net.safetensors", *like)
    line = "mslaunch: 23 values of the training (moment1.emb.embedding_table, moment1.conv.weight …) left out\n"
    assert (done.returncode, done.stderr) == (0, line)
    assert content_of(bench.folder / "net.safetensors").keys() == NETWORK.keys()


def test_a_layer_of_the_network_is_not_taken_for_the_training(bench: Bench) -> None:
    """A name before another one is a layer, unless it is a word of optimizers."""
    write_shard(bench.folder / "net.ckpt", {"fc.weight": floats(2, 2), "teacher.fc.weight": floats(2, 2)})
    done = bench.mslaunch("ckpt", "export", "net.ckpt", "--to", "net.safetensors")
    assert (done.returncode, done.stderr) == (0, "")
    assert content_of(bench.folder / "net.safetensors").keys() == {"fc.weight", "teacher.fc.weight"}


def test_a_layer_that_gets_nothing_is_told(bench: Bench) -> None:
    """Also where another layer that ends alike gets its weights."""
    save_state(bench.folder / "net.pth", {"fc.weight": floats(2, 2)})
    write_shard(bench.folder / "init.ckpt", {"fc.weight": floats(2, 2), "teacher.fc.weight": floats(2, 2)})
    done = bench.mslaunch("ckpt", "import", "net.pth", "--to", "net.ckpt", "--like", "init.ckpt")
    assert (done.returncode, "teacher.fc.weight (2x2) gets no weights" in done.stderr) == (2, True)


def test_drop_works_on_the_way_back(bench: Bench) -> None:
    """It leaves out by MindSpore's names, after the rules that turn them back."""
    write_shard(bench.folder / "net.ckpt", {"b.x": floats(2), "b.extra": floats(2), "c": floats(2)})
    bench.write("rules.yaml", r"rules: [{drop: 'b\..*'}, {from: 'a\.x', to: b.x}]")
    done = bench.mslaunch("ckpt", "export", "net.ckpt", "--to", "net.safetensors", "--names", "rules.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    assert content_of(bench.folder / "net.safetensors").keys() == {"a.x", "c"}


def test_an_equal_name_comes_before_an_equal_ending(bench: Bench) -> None:
    """A copy of the network beside it does not make its names ambiguous."""
    save_state(bench.folder / "net.pth", {**TORCH, **{f"teacher.{name}": value for name, value in TORCH.items()}})
    write_shard(bench.folder / "init.ckpt", zeros(MINDSPORE))
    args = ("ckpt", "import", "net.pth", "--to", "net.ckpt", "--like", "init.ckpt")
    done = bench.mslaunch(*args)
    assert (done.returncode, "is one of" in done.stderr) == (2, False)
    assert "teacher.emb.weight (Float32 10x4) has no partner" in done.stderr
    assert bench.mslaunch(*args, "--partial").returncode == 0
    assert content_of(bench.folder / "net.ckpt") == MINDSPORE


def test_a_wrapper_comes_before_an_equal_ending(bench: Bench) -> None:
    """Layers that end alike find each other where one word stands before all names."""
    plain: Content = {"fc.weight": floats(2, 2), "body.fc.weight": floats(2, 2), "token": floats(3)}
    save_state(bench.folder / "net.pth", plain)
    wrapped = {f"network.{name}": value for name, value in plain.items()}
    write_shard(bench.folder / "init.ckpt", {**zeros(wrapped), "global_step": ("Int32", (1,), bytes(4))})
    done = bench.mslaunch("ckpt", "import", "net.pth", "--to", "net.ckpt", "--like", "init.ckpt")
    assert (done.returncode, done.stderr) == (0, "")
    assert content_of(bench.folder / "net.ckpt") == wrapped


def test_the_name_of_the_only_layer_is_no_wrapper(bench: Bench) -> None:
    """Two networks of one layer with different names are not matched."""
    save_state(bench.folder / "net.pth", {"a.weight": floats(2, 2), "a.bias": floats(2)})
    write_shard(bench.folder / "init.ckpt", {"b.weight": floats(2, 2), "b.bias": floats(2)})
    done = bench.mslaunch("ckpt", "import", "net.pth", "--to", "net.ckpt", "--like", "init.ckpt")
    assert (done.returncode, "a.weight (Float32 2x2) has no partner" in done.stderr) == (2, True)


def test_the_key_of_a_file_that_export_follows(bench: Bench) -> None:
    """A .pth that holds several networks says with --key which."""
    saved = {name: Saved(name, dtype, shape) for name, (dtype, shape, _) in TORCH.items()}
    data = {name: content for name, (_, _, content) in TORCH.items()}
    save_zip(bench.folder / "net.pth", {"ema": saved, "epoch": 3}, data)
    write_shard(bench.folder / "net.ckpt", MINDSPORE)
    args = ("ckpt", "export", "net.ckpt", "--to", "net.safetensors")
    done = bench.mslaunch(*args, "--like", "net.pth", "--key", "ema")
    assert (done.returncode, done.stderr) == (0, "")
    assert content_of(bench.folder / "net.safetensors") == NETWORK
    assert "--key ema: net.ckpt has no keys" in bench.mslaunch(*args[:-1], "b.safetensors", "--key", "ema").stderr


def test_differences_stand_in_the_same_order_every_time(bench: Bench) -> None:
    """Those of A as they stand there, then those of B alone, sorted."""
    write_shard(bench.folder / "a.ckpt", {name: floats(2) for name in "zyx"})
    write_shard(bench.folder / "b.ckpt", {name: floats(2) for name in "qponmlkj"})
    done = bench.mslaunch("ckpt", "diff", "a.ckpt", "b.ckpt", "--json")
    assert [one["name"] for one in json.loads(done.stdout)] == list("zyxjklmnopq")


def test_guesses_are_told(bench: Bench) -> None:
    """A guessed name is to be checked with the network."""
    save_state(bench.folder / "net.pth", TORCH)
    done = bench.mslaunch("ckpt", "import", "net.pth", "--to", "net.ckpt")
    line = "mslaunch: 7 names were guessed (emb.weight is emb.embedding_table …); check with --like\n"
    assert (done.returncode, done.stderr) == (0, line)


def test_only_what_says_so_is_an_embedding(bench: Bench) -> None:
    """The layer after the network is none, whatever it is called."""
    embeddings = ("embed_tokens", "wte", "tok_embeddings", "word_embeddings", "embed_in", "pos_emb", "tokenEmbedding")
    others = ("embed_out", "unembed", "output_embedding", "member", "proj")
    save_state(bench.folder / "net.pth", {f"{name}.weight": floats(3, 2) for name in (*embeddings, *others)})
    assert bench.mslaunch("ckpt", "import", "net.pth", "--to", "net.ckpt").returncode == 0
    names = {*(f"{name}.embedding_table" for name in embeddings), *(f"{name}.weight" for name in others)}
    assert content_of(bench.folder / "net.ckpt").keys() == names


@pytest.mark.parametrize("verb", ["import", "export"])
def test_all_names_can_be_kept(bench: Bench, verb: str) -> None:
    """Networks of mindspore.mint have PyTorch's names."""
    write_shard(bench.folder / "net.safetensors", {**TORCH, "a.gamma": floats(2)})
    done = bench.mslaunch("ckpt", verb, "net.safetensors", "--to", "new.safetensors", "--names", "none")
    assert (done.returncode, done.stderr) == (0, "")
    assert content_of(bench.folder / "new.safetensors") == {**TORCH, "a.gamma": floats(2)}


CONV1D: Content = {
    f"h.{layer}.{name}.weight": floats(*shape)
    for layer in range(2)
    for name, shape in (("fc", (2, 4)), ("attn", (2, 2)))
}
DENSE: Content = {name: floats(*shape[::-1]) for name, (_, shape, _) in CONV1D.items()}
SQUARES = "2 square matrices fit either way, transposed or not (h.0.attn.weight …): shapes cannot tell"


@pytest.mark.parametrize("rules", [None, r"(.*)fc\.weight", r"(.*)(fc|attn)\.weight"])
def test_squares_beside_transposed_matrices_are_told(bench: Bench, rules: str | None) -> None:
    """They fit either way, so a rule that follows from the shapes alone would leave them wrong."""
    save_state(bench.folder / "net.pth", CONV1D)
    write_shard(bench.folder / "init.ckpt", DENSE)
    names: tuple[str, ...] = ()
    if rules:
        to = r"\1\2.weight" if "attn" in rules else r"\1fc.weight"
        bench.write("rules.yaml", f"rules: [{{from: '{rules}', to: '{to}', transpose: true}}]")
        names = ("--names", "rules.yaml")
    done = bench.mslaunch("ckpt", "import", "net.pth", "--to", "net.ckpt", "--like", "init.ckpt", *names)
    assert (done.returncode, SQUARES in done.stderr) == (0 if rules else 2, rules is None or "attn" not in rules)


LAYERS = """
import sys
import {module}
from {module} import nn

class Network(nn.{base}):
    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16)
        self.decoder = nn.TransformerDecoderLayer(8, 2, 16)
        self.bn = nn.BatchNorm3d(4)
        self.norm = nn.InstanceNorm2d(4, affine=True)

network = Network()
"""
SAVE_MINDSPORE = """
every = (*network.get_parameters(), *nn.Adam(network.trainable_params()).get_parameters())
mindspore.save_checkpoint([{"name": one.name, "data": one} for one in every], sys.argv[1])
"""


@needs_torch
@needs_mindspore
@pytest.mark.mindspore
def test_layers_of_both_libraries_find_each_other(bench: Bench) -> None:
    """Layers inside of layers have other names; PyTorch's InstanceNorm has no statistics; and the way back too."""
    save = LAYERS.format(module="torch", base="Module") + "torch.save(network.state_dict(), sys.argv[1])"
    ask_torch(save, bench.folder / "net.pth")
    script = LAYERS.format(module="mindspore", base="Cell") + SAVE_MINDSPORE
    ask_mindspore(script, bench.folder / "init.ckpt")
    done = bench.mslaunch("ckpt", "import", "net.pth", "--to", "net.ckpt", "--like", "init.ckpt")
    assert done.returncode == 0, done.stderr
    words = "mslaunch: 2 statistics of normalisations (norm.moving_mean …) have no partner and need none: "
    assert (done.stderr.startswith(words), len(done.stderr.splitlines())) == (True, 1)
    assert bench.mslaunch("ckpt", "diff", "net.pth", "net.ckpt").returncode == 0
    back = bench.mslaunch("ckpt", "export", "init.ckpt", "--to", "back.safetensors", "--like", "net.pth")
    assert back.returncode == 0, back.stderr
    differences = json.loads(bench.mslaunch("ckpt", "diff", "net.pth", "back.safetensors", "--json").stdout)
    assert {one["kind"] for one in differences} == {"values"}


@needs_torch
def test_lost_statistics_of_a_batch_norm_are_told(bench: Bench) -> None:
    """Where other parameters of its layers have theirs, the file lacks one."""
    save_state(bench.folder / "net.pth", {name: value for name, value in TORCH.items() if "running_var" not in name})
    write_shard(bench.folder / "init.ckpt", zeros(MINDSPORE))
    done = bench.mslaunch("ckpt", "import", "net.pth", "--to", "net.ckpt", "--like", "init.ckpt")
    assert (done.returncode, "bn.moving_variance (4) gets no weights" in done.stderr) == (2, True)


def test_a_layer_that_may_be_tied_is_told_with_its_rule(bench: Bench) -> None:
    """A file holds tied weights once; the rule of the message gives them to both."""
    save_state(bench.folder / "net.pth", {"model.embed_tokens.weight": floats(5, 2), "model.fc.weight": floats(3, 2)})
    wanted = {
        "model.embed_tokens.embedding_table": floats(5, 2),
        "model.fc.weight": floats(3, 2),
        "lm_head.weight": floats(5, 2),
    }
    write_shard(bench.folder / "init.ckpt", zeros(wanted))
    args = ("ckpt", "import", "net.pth", "--to", "net.ckpt", "--like", "init.ckpt")
    said = bench.mslaunch(*args).stderr.splitlines()[0]
    start, _, rule = said.partition(" Then give a rule ")
    assert start.endswith("lm_head.weight (5x2) gets no weights; of the shape of model.embed_tokens.weight: tied?")
    bench.write("rules.yaml", f"rules: [{rule}]")
    done = bench.mslaunch(*args, "--names", "rules.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    assert content_of(bench.folder / "net.ckpt") == wanted


def test_what_the_rules_of_a_network_do_not_know_is_told(bench: Bench) -> None:
    """Experts of a Mixtral are no part of a Llama."""
    experts = {f"model.layers.0.block_sparse_moe.experts.{number}.w1.weight": floats(2, 2) for number in range(2)}
    save_state(bench.folder / "net.pth", {"model.norm.weight": floats(2), **experts, "lm_head.weight": floats(4, 2)})
    done = bench.mslaunch("ckpt", "import", "net.pth", "--to", "net.ckpt", "--names", "llama")
    assert (done.returncode, done.stderr) == (
        0,
        "mslaunch: --names llama: 2 parameters match no rule, so names are kept: "
        "model.layers.0.block_sparse_moe.experts.0.w1.weight …\n",
    )
