"""A rank's working folder mirrors code/ while the rank runs, and holds what the rank wrote afterwards."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mslaunch.shared import work_folder

MOST = 1000


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose code/ has a file, a folder, and a link to a folder of the project."""
    for name in ("project/data/x.bin", "run/code/train.py", "run/code/lib/a.py", "run/code/lib/sub/b.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "run/code/data").symlink_to(tmp_path / "project/data")
    return tmp_path / "run"


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("copies", [False, True])
def test_what_nothing_has_replaced_is_removed(run: Path, copies: bool) -> None:
    """Links, copies that nobody has changed, and the folders that held them; also a second time."""
    work = Path(work_folder.make(str(run), 0, copies))
    assert tree(work) == ["data", "lib", "lib/a.py", "lib/sub", "lib/sub/b.py", "train.py"]
    assert (work / "train.py").is_symlink() is not copies
    assert list(work_folder.files(str(run), 0, MOST)) == []
    for _ in range(2):
        work_folder.clear(str(run), 0)
        assert tree(work) == []
    assert tree(run / "code") == ["data", "lib", "lib/a.py", "lib/sub", "lib/sub/b.py", "train.py"]


def test_what_the_rank_wrote_stays(run: Path) -> None:
    """Files, empty folders, links of its own, a link that it renamed, and what it put in the place of a link."""
    work = Path(work_folder.make(str(run), 0, copies=False))
    (work / "empty").mkdir()
    (work / "lib/new.txt").write_text("new")
    (work / "lib/a.py").unlink()
    (work / "lib/a.py").write_text("mine")
    (work / "train.py").rename(work / "moved.py")
    (work / "best").symlink_to("lib/new.txt")
    work_folder.clear(str(run), 0)
    assert tree(work) == ["best", "empty", "lib", "lib/a.py", "lib/new.txt", "moved.py"]
    assert dict(work_folder.files(str(run), 0, MOST)) == {"work/lib/a.py": 4, "work/lib/new.txt": 3}


def test_a_folder_of_links_that_took_the_place_of_a_link_is_removed(run: Path, tmp_path: Path) -> None:
    """A rank that wrote into a linked folder has a folder of links to the project; what it wrote there stays."""
    work = Path(work_folder.make(str(run), 0, copies=False))
    (work / "data").unlink()
    (work / "data").mkdir()
    (work / "data/x.bin").symlink_to(tmp_path / "project/data/x.bin")
    (work / "data/new.bin").write_text("new")
    work_folder.clear(str(run), 0)
    assert tree(work) == ["data", "data/new.bin"]


def test_a_further_attempt_gets_its_links_again(run: Path, tmp_path: Path) -> None:
    """What the attempt before wrote stays as it is; nothing is put into what a link of its own leads to."""
    work = Path(work_folder.make(str(run), 0, copies=False))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    work_folder.clear(str(run), 0)
    (work / "train.py").write_text("mine")
    (work / "lib").symlink_to(elsewhere)
    work_folder.make(str(run), 0, copies=False)
    assert (work / "train.py").read_text() == "mine"
    assert os.readlink(work / "data") == str(run / "code/data")  # noqa: PTH115 -- as it was made
    assert tree(elsewhere) == []


def test_folders_with_very_much_in_them_are_one_link(run: Path) -> None:
    """So that the start of a rank does not depend on how many files a project has."""
    for number in range(work_folder.OWN_ENTRIES + 1):
        (run / "code/lib" / str(number)).touch()
    work = Path(work_folder.make(str(run), 0, copies=False))
    assert (work / "lib").is_symlink()
    work_folder.clear_all(str(run))
    assert tree(work) == []
