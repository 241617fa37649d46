"""Models of PyTorch in several files and folders: names without wrappers, tied weights, and what other verbs say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mslaunch.errors import RequestError
from mslaunch.weights.opening import open_weights
from tests.beds.sharded import json_strategy, safetensors_bytes, write_shard
from tests.beds.torch_files import Saved, save_zip
from tests.beds.two_networks import floats
from tests.conftest import Bench
from tests.weights.test_torch_files import values

WRAPPED = {
    "torch.compile": ("_orig_mod.a.w", "_orig_mod.b.w"),
    "compiled blocks": ("a._orig_mod.w", "b.w"),
    "FSDP": ("_fsdp_wrapped_module.a._fsdp_wrapped_module.w", "_fsdp_wrapped_module.b.w"),
    "activation checkpointing": ("a._checkpoint_wrapped_module.w", "b._checkpoint_wrapped_module.w"),
    "DataParallel": ("module.a.w", "module.b.w"),
    "both": ("_orig_mod.module.a.w", "_orig_mod.module.b.w"),
}


def write_model(folder: Path, names: tuple[str, str], ending: str) -> Path:
    """Write a model of two files with an index."""
    files = [f"model-0000{number}-of-00002.{ending}" for number in (1, 2)]
    for file, name in zip(files, names, strict=True):
        if ending == "bin":
            save_zip(folder / file, {name: Saved("s", "Int8", (2,))}, {"s": b"ab"})
        else:
            header = {name: {"dtype": "I8", "shape": [2], "data_offsets": [0, 2]}}
            (folder / file).write_bytes(safetensors_bytes({"__metadata__": {"format": "pt"}, **header}, b"ab"))
    index = {"weight_map": dict(zip(names, files, strict=True))}
    (folder / f"model.{ending}.index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize("kind", WRAPPED)
@pytest.mark.parametrize("ending", ["bin", "safetensors"])
def test_the_words_of_wrappers_are_removed_from_all_files(tmp_path: Path, kind: str, ending: str) -> None:
    """After the index was compared with the names in the files."""
    assert list(open_weights(write_model(tmp_path, WRAPPED[kind], ending))) == ["a.w", "b.w"]


def test_names_that_would_become_equal_are_refused(tmp_path: Path) -> None:
    """A weight must not vanish."""
    value = {name: Saved("s", "Int8", (2,)) for name in ("a.w", "a._orig_mod.w")}
    with pytest.raises(RequestError, match=r"a._orig_mod.w: without the words of wrappers it is a.w, as another is"):
        open_weights(save_zip(tmp_path / "a.pth", value, {"s": b"ab"}))


def test_a_network_of_mindspore_keeps_its_names(tmp_path: Path) -> None:
    """There `module.` is a cell."""
    for name in ("a.ckpt", "a.safetensors"):
        write_shard(tmp_path / name, {"module.w": floats(2)})
        assert list(open_weights(tmp_path / name)) == ["module.w"]


def save_tied(path: Path, metadata: dict[str, str], *names: str) -> Path:
    header = {name: {"dtype": "I8", "shape": [2], "data_offsets": [2 * n, 2 * n + 2]} for n, name in enumerate(names)}
    path.write_bytes(safetensors_bytes({"__metadata__": metadata, **header}, b"ab" * len(names)))
    return path


def test_a_name_that_safetensors_left_out_is_known_by_its_note(tmp_path: Path) -> None:
    """`save_model` notes of tied weights which name it kept; other notes are no names."""
    notes = {"format": "head.weight", "tok.weight": "head.weight", "note": "none", "head.weight": "head.weight"}
    assert values(save_tied(tmp_path / "a.safetensors", notes, "head.weight")) == {
        "head.weight": ((2,), b"ab"),
        "tok.weight": ((2,), b"ab"),
    }


@pytest.mark.parametrize("embedding", ["model.embed_tokens.weight", "transformer.wte.weight", "shared.weight"])
def test_a_head_that_is_tied_is_the_embedding(tmp_path: Path, embedding: str) -> None:
    """Where config.json says so and the files have no head."""
    save_tied(tmp_path / "model.safetensors", {"format": "pt"}, embedding, "other.weight")
    assert "lm_head.weight" not in open_weights(tmp_path)
    for tied in (False, True):
        (tmp_path / "config.json").write_text(json.dumps({"tie_word_embeddings": tied}))
        found = open_weights(tmp_path)
        assert ("lm_head.weight" in found) is tied
    assert found["lm_head.weight"].pieces == found[embedding].pieces


@pytest.mark.parametrize("config", ["{", "[]", '{"tie_word_embeddings": "true"}'])
def test_a_config_that_says_nothing_is_left_alone(tmp_path: Path, config: str) -> None:
    """It is not what was named."""
    save_tied(tmp_path / "model.safetensors", {"format": "pt"}, "model.embed_tokens.weight")
    (tmp_path / "config.json").write_text(config)
    assert list(open_weights(tmp_path)) == ["model.embed_tokens.weight"]


@pytest.mark.parametrize("kind", ["pytorch_model.bin", "model.safetensors"])
def test_the_network_is_found_in_the_folder_of_a_trainer(tmp_path: Path, kind: str) -> None:
    """What it keeps of the training is no network."""
    for name in ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth", "rng_state_0.pth", "scaler.pt"):
        save_zip(tmp_path / name, {"state": {}}, {})
    if kind == "model.safetensors":
        save_tied(tmp_path / kind, {"format": "pt"}, "w")
    else:
        save_zip(tmp_path / kind, {"w": Saved("s", "Int8", (2,))}, {"s": b"ab"})
    assert values(tmp_path) == {"w": ((2,), b"ab")}


def test_a_folder_of_lightning_has_its_one_checkpoint(tmp_path: Path) -> None:
    """Although it is called .ckpt."""
    save_zip(tmp_path / "epoch=0-step=4.ckpt", {"state_dict": {"w": Saved("s", "Int8", (2,))}}, {"s": b"ab"})
    assert values(tmp_path) == {"w": ((2,), b"ab")}


@pytest.mark.parametrize("named", ["", "__0_0.distcp"])
def test_a_distributed_checkpoint_is_refused_with_the_command_that_joins_it(tmp_path: Path, named: str) -> None:
    """The folder and a file of it alike."""
    for name in (".metadata", "__0_0.distcp"):
        (tmp_path / name).write_bytes(b"\x80\x02}.")
    with pytest.raises(RequestError, match=f"dcp_to_torch {tmp_path} model.pth"):
        open_weights(tmp_path / named)


def new_folder(bench: Bench, name: str) -> Path:
    (bench.folder / name).mkdir()
    return bench.folder / name


def test_show_lists_what_an_import_reads(bench: Bench) -> None:
    """A file of torch.save and a folder with an index, under the names of the network."""
    tensors = {name: Saved("s", "Int8", (2,)) for name in ("module.a.w", "module.b.w")}
    save_zip(bench.folder / "net.pth", {"best": Saved("s", "Int8", ()), "model": tensors}, {"s": b"ab"})
    write_model(new_folder(bench, "hf"), ("a.w", "b.w"), "safetensors")
    for source, files in (("net.pth", ""), ("hf", "2 files, ")):
        done = bench.mslaunch("ckpt", "show", source)
        assert (done.returncode, done.stderr) == (0, "")
        first, *rows = done.stdout.splitlines()
        assert first.startswith(f"{source}: {files}2 parameters, ")
        assert [row.split()[0] for row in rows[2:]] == ["a.w", "b.w"]
    shown = json.loads(bench.mslaunch("ckpt", "show", "net.pth", "--key", "model", "--json").stdout)
    assert shown["parameters"] == [{"name": name, "type": "Int8", "shape": [2], "bytes": 2} for name in ("a.w", "b.w")]


@pytest.mark.parametrize("source", ["net.pth", "epoch=0.ckpt", "hf", "lightning"])
@pytest.mark.parametrize(
    "command", [("ckpt", "verify"), ("ckpt", "reshard", "-o", "new", "--to", "s.json"), ("infer", "--ckpt")]
)
def test_weights_of_pytorch_are_to_be_imported_first(bench: Bench, source: str, command: tuple[str, ...]) -> None:
    """Whatever wants a checkpoint of MindSpore says so, and does not ask to remove files of a model."""
    value = {"w": Saved("s", "Int8", (2,))}
    for name in ("net.pth", "epoch=0.ckpt"):
        save_zip(bench.folder / name, value, {"s": b"ab"})
    write_model(new_folder(bench, "hf"), ("a.w", "b.w"), "safetensors")
    save_zip(new_folder(bench, "lightning") / "epoch=0.ckpt", value, {"s": b"ab"})
    bench.write("infer.py", "")
    cut = {"w": {"dev_matrix": [2], "tensor_map": [0], "tensor_shape": [1]}}
    (bench.folder / "s.json").write_bytes(json_strategy(cut))
    done = bench.mslaunch(*command, source)
    assert (done.returncode, done.stdout) == (2, "")
    words = f"holds PyTorch's weights: import them first: mslaunch ckpt import {source} --to net.ckpt"
    assert words in done.stderr
