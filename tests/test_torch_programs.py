"""Files as programs of PyTorch save them: the network is found beside metrics, optimizers and objects of all kinds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mslaunch.checkpoint.opening import open_weights
from mslaunch.errors import RequestError
from tests.conftest import Bench
from tests.sharded import content_of, json_strategy, safetensors_bytes, write_shard
from tests.test_torch_files import values
from tests.torch_files import Call, Global, Persistent, Saved, ask_torch, needs_torch, save_older, save_zip
from tests.two_networks import floats

TORCH = """
import argparse, collections, datetime, pathlib, sys, types
import numpy as np
import torch
from torch import nn

folder = pathlib.Path(sys.argv[1])
net = nn.Linear(2, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
net(torch.ones(1, 2)).sum().backward()
optimizer.step()
wrapped = nn.DataParallel(net).state_dict()


def save(name, **more):
    torch.save(more, folder / name)


save("imagenet.pth", epoch=3, state_dict=wrapped, best_acc1=torch.tensor(71.3), optimizer=optimizer.state_dict())
save("only.pth", generator=wrapped, best=torch.tensor([71.3]), optim_g=optimizer.state_dict())
torch.save({**net.state_dict(), "optimizer": optimizer.state_dict()}, folder / "flat.pth")


class AttributeDict(dict):
    pass


AttributeDict.__module__, AttributeDict.__qualname__ = "pytorch_lightning.utilities.parsing", "AttributeDict"
for part in ("pytorch_lightning", "pytorch_lightning.utilities", "pytorch_lightning.utilities.parsing"):
    sys.modules[part] = types.ModuleType(part)
sys.modules["pytorch_lightning.utilities.parsing"].AttributeDict = AttributeDict

scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 2, 4])
shared = {"lr": 0.1}
BESIDE = {
    "counter": scheduler.state_dict(), "namespace": argparse.Namespace(lr=0.1, sizes=[1, 2]),
    "numpy": {"scalar": np.float64(0.5), "array": np.arange(3), "legacy": np.random.get_state()},
    "generator": np.random.default_rng(1), "random_state": np.random.RandomState(1), "dtype": np.dtype("float32"),
    "sets": [{1, 2}, frozenset("ab"), bytearray(b"x"), 1j, slice(1, 2), range(3)], "bytes": b"\\xff\\x00",
    "default": collections.defaultdict(list, {"a": [1]}), "deque": collections.deque([1, 2]),
    "path": pathlib.Path("a/b"), "version": torch.__version__,
    "dates": [datetime.datetime.now(), datetime.timedelta(1)],
    "torch": [torch.strided, torch.device("cpu"), torch.float32, torch.Size([1]), torch.complex64],
    "rng": torch.get_rng_state(), "hyper_parameters": AttributeDict(a=1), "loss": nn.CrossEntropyLoss(),
    "simple": types.SimpleNamespace(a=1), "shared": [shared, shared], "twice": {"a": shared, "b": {"c": shared}},
    "keys": {(1, "a"): 1, torch.float32: 2, pathlib.Path("a"): 3}, "sparse": torch.eye(2).to_sparse(),
    "tensors in an object": argparse.Namespace(t=torch.ones(5, dtype=torch.complex64)),
}
for older in (False, True):
    (folder / f"beside-{older}").mkdir()
    for name, value in BESIDE.items():
        path = folder / f"beside-{older}" / f"{name}.pth"
        torch.save({name: value, "state_dict": wrapped}, path, _use_new_zipfile_serialization=not older)

named = torch.nn.Parameter(torch.ones(3))
named.x = 1
plain = torch.ones(3)
plain.x = 1
torch.save({"plain": plain, "named": named, "buffer": nn.Buffer(torch.ones(2))}, folder / "attributes.pth")
inside = {
    "sparse": torch.eye(2).to_sparse(), "csr": torch.eye(2).to_sparse_csr(), "array": np.arange(3),
    "quantized": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "meta": torch.ones(2, device="meta"),
    "args": argparse.Namespace(a=1),
}
for name, value in inside.items():
    torch.save({"w": torch.ones(1), name: value}, folder / f"inside-{name}.pth")
