"""examples/from_pytorch with both frameworks: the whole way there and back."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.util import find_spec

import pytest

from tests.beds.doc_commands import command_of
from tests.beds.torch_files import TORCH_PYTHON, needs_torch
from tests.conftest import ROOT, Bench

EXAMPLE = ROOT / "examples/from_pytorch"


@needs_torch
@pytest.mark.mindspore
@pytest.mark.skipif(find_spec("mindspore") is None, reason="MindSpore is not installed")
def test_every_line_of_the_readme_runs(bench: Bench) -> None:
    """Both frameworks have the same accuracy, and each finds the scores of the other equal."""
    shutil.copytree(EXAMPLE, bench.folder, dirs_exist_ok=True)
    told = ""
    for line in re.findall(r"^    ((?:python|mslaunch) .*)", (EXAMPLE / "README.md").read_text(), re.MULTILINE):
        words = command_of(line)
        if words:
            done = bench.mslaunch(*words)
        else:
            env = {**bench.env, "PYTHONPATH": str(ROOT)}
            command = [str(TORCH_PYTHON), line.split()[1]]
            done = subprocess.run(command, cwd=bench.folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        told += done.stdout
    first, second = re.findall(r"(?:PyTorch|MindSpore): accuracy (\S+)", told)
    assert first == second
    assert float(first) > 0.8
    promised = re.findall(r"^    (mslaunch: .*)", (EXAMPLE / "README.md").read_text(), re.MULTILINE)
    assert promised
    assert set(promised) <= set(told.splitlines())
    assert "the same scores as MindSpore" in told
