"""`mslaunch examples` lists what comes with mslaunch and copies it, without overwriting anything."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import MSLAUNCH, ROOT, Bench

EXAMPLES = sorted(path.parent.name for path in ROOT.glob("examples/*/README.md"))
TABLES = sorted(f"rank_tables/{path.name}" for path in ROOT.glob("rank_tables/*.json"))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*")}


def test_every_example_and_rank_table_is_listed_with_one_sentence(bench: Bench) -> None:
    """`examples list --json` names all of them, each with a short sentence."""
    listed = json.loads(bench.mslaunch("examples", "list", "--json").stdout)
    assert [item["name"] for item in listed] == [*EXAMPLES, *TABLES]
    assert all(item["about"].count(". ") == 0 and item["about"].endswith(".") for item in listed)
    assert max(len(item["about"]) for item in listed) < 100


def test_the_list_is_a_table_with_one_line_each(bench: Bench) -> None:
    """The sentence of an example is the first of its README; that of a rank table tells its size."""
    lines = bench.mslaunch("examples", "list").stdout.splitlines()
    assert len(lines) == 1 + len(EXAMPLES) + len(TABLES)
    rows = dict(line.split(maxsplit=1) for line in lines)
    assert rows["data_parallel"] == "A small classifier trained with `Model.train`."
    assert rows["rank_tables/v1.2_4x16.json"] == "Rank table, version 1.2: 4 servers with 16 devices each."
    assert rows["rank_tables/v1.0_1x1.json"] == "Rank table, version 1.0: 1 server with 1 device."


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_copied_with_all_its_files(bench: Bench, name: str) -> None:
    """The copy is a folder of the example's name, with every file that the README's table names, unchanged."""
    done = bench.mslaunch("examples", "copy", name)
    assert (done.returncode, done.stdout) == (0, f"{name}: see its README.md\n")
    source, copy = ROOT / "examples" / name, bench.folder / name
    rows = re.findall(r"^\| (`.*?) \|", (source / "README.md").read_text(), re.MULTILINE)
    named = {word for row in rows for word in re.findall(r"`(\w+\.\w+)`", row)}
    assert names(copy) - {".gitignore"} == named | {"README.md"}
    for path in copy.iterdir():
        assert path.read_bytes() == (source / path.name).read_bytes()


def test_a_rank_table_is_copied_into_a_new_folder(bench: Bench) -> None:
    """DIR is created with its parents, and the file keeps its name."""
    done = bench.mslaunch("examples", "copy", "rank_tables/v2.0_1x8.json", "a/b")
    assert (done.returncode, done.stdout) == (0, "a/b/v2.0_1x8.json\n")
    assert (bench.folder / "a/b/v2.0_1x8.json").read_text() == (ROOT / "rank_tables/v2.0_1x8.json").read_text()


def test_a_copied_job_can_be_planned(bench: Bench) -> None:
    """The copy of an example is a job as it is."""
    bench.mslaunch("examples", "copy", "data_parallel")
    done = bench.mslaunch("train", "-n", "2", "--config", "data_parallel/config.yaml", "--dry-run")
    assert done.returncode == 0, done.stderr


def test_the_output_of_a_run_is_not_copied(bench: Bench) -> None:
    """Files that a run left in an example's folder stay there."""
    checkout = bench.folder / "checkout"
    for folder in ("mslaunch", "examples", "rank_tables"):
        shutil.copytree(ROOT / folder, checkout / folder, ignore=shutil.ignore_patterns("__pycache__"))
    source = checkout / "examples/functional_trainer"
    (source / "mslaunch-runs/latest").mkdir(parents=True)
    (source / "best.ckpt").touch()
    done = bench.mslaunch("examples", "copy", "functional_trainer", "new", PYTHONPATH=str(checkout))
    assert done.returncode == 0, done.stderr
    assert not names(bench.folder / "new") & {"mslaunch-runs", "best.ckpt"}


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("data_paralel",), 2, "there is no example 'data_paralel'; did you mean 'data_parallel'?"),
        (("rank_tables/v1.0_1x8",), 2, "did you mean 'rank_tables/v1.0_1x8.json'?"),
        (("../mslaunch",), 2, "there is no example '../mslaunch'. `mslaunch examples list` shows them."),
        (("data_parallel", "file.txt"), 2, "file.txt is not a folder, so nothing was copied."),
        (("data_parallel", "/proc"), 3, "/proc/data_parallel: cannot write: "),
        (("data_parallel", "/proc/new"), 3, "/proc/new: cannot write: "),
        (("rank_tables/v1.0_1x8.json", "/proc"), 3, "/proc/v1.0_1x8.json: cannot write: "),
    ],
)
def test_a_wrong_name_or_folder_is_one_line(bench: Bench, args: tuple[str, ...], code: int, message: str) -> None:
    """A wrong request exits with 2, an unwritable folder with 3; both say why in one line and copy nothing."""
    bench.write("file.txt", "mine")
    done = bench.mslaunch("examples", "copy", *args)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1)
    assert message in done.stderr
    assert names(bench.folder) == {"file.txt"}


@pytest.mark.parametrize("name", ["data_parallel", "rank_tables/v1.0_1x8.json"])
@pytest.mark.parametrize("kind", ["file", "folder", "dangling link"])
def test_nothing_is_overwritten(bench: Bench, name: str, kind: str) -> None:
    """If the target exists in any form, it stays as it is and the command exits with 2."""
    target = bench.folder / Path(name).name
    if kind == "file":
        target.write_text("mine")
    elif kind == "folder":
        target.mkdir()
    else:
        target.symlink_to("nowhere")
    done = bench.mslaunch("examples", "copy", name)
    assert (done.returncode, done.stderr) == (
        2,
        f"mslaunch: {target.name} exists, so nothing was copied. Name another folder.\n",
    )
    assert names(bench.folder) == {target.name}
    assert kind != "file" or target.read_text() == "mine"
    assert kind != "folder" or not list(target.iterdir())


@pytest.mark.parametrize("name", ["data_parallel", "rank_tables/v1.2_4x16.json"])
def test_a_copy_that_fails_halfway_is_removed(bench: Bench, name: str) -> None:
    """If the disk takes no more, the command exits with 3 and leaves no part of the copy."""
    limited = f"ulimit -f 1; exec '{MSLAUNCH}' examples copy {name}"
    done = subprocess.run(["sh", "-c", limited], cwd=bench.folder, env=bench.env, capture_output=True, text=True)
    assert done.returncode == 3, done.stderr
    assert "cannot write: File too large" in done.stderr
    assert names(bench.folder) == set()