torch.save({"w": torch.ones(1), "freqs_cis": torch.ones(2, 3, dtype=torch.complex64)}, folder / "complex.pth")
torch.save(nn.Sequential(net), folder / "whole.pth")
torch.save({"model": nn.Sequential(net)}, folder / "model.pth")
torch.save(net.state_dict(), folder / "epoch=0-step=4.ckpt")
for name in ("a.pth.tar", "a.th", "a.pkl", "a"):
    torch.save(net.state_dict(), folder / name, _use_new_zipfile_serialization=name != "a.th")
"""
LINEAR = {"weight": (3, 2), "bias": (3,)}


def shapes(path: Path, key: str | None = None) -> dict[str, tuple[int, ...]]:
    return {name: weight.shape for name, weight in open_weights(path, key=key).items()}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torch")
    ask_torch(TORCH, folder)
    return folder


@needs_torch
@pytest.mark.parametrize("name", ["imagenet.pth", "only.pth", "flat.pth"])
def test_a_checkpoint_of_a_training_gives_the_network_alone(written: Path, name: str) -> None:
    """Neither the best accuracy nor the optimizer's momentum is a weight."""
    assert shapes(written / name) == LINEAR


@needs_torch
@pytest.mark.parametrize("older", [False, True])
def test_a_harmless_object_beside_the_weights_does_no_harm(written: Path, older: bool) -> None:
    """What schedulers, argparse, NumPy, Lightning and torch itself put there is dropped, in both formats."""
    files = sorted((written / f"beside-{older}").iterdir())
    known = values(written / "imagenet.pth")
    assert len(files) > 20
    assert {path.stem: values(path) for path in files} == {path.stem: known for path in files}


@needs_torch
def test_tensors_with_attributes_are_tensors(written: Path) -> None:
    """The attributes are left out."""
    assert shapes(written / "attributes.pth") == {"plain": (3,), "named": (3,), "buffer": (2,)}


@needs_torch
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sparse", "save its .to_dense()"),
        ("csr", "save its .to_dense()"),
        ("quantized", "save its .dequantize()"),
        ("meta", "which has no values"),
        ("array", "torch.from_numpy"),
        ("args", "save only model.state_dict()"),
    ],
)
def test_an_object_in_the_state_dict_is_refused_by_name(written: Path, name: str, words: str) -> None:
    """It may hold weights, and the sentence tells what to do."""
    with pytest.raises(RequestError) as refused:
        open_weights(written / f"inside-{name}.pth")
    assert f" {name} is " in str(refused.value)
    assert words in str(refused.value)


@needs_torch
@pytest.mark.parametrize(("name", "words"), [("whole", "no state_dict but torch.nn"), ("model", "model is torch.nn")])
def test_a_whole_model_is_refused_with_what_to_save(written: Path, name: str, words: str) -> None:
    """Its weights are inside an object, which is dropped."""
    with pytest.raises(RequestError, match=words) as refused:
        open_weights(written / f"{name}.pth")
    assert "model.state_dict()" in str(refused.value)


@needs_torch
@pytest.mark.parametrize("name", ["epoch=0-step=4.ckpt", "a.pth.tar", "a.th", "a.pkl", "a"])
def test_a_file_of_torch_is_known_by_its_first_bytes(written: Path, name: str) -> None:
    """Whatever its ending."""
    assert shapes(written / name) == LINEAR


