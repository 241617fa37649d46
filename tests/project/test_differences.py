"""The differences that docs/from-pytorch.md lists, each seen with both frameworks."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.beds.torch_files import TORCH_PYTHON, needs_torch
from tests.conftest import ROOT

pytestmark = [
    needs_torch,
    pytest.mark.mindspore,
    pytest.mark.skipif(find_spec("mindspore") is None, reason="MindSpore is not installed"),
]
Values = dict[str, Any]


def values_of(python: str | Path, script: str, folder: Path) -> Values:
    path = folder / f"{script}.npz"
    command = [str(python), str(ROOT / "tests" / "beds" / script), str(path)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    with np.load(path) as values:
        return dict(values)


@pytest.fixture(scope="module")
def torch(tmp_path_factory: pytest.TempPathFactory) -> Values:
    return values_of(TORCH_PYTHON, "differences_torch.py", tmp_path_factory.mktemp("torch"))


@pytest.fixture(scope="module")
def mindspore(tmp_path_factory: pytest.TempPathFactory) -> Values:
    return values_of(sys.executable, "differences_mindspore.py", tmp_path_factory.mktemp("mindspore"))


def same(first: Any, second: Any, within: float = 1e-5) -> bool:
    return np.shape(first) == np.shape(second) and bool(np.allclose(first, second, rtol=within, atol=within))


def shape(value: Any) -> tuple[int, ...]:
    return tuple(value.tolist())


def test_training(torch: Values, mindspore: Values) -> None:
    """A new module trains in PyTorch, a new cell does not in MindSpore."""
    assert (bool(torch["training"]), bool(mindspore["training"])) == (True, False)


def test_batch_norm(torch: Values, mindspore: Values) -> None:
    """Momentum 0.1 there is 0.9 here: the defaults give the same averages; epsilon is the same."""
    assert same(torch["running_mean"], mindspore["running_mean"])
    assert same(torch["running_var"], mindspore["running_var"])
    assert torch["batch_norm_eps"] == mindspore["batch_norm_eps"]


def test_layer_norm(torch: Values, mindspore: Values) -> None:
    """Epsilon is 1e-5 there and 1e-7 here."""
    assert (float(torch["layer_norm_eps"]), float(mindspore["layer_norm_eps"])) == (1e-5, 1e-7)


def test_dropout(torch: Values, mindspore: Values) -> None:
    """The first argument is the share dropped there and kept here; `p` is the share dropped in both."""
    for kept, share in ((torch["kept"], 0.8), (mindspore["kept"], 0.8), (mindspore["kept_first"], 0.2)):
        assert abs(float(kept) - share) < 0.03


def test_convolution(torch: Values, mindspore: Values) -> None:
    """No padding and a bias there, padding to the same size and no bias here."""
    assert shape(torch["conv_shape"]) == shape(mindspore["valid_shape"]) == (1, 1, 3, 3)
    assert shape(mindspore["conv_shape"]) == (1, 1, 5, 5)
    assert (bool(torch["conv_bias"]), bool(mindspore["conv_bias"])) == (True, False)


def test_pooling(torch: Values, mindspore: Values) -> None:
    """The stride is the kernel's size there and 1 here; ceil_mode needs pad_mode="pad"."""
    assert shape(torch["pool_shape"]) == shape(mindspore["stride_shape"]) == (1, 1, 2, 2)
    assert shape(mindspore["pool_shape"]) == (1, 1, 4, 4)
    assert shape(torch["ceil_shape"]) == shape(mindspore["ceil_shape"]) == (1, 1, 3, 3)


def test_gelu(torch: Values, mindspore: Values) -> None:
    """Exact there, an approximation here unless it is asked for."""
    assert same(torch["gelu"], mindspore["exact_gelu"])
    assert not same(torch["gelu"], mindspore["gelu"])


def test_initial_values(torch: Values, mindspore: Values) -> None:
    """Linear layers begin alike; embeddings with a standard deviation of 1 there and 0.01 here."""
    assert same(torch["linear_std"], mindspore["linear_std"], 0.02)
    assert (round(float(torch["embedding_std"]), 1), round(float(mindspore["embedding_std"]), 3)) == (1.0, 0.01)


def test_loss(torch: Values, mindspore: Values) -> None:
    """CrossEntropyLoss is the same in both; SoftmaxCrossEntropyWithLogits returns one value for each sample."""
    assert same(torch["cross_entropy"], mindspore["cross_entropy"])
    assert same(torch["cross_entropy"], mindspore["softmax_loss"].mean())
    assert mindspore["softmax_loss"].shape == (8,)


def test_momentum(torch: Values, mindspore: Values) -> None:
    """SGD with momentum is nn.Momentum: weight decay is added to the gradient before the momentum in both."""
    assert same(torch["momentum"], mindspore["momentum"])


def test_adam(torch: Values, mindspore: Values) -> None:
    """Large gradients give the same steps; one as small as epsilon gives a smaller step here."""
    assert same(torch["adam"][[0, 2]], mindspore["adam"][[0, 2]])
    start = -2.0
    assert abs(mindspore["adam"][1] - start) < 0.1 * abs(torch["adam"][1] - start)
    assert same(torch["adam_l2"], mindspore["adam_l2"])


def test_adamw(torch: Values, mindspore: Values) -> None:
    """nn.AdamWeightDecay does not correct the bias of the first steps, and its epsilon is 1e-6."""
    assert not same(torch["adamw"], mindspore["adamw"], 0.05)
    weight, gradient, first, second = 1.0, 0.1, 0.0, 0.0
    for _ in range(2):
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        weight -= 0.1 * (first / (second**0.5 + 1e-8) + 0.5 * weight)
    assert same(mindspore["adamw"][0], weight, 1e-4)
    assert float(mindspore["adamw_eps"]) == 1e-6


def test_weight_decay_of_norms(torch: Values, mindspore: Values) -> None:
    """All parameters are decayed there; here not those called gamma and beta, unless parameters are grouped."""
    assert same(torch["decayed_norm"], np.full(3, 0.95))
    assert same(mindspore["decayed_norm"], np.ones(3))
    assert same(mindspore["grouped_norm"], np.full(3, 0.95))


def test_learning_rate(torch: Values, mindspore: Values) -> None:
    """After two steps, the rate is what it was there, where the script steps it, and the third one here."""
    assert same(torch["rate"], 0.1)
    assert same(mindspore["rate"], 0.025)


@pytest.mark.parametrize("page", ["docs/from-pytorch.md", "docs/zh/from-pytorch.md"])
def test_every_row_of_the_page_names_its_test(page: str) -> None:
    """The table has a row for each test above, and no other."""
    rows = re.findall(r"^\| .* \| `(test_\w+)` \|$", (ROOT / page).read_text(), re.MULTILINE)
    source = Path(__file__).read_text()
    assert rows == re.findall(r"^def (test_\w+)\(torch:", source, re.MULTILINE)
