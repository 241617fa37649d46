"""A wheel built from the project and installed elsewhere works without the checkout."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The project installed from its wheel into a folder of its own."""
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
        str(ROOT),
    ]
    subprocess.run(build, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path / "site")
    return tmp_path / "site"


def test_an_installed_wheel_finds_its_templates(installed: Path, tmp_path: Path) -> None:
    """`mslaunch render` prints a script from the packaged template."""
    (tmp_path / "train.py").write_text("")
    code = (
        "import sys; from mslaunch.cli import main; import mslaunch; print(mslaunch.__file__, file=sys.stderr); main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "render", "--method", "rank-table", "-n", "2", "train.py"],
        env={"PYTHONPATH": str(installed), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert str(installed) in done.stderr
    assert "devices=(0 1)" in done.stdout
    assert (installed / "mslaunch" / "templates" / "msrun.sh.j2").is_file()
