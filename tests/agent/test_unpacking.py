"""A run's files on hosts that do not share the launcher's folder, but may share one with each other."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from mslaunch.agent.file_pieces import unpack as lay_out
from mslaunch.launcher.attempt.file_transfer import pack


def unpack(source: Path, target: Path) -> None:
    """Have one agent lay out what a launcher packs."""
    lay_out(io.BytesIO(pack(source, ("code", "mslaunch.zip"))), str(target))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder with a file, a link and a program."""
    folder = tmp_path / "run"
    (folder / "code" / "src").mkdir(parents=True)
    (folder / "code" / "src" / "net.py").write_text("A = 1\n")
    (folder / "code" / "data").symlink_to("/data")
    (folder / "code" / "go.sh").write_text("exit\n")
    (folder / "code" / "go.sh").chmod(0o700)
    (folder / "mslaunch.zip").write_bytes(b"zip")
    return folder


def test_files_links_and_modes_arrive(run: Path, tmp_path: Path) -> None:
    """What was packed is there, and nothing else."""
    there = tmp_path / "there"
    unpack(run, there)
    assert (there / "code" / "src" / "net.py").read_text() == "A = 1\n"
    assert (there / "code" / "data").readlink() == Path("/data")
    assert (there / "code" / "go.sh").stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in there.rglob("*")) == ["code", "data", "go.sh", "mslaunch.zip", "net.py", "src"]


def test_the_same_content_is_not_written_twice(run: Path, tmp_path: Path) -> None:
    """A second host that shares the folder leaves alone what the first one has written."""
    there = tmp_path / "there"
    unpack(run, there)
    before = {path: path.lstat().st_ino for path in there.rglob("*")}
    unpack(run, there)
    assert {path: path.lstat().st_ino for path in there.rglob("*")} == before


def test_whoever_reads_a_file_sees_all_of_it(run: Path, tmp_path: Path) -> None:
    """Other content replaces a file as a whole: a rank that has the old one open reads that to its end."""
    there = tmp_path / "there"
    unpack(run, there)
    opened = os.open(there / "mslaunch.zip", os.O_RDONLY)
    (run / "mslaunch.zip").write_bytes(b"another zip")
    unpack(run, there)
    assert os.read(opened, 100) == b"zip"
    os.close(opened)
    assert (there / "mslaunch.zip").read_bytes() == b"another zip"
