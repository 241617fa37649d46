"""code/ mirrors the job's folder: small files copied, everything else linked."""

from __future__ import annotations

import threading
from pathlib import Path

from mslaunch.launcher.snapshot import FILE_LIMIT, mirror
from tests.beds.other_user import MSLAUNCH, NOBODY, needs_root, run_as


def test_small_files_are_copied_and_the_rest_is_linked(tmp_path: Path) -> None:
    """Editing a source does not reach the copy; what is linked is noted."""
    job, runs = tmp_path / "job", tmp_path / "job" / "mslaunch-runs"
    for folder in (job / "src" / "net", job / "data", job / ".git", job / "src" / "weights", runs):
        folder.mkdir(parents=True)
    (job / "train.py").write_text("a")
    (job / "src" / "net" / "model.py").write_text("b")
    (job / "src" / "weights" / "w.bin").write_bytes(b"\0\1")
    (job / "data" / "x.rec").write_bytes(b"\0")
    (job / "big.txt").write_text("x" * (FILE_LIMIT + 1))
    (job / "blob").write_bytes(b"\0\0")
    (job / "broken").symlink_to("nowhere")
    code = runs / "r1" / "code"
    code.parent.mkdir()
    made = mirror(job, code, runs.resolve())
    assert sorted(path.name for path in code.iterdir()) == [".git", "big.txt", "blob", "data", "src", "train.py"]
    assert made.links == (".git", "big.txt")
    assert sorted(made.copies) == ["blob", "data/x.rec", "src/net/model.py", "src/weights/w.bin", "train.py"]
    assert not any((code / name).is_symlink() for name in made.copies)
    (job / "src" / "net" / "model.py").write_text("changed")
    assert (code / "src" / "net" / "model.py").read_text() == "b"


def test_a_folder_of_many_files_is_linked_not_copied(tmp_path: Path) -> None:
    """A virtual environment or a data set of small text files costs nothing."""
    job = tmp_path / "job"
    for name in ("env", "many"):
        (job / name).mkdir(parents=True)
        (job / name / "x.py").write_text("")
    (job / "env" / "pyvenv.cfg").write_text("")
    for i in range(2100):
        (job / "many" / f"{i}.txt").touch()
    mirror(job, tmp_path / "code", tmp_path / "runs")
    assert (tmp_path / "code" / "env").is_symlink()
    assert (tmp_path / "code" / "many").is_symlink()


def test_an_executable_script_stays_executable(tmp_path: Path) -> None:
    """A job may be a shell script."""
    job = tmp_path / "job"
    job.mkdir()
    (job / "run.sh").write_text("#!/bin/sh\n")
    (job / "run.sh").chmod(0o755)
    mirror(job, tmp_path / "code", tmp_path / "runs")
    assert (tmp_path / "code" / "run.sh").stat().st_mode & 0o111


def test_files_that_vanish_meanwhile_end_no_mirror(tmp_path: Path) -> None:
    """Another program deletes and writes files in the job's folder while it is copied."""
    job = tmp_path / "job"
    job.mkdir()
    (job / "train.py").write_text("")
    files = [job / f"{number}.txt" for number in range(100)]
    enough = threading.Event()

    def change() -> None:
        while not enough.is_set():
            for path in files:
                path.write_text("x")
            for path in files:
                path.unlink()

    changing = threading.Thread(target=change)
    changing.start()
    try:
        for number in range(30):
            mirror(job, tmp_path / f"code{number}", tmp_path / "runs")
            assert (tmp_path / f"code{number}" / "train.py").is_file()
    finally:
        enough.set()
        changing.join()


@needs_root
def test_entries_that_cannot_be_read_are_left_out_and_named(shared_folder: Path) -> None:
    """A folder such as lost+found, a link into a closed folder: the launch goes on, and one line names them."""
    (shared_folder / "lost+found").mkdir(mode=0o700)
    (shared_folder / "lost+found" / "inside").mkdir()
    job = shared_folder / "job"
    (job / "src").mkdir(parents=True)
    (job / "train.py").write_text("print('trained')\n")
    (job / "src" / "model.py").write_text("")
    (job / "src" / "link").symlink_to(shared_folder / "lost+found" / "inside" / "x")
    (job / "lost+found").mkdir(mode=0o700)
    for path in (job, job / "src"):
        path.chmod(0o777)
    done = run_as([MSLAUNCH, "train", "-n", "1"], job)
    assert done.returncode == 0, done.stderr
    assert "trained" in done.stdout
    assert done.stderr == ("mslaunch: left out of the run's code, since they cannot be read: lost+found, src/link\n")
    assert (job / "mslaunch-runs" / "latest" / "run.json").stat().st_uid == NOBODY
