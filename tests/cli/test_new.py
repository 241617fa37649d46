"""`mslaunch new` begins a project that runs as it is, and overwrites nothing."""

from __future__ import annotations

import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import MSLAUNCH, ROOT, Bench

EXAMPLES = sorted(path.parent.name for path in ROOT.glob("examples/*/train.py"))


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_project_has_its_scripts_and_src(bench: Bench) -> None:
    """Configuration, training, evaluation and inference stand in front, the modules that they import in src/."""
    done = bench.mslaunch("new", "spiral")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("cd spiral && mslaunch train --workers 2 --config config.yaml\n")
    assert names(bench.folder / "spiral") == {
        ".gitignore",
        "README.md",
        "config.yaml",
        "eval.py",
        "infer.py",
        "src/__init__.py",
        "src/dataset.py",
        "src/network.py",
        "strategy.py",
        "train.py",
    }


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_project_of_any_example_imports_its_modules_from_src(bench: Bench, example: str) -> None:
    """No import of a module that has moved is left behind, and the job can be planned."""
    assert bench.mslaunch("new", "mine", "--from", example).returncode == 0
    folder = bench.folder / "mine"
    moved = {path.stem for path in (folder / "src").glob("*.py")} - {"__init__"}
    for path in folder.rglob("*.py"):
        lines = path.read_text().splitlines()
        assert not [line for line in lines if line.split()[:2] in [["from", name] for name in moved]], path
    done = bench.mslaunch("train", "-n", "2", "--config", "mine/config.yaml", "--dry-run")
    assert done.returncode == 0, done.stderr


def commands(readme: Path) -> list[str]:
    return [line for line in readme.read_text().splitlines() if line.startswith("    ")]


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_steps_of_a_project_are_those_of_its_example(bench: Bench, example: str) -> None:
    """Its README has every command of the example's, and the first of them is printed."""
    done = bench.mslaunch("new", "mine", "--from", example)
    steps = commands(bench.folder / "mine/README.md")
    assert steps == commands(ROOT / "examples" / example / "README.md")
    assert done.stdout.endswith(f"\ncd mine && {steps[0].strip()}\n")


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_readme_of_a_project_names_files_where_they_are(bench: Bench, example: str) -> None:
    """The modules that its table lists are in src/, under the project's own title."""
    bench.mslaunch("new", "mine", "--from", example)
    text = (bench.folder / "mine/README.md").read_text()
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `") and (".py`" in line)]
    named = {name for row in rows for name in re.findall(r"`(\S+\.py)`", row)}
    have = {name for name in names(bench.folder / "mine") if name.endswith(".py") and name != "src/__init__.py"}
    assert (text.splitlines()[0], named) == ("# mine", have)


def test_the_printed_line_can_be_pasted(bench: Bench) -> None:
    """A name with a space is quoted."""
    done = bench.mslaunch("new", "my proj")
    assert "\ncd 'my proj' && mslaunch train " in done.stdout


@pytest.mark.mindspore
@pytest.mark.skipif(find_spec("mindspore") is None, reason="MindSpore is not installed")
def test_a_new_project_runs_at_once(bench: Bench) -> None:
    """Trained, measured and served as its README and the example's say."""
    assert bench.mslaunch("new", "spiral").returncode == 0
    here = Bench(bench.folder / "spiral", bench.env)
    done = here.mslaunch("train", "--workers", "2", "--config", "config.yaml", "--set", "epochs=2")
    assert done.returncode == 0, done.stdout
    done = here.mslaunch("train", "--workers", "1", "--config", "config.yaml", "--script", "eval.py")
    assert (done.returncode, "accuracy 0." in here.log(0)) == (0, True), done.stdout
    done = here.mslaunch(
        "infer", "--workers", "1", "--config", "config.yaml", "--script", "infer.py", "--ckpt", "net.ckpt"
    )
    assert (done.returncode, "1000 points here" in here.log(0)) == (0, True), done.stdout


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("mine",), 2, "mine exists, so nothing was written. Give another name."),
        (("x", "--from", "data_paralel"), 2, "did you mean 'data_parallel'?"),
        (("x", "--from", "rank_tables/v1.0_1x8.json"), 2, "is a rank table, not an example."),
        (("/proc/x",), 3, "/proc/x: cannot write: "),
        (("mine/file/x",), 3, "mine/file/x: cannot write: "),
    ],
)
def test_a_wrong_name_is_one_line(bench: Bench, args: tuple[str, ...], code: int, message: str) -> None:
    """Nothing is written."""
    bench.write("mine/file", "mine")
    done = bench.mslaunch("new", *args)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1)
    assert message in done.stderr
    assert names(bench.folder) == {"mine/file"}


def test_a_project_that_cannot_be_written_is_removed(bench: Bench) -> None:
    """If the disk takes no more, no part of it is left."""
    limited = f"ulimit -f 1; exec '{MSLAUNCH}' new mine"
    done = subprocess.run(["sh", "-c", limited], cwd=bench.folder, env=bench.env, capture_output=True, text=True)
    assert (done.returncode, "cannot write: File too large" in done.stderr) == (3, True)
    assert not (bench.folder / "mine").exists()
