"""The sdist and the wheel built from it are complete, and an installed wheel works without the checkout."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import mslaunch
from tests.conftest import ROOT, Bench

MINORS = [10, 11, 12]


@dataclass(frozen=True)
class Installed:
    """The wheel in an environment of its own."""

    sdist: Path
    wheel: Path
    environment: Path

    @property
    def package(self) -> Path:
        return next(self.environment.glob("lib/python3*/site-packages/mslaunch"))

    @property
    def metadata(self) -> Message:
        with zipfile.ZipFile(self.wheel) as wheel:
            name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
            return Parser().parsestr(wheel.read(name).decode())

    def run(self, folder: Path, program: str, *args: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, with none of our own variables."""
        return subprocess.run(
            [self.environment / "bin" / program, *args],
            env={"PATH": "/usr/bin:/bin", "HOME": str(folder)},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The sdist, the wheel built from that sdist, and the wheel installed into a new environment.

    Nothing is downloaded: a .pth file links the dependencies in from the environment that runs the tests. Python does
    not read the .pth files of a linked folder, so an editable mslaunch in there stays out.
    """
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT], check=True, capture_output=True
    )
    sdist, wheel = next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))
    environment = folder / "venv"
    venv.create(environment, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python")]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--quiet", wheel], check=True, capture_output=True)
    linked = [path for path in sys.path if path.endswith("site-packages")]
    site = next(environment.glob("lib/python3*/site-packages"))
    (site / "dependencies.pth").write_text("\n".join(linked) + "\n")
    return Installed(sdist, wheel, environment)


def test_the_version_comes_from_the_package(installed: Installed, tmp_path: Path) -> None:
    """Wheel, sdist, command and change log have the version of mslaunch/__init__.py; pyproject.toml has none."""
    version = mslaunch.__version__
    assert installed.metadata["Version"] == version
    assert installed.sdist.name == f"mslaunch-{version}.tar.gz"
    assert installed.run(tmp_path, "mslaunch", "--version").stdout == f"mslaunch {version}\n"
    assert f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text()
    assert not re.search(r"^version\b", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)


def test_metadata_and_readme_name_the_same_pythons(installed: Installed) -> None:
    """Classifiers, Requires-Python and README agree on the versions of Python."""
    metadata = installed.metadata
    classifiers = metadata.get_all("Classifier", [])
    found = [match[1] for text in classifiers if (match := re.search(r":: Python :: 3\.(\d+)$", text))]
    assert [int(minor) for minor in found] == MINORS
    assert set(metadata["Requires-Python"].split(",")) == {f">=3.{MINORS[0]}", f"<3.{MINORS[-1] + 1}"}
    assert f"Python 3.{MINORS[0]} to 3.{MINORS[-1]}" in (ROOT / "README.md").read_text()


def test_the_wheel_has_types_templates_examples_and_rank_tables(installed: Installed) -> None:
    """Everything that a user needs is in the installed package, and nothing of the project's own tools."""
    package = installed.package
    assert (package / "py.typed").is_file()
    for pattern in ("templates/*.j2", "examples/*/*.py", "examples/*/*.yaml", "examples/*/*.md", "rank_tables/*.json"):
        expected = {path.relative_to(ROOT) for path in ROOT.glob(pattern)}
        assert {path.relative_to(package) for path in package.glob(pattern)} == expected != set()
    assert {path.name for path in package.glob("examples/*/*") if path.is_dir()} <= {"__pycache__"}
    assert not (package / "examples" / "ruff.toml").exists()
    assert not (package.parent / "tests").exists()


def test_the_sdist_has_what_make_needs(installed: Installed) -> None:
    """From an unpacked sdist, `make demo` and `make test` find their files."""
    with tarfile.open(installed.sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"Makefile", "README.md", "LICENSE", "CHANGELOG.md", "tests/project/test_wheel.py", "docs/cli.md"} <= inside
    assert {"templates/msrun.sh.j2", "examples/data_parallel/config.yaml", "rank_tables/v1.0_1x8.json"} <= inside


def test_python_dash_m_works_like_the_command(installed: Installed, tmp_path: Path) -> None:
    """`python -m mslaunch` prints the same help, and exits with the same code after an error."""
    for args in (["--help"], ["trian"]):
        module, command = (
            installed.run(tmp_path, *words, *args) for words in (("python", "-m", "mslaunch"), ("mslaunch",))
        )
        assert (module.returncode, module.stdout, module.stderr) == (command.returncode, command.stdout, command.stderr)
    assert "Usage: mslaunch VERB" in installed.run(tmp_path, "python", "-m", "mslaunch", "--help").stdout


def test_an_installed_wheel_is_not_the_checkout(installed: Installed, tmp_path: Path) -> None:
    """What these tests try is the wheel's own package."""
    done = installed.run(tmp_path, "python", "-c", "import mslaunch; print(mslaunch.__file__)")
    assert done.stdout == f"{installed.package / '__init__.py'}\n"


def test_an_installed_wheel_finds_its_templates(installed: Installed, tmp_path: Path) -> None:
    """`mslaunch render` prints a script from the packaged template."""
    (tmp_path / "train.py").write_text("")
    done = installed.run(tmp_path, "mslaunch", "render", "--method", "rank-table", "-n", "2", "train.py")
    assert done.returncode == 0, done.stderr
    assert "devices=(0 1)" in done.stdout


def test_an_installed_wheel_lists_and_copies_its_examples(installed: Installed, tmp_path: Path) -> None:
    """`mslaunch examples` lists from the wheel what the checkout lists, and copies it without compiled files."""
    listed = installed.run(tmp_path, "mslaunch", "examples", "list")
    checkout = subprocess.run(
        [sys.executable, "-m", "mslaunch", "examples", "list"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert listed.stdout == checkout.stdout
    for name in ("sharded_inference", "rank_tables/v1.0_2x8.json"):
        done = installed.run(tmp_path, "mslaunch", "examples", "copy", name, "here")
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "here/v1.0_2x8.json").read_text() == (ROOT / "rank_tables/v1.0_2x8.json").read_text()
    copied = {path.name for path in (tmp_path / "here/sharded_inference").iterdir()}
    assert {"train.py", "config.yaml", ".gitignore"} <= copied
    assert "__pycache__" not in copied


def test_an_installed_wheel_runs_a_job(installed: Installed, bench: Bench) -> None:
    """`mslaunch train -n 2` starts two ranks of a script and ends with 0."""
    bench.write("script.py", "import os\nprint('rank', os.environ['RANK_ID'])\n")
    done = installed.run(bench.folder, "mslaunch", "train", "-n", "2", "script.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [bench.log(0), bench.log(1)] == ["rank 0\n", "rank 1\n"]
