"""Networks built from torch.nn: every parameter is equal after the import, and after the export back."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from mslaunch.checkpoint.formats.table import read_shard
from tests.beds.sharded import content_of, write_shard
from tests.beds.torch_files import TORCH_PYTHON, needs_torch
from tests.beds.two_networks import floats
from tests.conftest import ROOT, Bench

SAMPLES = {
    "resnet": ("layer2.0.down_sample.1.moving_variance", "classifier.weight", "layer4.1.bn2.gamma"),
    "llama": ("model.tok_embeddings.embedding_weight", "model.layers.3.attention.wk.weight", "model.norm_out.weight"),
    "qwen": ("model.layers.0.attention.wq.bias", "model.layers.2.feed_forward.w2.weight", "lm_head.weight"),
    "bert": (
        "bert.embeddings.word_embeddings.embedding_table",
        "bert.encoder.layer.3.attention.output.LayerNorm.gamma",
        "bert.encoder.layer.0.attention.self.query.weight",
    ),
    "gpt2": ("transformer.wpe.embedding_table", "transformer.h.3.ln_2.beta", "transformer.h.0.attn.c_proj.weight"),
}
"""Some of the names that a network's parameters have in MindSpore."""


def ask(action: str, network: str, path: Path) -> None:
    command = [str(TORCH_PYTHON), str(ROOT / "tests" / "beds" / "torch_networks.py"), action, network, str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


@needs_torch
@pytest.mark.parametrize("network", SAMPLES)
def test_a_network_goes_there_and_back(bench: Bench, network: str) -> None:
    """By the ready rules of its kind; torch finds each parameter equal, and equal outputs."""
    ask("save", network, bench.folder / "net.pth")
    done = bench.mslaunch("ckpt", "import", "net.pth", "--to", "net.ckpt", "--names", network)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(SAMPLES[network]) <= read_shard(bench.folder / "net.ckpt").tensors.keys()
    same = bench.mslaunch("ckpt", "diff", "net.pth", "net.ckpt", "--names", network)
    assert (same.returncode, same.stdout) == (0, "net.pth and net.ckpt: the same\n")
    done = bench.mslaunch("ckpt", "export", "net.ckpt", "--to", "back.safetensors", "--names", network)
    assert (done.returncode, done.stderr) == (0, "")
    ask("check", network, bench.folder / "back.safetensors")


def test_matrices_of_gpt2_are_transposed(bench: Bench) -> None:
    """Those of Conv1D, square ones too; buffers of the attention are left out and its biases are not."""
    square = np.arange(9, dtype=np.float32).reshape(3, 3)
    matrix = ("Float32", (3, 3), square.tobytes())
    start = "h.0.attn"
    content = {f"{start}.c_proj.weight": matrix, f"{start}.c_attn.bias": floats(3), f"{start}.bias": floats(1, 1, 4, 4)}
    write_shard(bench.folder / "net.safetensors", {**content, "lm_head.weight": matrix})
    done = bench.mslaunch("ckpt", "import", "net.safetensors", "--to", "net.ckpt", "--names", "gpt2")
    assert (done.returncode, done.stderr) == (0, "")
    made = content_of(bench.folder / "net.ckpt")
    assert made.keys() == {f"{start}.c_proj.weight", f"{start}.c_attn.bias", "lm_head.weight"}
    assert made[f"{start}.c_proj.weight"][2] == square.T.tobytes()
    assert made["lm_head.weight"] == matrix


@needs_torch
def test_a_network_finds_its_names_by_itself(bench: Bench) -> None:
    """Without rules, with nothing but a checkpoint of the network in MindSpore, whose words are others."""
    ask("save", "bert", bench.folder / "net.pth")
    assert bench.mslaunch("ckpt", "import", "net.pth", "--to", "init.ckpt", "--names", "bert").returncode == 0
    done = bench.mslaunch("ckpt", "import", "net.pth", "--to", "net.ckpt", "--like", "init.ckpt")
    assert (done.returncode, done.stderr) == (0, "")
    assert bench.mslaunch("ckpt", "diff", "init.ckpt", "net.ckpt").returncode == 0
