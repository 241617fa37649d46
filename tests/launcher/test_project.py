"""Which folder is the project's root: the one that is mirrored, so that paths through `..` work."""

from __future__ import annotations

from pathlib import Path

import pytest

from mslaunch.launcher.program import Project, find_project


def make(tmp_path: Path, text: str, script: str = "proj/train.py", mark: str | None = None) -> Project:
    """A job in tmp_path/proj (or the script's folder), beside a folder of data."""
    path = tmp_path / script
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    (tmp_path / "data").mkdir(exist_ok=True)
    if mark:
        (tmp_path / "proj" / mark).mkdir()
    return find_project(path.parent, path, None)


def test_a_job_without_a_mark_is_its_own_project(tmp_path: Path) -> None:
    """Nothing above the job's folder is looked at."""
    found = make(tmp_path, 'print("...", "a..b")\n# from ..models import net\n')
    assert found == Project(tmp_path / "proj", Path(), Path())


@pytest.mark.parametrize("mark", [".git", "pyproject.toml"])
def test_a_job_in_a_part_of_a_repository_is_its_own_project(tmp_path: Path, mark: str) -> None:
    """As long as it names nothing above itself, its ranks' folders mirror nothing else."""
    found = make(tmp_path, "", "proj/tools/train.py", mark)
    assert found == Project(tmp_path / "proj" / "tools", Path(), Path())


def test_sources_of_the_same_repository_are_copied(tmp_path: Path) -> None:
    """A job that names the folder above works in the same place of the mirror."""
    found = make(tmp_path, "import sys; sys.path.append('..')\n", "proj/tools/train.py", ".git")
    assert found == Project(tmp_path / "proj", Path("tools"), Path())


def test_a_repository_of_the_whole_home_holds_no_sources(tmp_path: Path) -> None:
    """Dotfiles are kept in a repository, too: nothing of a home folder is copied but the job."""
    (tmp_path / "proj" / "tools").mkdir(parents=True)
    (tmp_path / "proj" / ".git").mkdir()
    script = tmp_path / "proj" / "tools" / "train.py"
    script.write_text("import sys; sys.path.append('..')\n")
    found = find_project(script.parent, script, str(tmp_path / "proj"))
    assert found == Project(tmp_path / "proj", Path("tools"), Path("tools"))


@pytest.mark.parametrize(
    "text",
    [
        'data = "../data"\n',
        "data_path: ../data\n",
        "python train.py --data ../data\n",
        "import sys; sys.path.append('..')\n",
        "import os; ROOT = os.path.dirname(__file__) + '/..'\n",
        "from pathlib import Path; ROOT = Path(__file__).parent.parent\n",
        "import os; ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))\n",
    ],
)
def test_a_path_above_the_job_moves_the_root_up(tmp_path: Path, text: str) -> None:
    """Sources are still copied in the job's folder only; what lies beside it is linked."""
    found = make(tmp_path, text)
    assert found == Project(tmp_path, Path("proj"), Path("proj"))


def test_a_path_that_is_not_there_moves_nothing(tmp_path: Path) -> None:
    """An example in a comment is not a reason to nest the ranks' folders."""
    assert make(tmp_path, "# for example ../nowhere/data\n").root == tmp_path / "proj"


def test_a_path_that_stays_in_the_project_moves_nothing(tmp_path: Path) -> None:
    """`..` in a source of a subfolder is the folder above that source."""
    (tmp_path / "proj").mkdir()
    (tmp_path / "proj" / "train.py").touch()
    (tmp_path / "proj" / "tools").mkdir()
    (tmp_path / "proj" / "tools" / "more.py").write_text("import sys; sys.path.append('..'); x = '../train.py'\n")
    assert find_project(tmp_path / "proj", tmp_path / "proj" / "train.py", None).root == tmp_path / "proj"
