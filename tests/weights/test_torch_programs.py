"""Files as programs of PyTorch save them: the network is found beside metrics, optimizers and objects of all kinds."""

from __future__ import annotations

from pathlib import Path

import pytest

from mslaunch.errors import RequestError
from mslaunch.weights.opening import open_weights
from tests.beds.sharded import content_of, write_shard
from tests.beds.torch_files import Call, Global, Persistent, Raw, Saved, ask_torch, needs_torch, save_older, save_zip
from tests.beds.two_networks import floats
from tests.conftest import Bench
from tests.weights.test_torch_files import values

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
save("random.pth", generator=wrapped, rng_state=torch.get_rng_state(), cuda_rng=torch.get_rng_state())
torch.save({**net.state_dict(), "optimizer": optimizer.state_dict()}, folder / "flat.pth")
torch.save(optimizer.state_dict(), folder / "optimizer.pth")


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
@pytest.mark.parametrize("name", ["imagenet.pth", "only.pth", "random.pth", "flat.pth"])
def test_a_checkpoint_of_a_training_gives_the_network_alone(written: Path, name: str) -> None:
    """Neither the best accuracy nor the optimizer's momentum is a weight."""
    assert shapes(written / name) == LINEAR


@needs_torch
def test_the_state_of_an_optimizer_alone_is_no_network(written: Path) -> None:
    """Its tensors have numbers for names."""
    with pytest.raises(RequestError, match="holds an optimizer's state, no network's"):
        open_weights(written / "optimizer.pth")


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
