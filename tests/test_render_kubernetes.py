"""`mslaunch render --method kubernetes`: a file for kubectl."""

from __future__ import annotations

import stat

import yaml

from tests.conftest import Bench

OPTIONS = ("--method", "kubernetes", "--image", "job:1", "-N", "2", "--workers", "4")


def test_the_file_holds_all_objects_and_is_private(bench: Bench) -> None:
    """The secret is in it, so nobody else may read it."""
    bench.write("train.py", "print('hi')\n")
    done = bench.mslaunch("render", *OPTIONS, "-o", "job.yaml")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "kubectl apply -f job.yaml\n"
    path = bench.folder / "job.yaml"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    kinds = [one["kind"] for one in yaml.safe_load_all(path.read_text())]
    assert kinds == ["ConfigMap", "Secret", "Service", "Job", "Job"]


def test_an_existing_file_is_kept(bench: Bench) -> None:
    bench.write("train.py", "print('hi')\n")
    bench.write("job.yaml", "mine")
    done = bench.mslaunch("render", *OPTIONS, "-o", "job.yaml")
    assert done.returncode == 2
    assert "job.yaml: exists already. Give -o a new file." in done.stderr
    assert (bench.folder / "job.yaml").read_text() == "mine"


def test_an_image_is_needed(bench: Bench) -> None:
    bench.write("train.py", "print('hi')\n")
    done = bench.mslaunch("train", "--transport", "kubernetes", "-N", "2", "--workers", "4")
    assert done.returncode == 2
    assert "which image? Give --image" in done.stderr
