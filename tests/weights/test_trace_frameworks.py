"""Traces of real networks, in MindSpore and PyTorch: what is recorded, and what a comparison of both says."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.beds.torch_files import TORCH_PYTHON, needs_torch
from tests.beds.traced import index_of
from tests.conftest import ROOT, Bench

needs_mindspore = pytest.mark.skipif(find_spec("mindspore") is None, reason="MindSpore is not installed")

MINDSPORE = """
import sys
import numpy as np
import mindspore as ms
from mindspore import nn
from mslaunch.runtime.trace import trace

ms.set_context(mode=ms.GRAPH_MODE if sys.argv[1] == "graph" else ms.PYNATIVE_MODE)
network = nn.SequentialCell(nn.Dense(4, 3), nn.ReLU()).set_train(False)
network[0].weight.set_data(ms.Tensor(np.arange(12, dtype=np.float32).reshape(3, 4) - 6))
network[0].bias.set_data(ms.Tensor(np.ones(3, np.float32)))
x = ms.Tensor(np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4))
before = network(x).asnumpy()
with trace(network, "ms_trace"):
    network(x)
assert ms.get_context("mode") == (ms.GRAPH_MODE if sys.argv[1] == "graph" else ms.PYNATIVE_MODE)
np.testing.assert_allclose(network(x).asnumpy(), before)
"""
TORCH = """
import numpy as np, torch
from torch import nn
from mslaunch.runtime.trace import torch_trace

network = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
network[0].weight.data = torch.arange(12.0).reshape(3, 4) - 6
network[0].bias.data = torch.ones(3)
x = torch.from_numpy(np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4))
with torch_trace(network, "torch_trace"):
    network(x)
with torch_trace(network.to(torch.bfloat16), "half_trace"):
    network(x.to(torch.bfloat16))
"""


def run(bench: Bench, python: str | Path, script: str, *args: str) -> None:
    command = [str(python), "-c", script, *args]
    env = {**bench.env, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=bench.folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@needs_mindspore
@pytest.mark.mindspore
@pytest.mark.parametrize("mode", ["graph", "pynative"])
def test_every_cell_of_mindspore_is_recorded(bench: Bench, mode: str) -> None:
    """In graph mode the cells run one by one for the trace, which it says, and the mode is restored."""
    run(bench, sys.executable, MINDSPORE, mode)
    index = index_of(bench.folder / "ms_trace")
    assert [(row["name"], row["class"]) for row in index["outputs"]] == [
        ("0", "Dense"),
        ("1", "ReLU"),
        ("", "SequentialCell"),
    ]
    assert ["PyNative" in note for note in index["notes"]] == [True] * (mode == "graph")


JIT = """
import mindspore as ms
import numpy as np
from mindspore import nn
from mslaunch.runtime.trace import trace

class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc = nn.Dense(2, 2)

    @ms.jit
    def construct(self, x):
        return self.fc(x)

network = Network()
with trace(network, "ms_trace"):
    network(ms.Tensor(np.ones((1, 2), np.float32)))
"""


@needs_mindspore
@pytest.mark.mindspore
def test_cells_inside_a_compiled_function_are_recorded(bench: Bench) -> None:
    """A function with @jit runs as plain Python for the trace."""
    bench.write("compiled.py", JIT)
    run(bench, sys.executable, "import compiled")
    assert [row["name"] for row in index_of(bench.folder / "ms_trace")["outputs"]] == ["fc", ""]


@needs_torch
@needs_mindspore
@pytest.mark.mindspore
def test_both_frameworks_compute_the_same(bench: Bench) -> None:
    """The same weights give the same outputs in each layer; bfloat16 differs by its rounding alone."""
    run(bench, sys.executable, MINDSPORE, "pynative")
    run(bench, TORCH_PYTHON, TORCH)
    done = bench.mslaunch("trace", "compare", "torch_trace", "ms_trace", "--tolerance", "1e-6")
    assert done.returncode == 0, done.stdout + done.stderr
    assert bench.mslaunch("trace", "compare", "half_trace", "ms_trace", "--tolerance", "2e-2").returncode == 0
    assert index_of(bench.folder / "half_trace")["outputs"][0]["dtype"] == "bfloat16"


FAILING = """
import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mslaunch.runtime.trace import trace

class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc = nn.Dense(4, 4)
        self.head = nn.Dense(4, 2)

    def construct(self, x):
        return self.head(ops.gather_nd(self.fc(x), ms.Tensor([[99]], ms.int32)))

network = Network()
try:
    with trace(network, "ms_trace"):
        network(ms.Tensor(np.ones((3, 4), np.float32)))
except RuntimeError:
    pass
else:
    raise SystemExit("no error")
"""


@needs_mindspore
@pytest.mark.mindspore
def test_an_operator_of_mindspore_that_fails_ends_the_trace(bench: Bench) -> None:
    """It fails late, where a value is asked for, and the trace neither hides nor forgets it."""
    run(bench, sys.executable, FAILING)
    index = index_of(bench.folder / "ms_trace")
    assert index["ended_by"].startswith("RuntimeError: For 'GatherNd'")
    assert "head" in index["not_called"]


COMPILED = """
import torch
from torch import nn
from mslaunch.runtime.trace import torch_trace

plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
whole = torch.compile(plain, backend="eager")
inner = nn.Sequential(nn.Linear(4, 4), torch.compile(nn.Sequential(nn.ReLU(), nn.Linear(4, 2)), backend="eager")).eval()
x = torch.ones(1, 4)
with torch.no_grad():
    for name, network in (("whole", whole), ("inner", inner)):
        network(x)
        with torch_trace(network, name):
            network(x)
    counted = torch._dynamo.utils.counters["frames"]["total"]
    torch.compile(lambda x: x + 1, backend="eager")(x)
    assert torch._dynamo.utils.counters["frames"]["total"] > counted, "nothing is compiled after the trace"
"""


@needs_torch
def test_modules_of_a_compiled_network_are_recorded(bench: Bench) -> None:
    """It has run before; its modules have the names that they have without torch.compile."""
    run(bench, TORCH_PYTHON, COMPILED)
    for folder, names in (("whole", ["0", "1", "2", ""]), ("inner", ["0", "1.0", "1.1", "1", ""])):
        assert [row["name"] for row in index_of(bench.folder / folder)["outputs"]] == names


IN_PLACE = """
import torch
from torch import nn
from mslaunch.runtime.trace import torch_trace

network = nn.Sequential(nn.ReLU(inplace=True))
with torch_trace(network, "torch_trace"):
    network(torch.tensor([-1.0, 1.0]))
"""


@needs_torch
def test_an_input_is_recorded_before_the_module_writes_over_it(bench: Bench) -> None:
    """As nn.ReLU(inplace=True) does."""
    run(bench, TORCH_PYTHON, IN_PLACE)
    rows = index_of(bench.folder / "torch_trace")
    assert [row["min"] for row in rows["inputs"]] == [-1, -1]
    assert [row["min"] for row in rows["outputs"]] == [0, 0]


TORCH_BLOCK = """
import numpy as np, torch
from torch import nn
from mslaunch.runtime.trace import torch_trace

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.fc1, self.act = nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU()
        self.fc2, self.head = nn.Linear(64, 64), nn.Linear(64, 8)

    def forward(self, x):
        return self.head(torch.relu(self.fc2(self.act(self.fc1(self.norm(x))))))

torch.manual_seed(1)
network = Block().eval()
weights = {name: value.numpy() for name, value in network.state_dict().items()}
weights["x"] = 0.1 * torch.randn(4, 64).numpy()
np.savez("weights.npz", **weights)
with torch.no_grad(), torch_trace(network, "torch_trace"):
    network(torch.from_numpy(weights["x"]))
with torch.no_grad(), torch_trace(network.bfloat16(), "half"):
    network(torch.from_numpy(weights["x"]).bfloat16())
"""
MINDSPORE_BLOCK = """
import mindspore as ms, numpy as np
from mindspore import nn, ops
from mslaunch.runtime.trace import trace

class Block(nn.Cell):
    def __init__(self, mistake):
        super().__init__()
        self.norm = nn.LayerNorm((64,), epsilon=1e-7 if mistake == "epsilon" else 1e-5)
        self.fc1, self.act = nn.Dense(64, 64), nn.GELU(approximate=mistake == "gelu")
        self.fc2, self.head = nn.Dense(64, 64), nn.Dense(64, 8)
        self.function = ops.abs if mistake == "function" else ops.relu

    def construct(self, x):
        return self.head(self.function(self.fc2(self.act(self.fc1(self.norm(x))))))

weights = np.load("weights.npz")
for mistake in ("none", "epsilon", "gelu", "function"):
    network = Block(mistake).set_train(False)
    for name, parameter in network.parameters_and_names():
        name = name.replace("gamma", "weight").replace("beta", "bias")
        parameter.set_data(ms.Tensor(weights[name]))
    with trace(network, mistake):
        network(ms.Tensor(weights["x"]))
"""
MISTAKES = {
    "epsilon": ("first difference: norm (", "what norm is given is the same: look at norm itself"),
    "gelu": ("first difference: act (", "what act is given is the same: look at act itself"),
    "function": ("first difference: head (", "look between fc2 and head"),
}


@needs_torch
@needs_mindspore
@pytest.mark.mindspore
def test_mistakes_of_porting_are_named_and_a_right_network_is_the_same(bench: Bench) -> None:
    """With the defaults, in float32; in bfloat16 rounding alone is no difference."""
    run(bench, TORCH_PYTHON, TORCH_BLOCK)
    run(bench, sys.executable, MINDSPORE_BLOCK)
    for folder in ("torch_trace", "half"):
        done = bench.mslaunch("trace", "compare", folder, "none")
        assert done.returncode == 0, done.stdout
    for mistake, told in MISTAKES.items():
        done = bench.mslaunch("trace", "compare", "torch_trace", mistake)
        assert done.returncode == 1, done.stdout
        assert all(words in done.stdout for words in told), done.stdout
