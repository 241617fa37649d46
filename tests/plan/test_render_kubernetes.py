"""`mslaunch render --method kubernetes`: a file for kubectl."""

from __future__ import annotations

import stat
import sys

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


def test_what_is_printed_says_what_it_leaves_out(bench: Bench) -> None:
    """Secret and code are for a private file, and the jobs do not start without them."""
    bench.write("train.py", "print('hi')\n")
    done = bench.mslaunch("render", *OPTIONS)
    assert done.stdout.startswith("# Secret and ConfigMap are written with -o only.\n")
    assert [one["kind"] for one in yaml.safe_load_all(done.stdout)] == ["Service", "Job", "Job"]


def test_a_dry_run_shows_the_pods_image_namespace_and_python(bench: Bench) -> None:
    """The Python of the machine that submits is not theirs."""
    bench.write("train.py", "print('hi')\n")
    options = ("--transport", "kubernetes", "--image", "job:1", "--namespace", "team", "-N", "2", "--workers", "4")
    python = "launch.kubernetes={python: /opt/py/bin/python3}"
    done = bench.mslaunch("train", *options, "--set", python, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "pods run image job:1 in namespace team\n" in done.stdout
    assert "    /opt/py/bin/python3 /" in done.stdout
    assert sys.executable not in done.stdout