@needs_torch
def test_a_type_that_mindspore_does_not_have_can_be_left_out(written: Path, bench: Bench) -> None:
    """It is refused where it is to be written, with the rule that drops it."""
    source = str(written / "complex.pth")
    done = bench.mslaunch("ckpt", "import", source, "--to", "a.ckpt")
    assert done.returncode == 2
    assert "freqs_cis: complex64 is a type that MindSpore's checkpoints do not have" in done.stderr
    bench.write("rules.yaml", "rules: [{drop: freqs_cis}]")
    done = bench.mslaunch("ckpt", "import", source, "--to", "a.ckpt", "--names", "rules.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    assert list(content_of(bench.folder / "a.ckpt")) == ["w"]
    write_shard(bench.folder / "init.ckpt", {"w": floats(1)})
    done = bench.mslaunch("ckpt", "import", source, "--to", "b.ckpt", "--like", "init.ckpt", "--partial")
    assert done.returncode == 0
    assert list(content_of(bench.folder / "b.ckpt")) == ["w"]
    assert bench.mslaunch("ckpt", "diff", source, source).returncode == 0


def test_a_tensor_of_an_ascend_is_read_as_it_is(tmp_path: Path) -> None:
    """torch_npu adds the format that it had on the device."""
    view = Saved("s", "Int8", (2,)).call().arguments
    made = Call(Global("torch_npu.utils.storage._rebuild_npu_tensor"), (*view, 2))
    assert values(save_zip(tmp_path / "a.pth", {"w": made}, {"s": b"ab"})) == {"w": ((2,), b"ab")}


def test_a_storage_in_what_is_dropped_has_its_size(tmp_path: Path) -> None:
    """In the older format it stands before those of the weights."""
    held = Persistent(("storage", Global("torch.ComplexFloatStorage"), "c", "cpu", 2, None))
    value = {"args": Call(Global("argparse.Namespace"), (held,)), "model": {"w": Saved("s", "Int8", (2,))}}
    path = save_older(tmp_path / "a.pth", value, {"c": (2, bytes(16)), "s": (2, b"ab")})
    assert values(path) == {"w": ((2,), b"ab")}


def test_an_extra_state_is_left_out(tmp_path: Path) -> None:
    """Transformer Engine keeps a buffer of bytes in the state_dict."""
    extra = Raw(b"c_io\nBytesIO\n)\x81(X\x01\x00\x00\x00aK\x00Ntb")
    value = {"w": Saved("s", "Int8", (2,)), "_extra_state": extra}
    assert values(save_zip(tmp_path / "a.pth", value, {"s": b"ab"})) == {"w": ((2,), b"ab")}


@pytest.mark.parametrize("name", ["_rebuild_device_tensor_from_numpy", "_rebuild_xla_tensor"])
def test_a_tensor_whose_values_lie_in_the_pickle_is_refused_by_name(tmp_path: Path, name: str) -> None:
    """XLA's are saved so; the sentence tells what to save."""
    made = Call(Global(f"torch._utils.{name}"), (None, Global("torch.float32"), "xla:0", False))
    with pytest.raises(RequestError, match=rf" w is torch._utils.{name}.*model.cpu\(\).state_dict\(\)"):
        open_weights(save_zip(tmp_path / "a.pth", {"v": Saved("s", "Int8", (2,)), "w": made}, {"s": b"ab"}))


REFUSED = {
    "a function of a known package": "transformers.modeling_utils.load_state_dict",
    "a method of a known class": "lightning.pytorch.Trainer.fit",
    "a hidden attribute": "omegaconf.__builtins__",
    "an attribute below a hidden one": "timm.__loader__.Loader",
    "a package with a longer name": "timmy.Model",
    "a class of the program": "__main__.Net",
    "a class of torch that runs": "torch.utils.cpp_extension.load",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_name_that_is_not_known_as_harmless_is_refused(tmp_path: Path, kind: str) -> None:
    """By its name, also beside the weights."""
    value = {"state_dict": {"w": Saved("s", "Int8", (2,))}, "other": Call(Global(REFUSED[kind]))}
    with pytest.raises(RequestError, match=f"names '{REFUSED[kind]}'.*save only model.state_dict"):
        open_weights(save_zip(tmp_path / "a.pth", value, {"s": b"ab"}))


def test_a_tensor_inside_a_tensor_inside_a_tensor_is_refused(tmp_path: Path) -> None:
    """Each would be a level of recursion."""
    again = Global("torch._tensor._rebuild_from_type_v2")
    value = Call(again, (again, Global("torch.Tensor"), (again, Global("torch.Tensor"), (), None), None))
    with pytest.raises(RequestError, match=r"makes a tensor by torch\._tensor"):
        open_weights(save_zip(tmp_path / "a.pth", {"w": value}, {}))


def test_the_keys_that_are_there_are_listed(tmp_path: Path) -> None:
    """Where --key names none of them."""
    weights = {"w": Saved("s", "Int8", (2,))}
    path = save_zip(tmp_path / "a.pth", {"model": weights, "model_ema": weights}, {"s": b"ab"})
    with pytest.raises(RequestError, match="no state_dict under ema; its keys are model, model_ema"):
        open_weights(path, key="ema")


def test_weights_that_deepspeed_keeps_elsewhere_are_not_taken_for_empty_ones(tmp_path: Path) -> None:
    """ZeRO-3 saves every parameter with no element."""
    value = {"module": {"a": Saved("s", "Int8", (0,)), "b": Saved("s", "Int8", (0,))}}
    with pytest.raises(RequestError, match=r"all of its tensors are empty.*zero_to_fp32.py"):
        open_weights(save_zip(tmp_path / "a.pt", value, {"s": b""}))


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
