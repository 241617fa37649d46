"""Every way to name a program: what works with plain Python, msrun, torchrun or in a shell works as a rank."""

from __future__ import annotations

import json
import sys

import pytest

from tests.conftest import Bench

SHOW = "import json, sys\nprint(json.dumps([sys.argv[1:], sys.flags.optimize]))\n"
MODULE = (
    "import json, sys\nfrom .net import WIDTH\n"
    "print(json.dumps([sys.argv[1:], __spec__.name, __package__, WIDTH, sys.path[0], sys.argv[0]]))\n"
)


@pytest.fixture
def job(bench: Bench) -> Bench:
    """A folder with a script, a package and a shell script."""
    bench.write("train.py", SHOW)
    bench.write("pkg/__init__.py", "")
    bench.write("pkg/net.py", "WIDTH = 8\n")
    bench.write("pkg/train.py", MODULE)
    bench.write("run.sh", '#!/bin/sh\necho "$RANK_ID with $*"\n').chmod(0o755)
    return bench


def ran(bench: Bench, *args: str, **env: str) -> str:
    """Launch two ranks and return what rank 1 printed."""
    done = bench.mslaunch("train", "-n", "2", *args, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    return bench.log(1)


@pytest.mark.parametrize(
    ("words", "args", "optimize"),
    [
        (("train.py", "--lr", "0.3"), ["--lr", "0.3"], 0),
        (("train.py", "--", "--lr", "0.3"), ["--lr", "0.3"], 0),
        (("train.py", "--tail", "none", "--", "--lr", "0.3"), ["--lr", "0.3"], 0),
        (("train.py", "--lr", "0.3", "--", "x"), ["--lr", "0.3", "--", "x"], 0),
        (("--", "--lr", "0.3"), ["--lr", "0.3"], 0),
        (("--", "train.py", "x"), ["x"], 0),
        (("--script", "train.py", "--", "x"), ["x"], 0),
        (("python", "train.py", "--lr", "0.3"), ["--lr", "0.3"], 0),
        (("python3", "-u", "-O", "-W", "ignore", "train.py", "a b"), ["a b"], 1),
        ((f"python{sys.version_info[0]}.{sys.version_info[1]}", "train.py"), [], 0),
        ((sys.executable, "-OO", "train.py"), [], 2),
        (("python", "-I", "train.py", "x"), ["x"], 0),
    ],
)
def test_a_script_is_run_however_it_is_typed(
    job: Bench, words: tuple[str, ...], args: list[str], optimize: int
) -> None:
    """As under msrun and torchrun, what follows the script is the script's; a `--` between them is dropped."""
    assert json.loads(ran(job, *words)) == [args, optimize]


@pytest.mark.parametrize("words", [("-m", "pkg.train", "--lr", "0.1"), ("python", "-m", "pkg.train", "--lr", "0.1")])
def test_a_module_is_run_as_python_m_runs_it(job: Bench, words: tuple[str, ...]) -> None:
    """Relative imports work, __spec__ and __package__ are right, and the snapshot is first on the path."""
    code = str((job.folder / "mslaunch-runs" / "r1" / "code").absolute())
    shown = json.loads(ran(job, "--run-id", "r1", *words))
    assert shown == [["--lr", "0.1"], "pkg.train", "pkg", 8, code, f"{code}/pkg/train.py"]


@pytest.mark.usefixtures("needs_mpirun")
@pytest.mark.parametrize("method", ["msrun", "mpirun", "rank-table"])
def test_every_method_runs_a_module(job: Bench, method: str) -> None:
    """The rendered scripts start the same program."""
    assert json.loads(ran(job, "--method", method, "-m", "pkg.train", "x"))[:4] == [["x"], "pkg.train", "pkg", 8]


def test_a_module_may_be_a_package_or_installed(job: Bench) -> None:
    """The __main__ of a package is run; a module on PYTHONPATH is found though it is not in the job's folder."""
    job.write("pkg/__main__.py", "print(__spec__.name)\n")
    assert ran(job, "-m", "pkg") == "pkg.__main__\n"
    other = job.folder.parent / "other"
    other.mkdir()
    (other / "tool.py").write_text("print(__spec__.name, __file__)\n")
    assert ran(job, "-m", "tool", PYTHONPATH="../other") == f"tool {other / 'tool.py'}\n"


def test_an_exception_of_a_module_is_captured_with_its_own_lines(job: Bench) -> None:
    """error.json has the traceback from the module on."""
    job.write("pkg/bad.py", "def step():\n    return 1 / 0\n\nstep()\n")
    assert job.mslaunch("train", "-n", "1", "-m", "pkg.bad").returncode == 1
    error = json.loads((job.latest / "rank_0" / "error.json").read_text())
    frames = [line.split("/")[-1] for line in error["traceback"].splitlines() if line.strip().startswith("File")]
    assert frames == ['bad.py", line 4, in <module>', 'bad.py", line 2, in step']


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("bash", "run.sh", "1", "2"), "1 with 1 2\n"),
        (("./run.sh", "a", "b c"), "1 with a b c\n"),
        (("run.sh", "--", "--lr", "1"), "1 with --lr 1\n"),
        (("env", "-u", "HOME", "sh", "run.sh"), "1 with \n"),
        (("python", "-c", "print(5)"), "5\n"),
    ],
)
def test_any_executable_is_run(job: Bench, words: tuple[str, ...], shown: str) -> None:
    """By its path, or by its name on PATH."""
    assert ran(job, *words) == shown


def test_a_console_script_beside_the_jobs_python_is_found(job: Bench) -> None:
    """An environment that is not activated has its programs all the same."""
    job.write("tests/test_it.py", "def test_it(): pass\n")
    assert "1 passed" in ran(job, "pytest", "-q", "tests", PATH="/usr/bin:/bin")


@pytest.mark.parametrize(
    ("launch", "shown"),
    [
        ("module: pkg.train", "pkg.train"),
        ("command: [bash, run.sh]", "1 with"),
        ("command: python -m pkg.train", "pkg.train"),
        ("script: run.sh", "1 with"),
    ],
)
def test_the_config_names_any_program(job: Bench, launch: str, shown: str) -> None:
    """launch.module, launch.command as a list or a line, and launch.script."""
    job.write("cfg.yaml", f"launch:\n  {launch}\n  config_arg: null\n")
    assert shown in ran(job, "--config", "cfg.yaml")


def test_what_is_typed_outweighs_the_config_whichever_way_it_is_named(job: Bench) -> None:
    """A module on the command line replaces the script of the config, and a script its module."""
    job.write("cfg.yaml", "launch:\n  script: train.py\n  config_arg: null\n")
    assert "pkg.train" in ran(job, "--config", "cfg.yaml", "-m", "pkg.train")
    assert ran(job, "--config", "cfg.yaml", "bash", "run.sh", "x") == "1 with x\n"
    job.write("cfg.yaml", "launch:\n  module: pkg.train\n  config_arg: null\n")
    assert json.loads(ran(job, "--config", "cfg.yaml", "train.py", "x")) == [["x"], 0]


def test_an_option_of_ours_after_the_script_is_the_scripts_and_said(job: Bench) -> None:
    """One line says where it belongs; a script that knows the option itself is not remarked on."""
    done = job.mslaunch("train", "-n", "1", "train.py", "--workers", "2")
    assert json.loads(job.log(0))[0] == ["--workers", "2"]
    assert "--workers 2 after the script is the script's; put mslaunch's options before it" in done.stdout
    job.write("own.py", "import argparse\np = argparse.ArgumentParser()\np.add_argument('--workers')\np.parse_args()\n")
    done = job.mslaunch("train", "-n", "1", "own.py", "--workers", "2")
    assert done.returncode == 0
    assert "after the script" not in done.stdout


def test_a_dry_run_that_is_asked_for_after_the_script_starts_nothing(job: Bench) -> None:
    """The script does not know the option, and a job would start that was not to start."""
    done = job.mslaunch("train", "-n", "1", "train.py", "--dry-run")
    assert done.returncode == 2
    assert "--dry-run after the script is the script's. Put it before train.py." in done.stderr
    assert not job.runs.exists()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("trian.py",), 2, "trian.py: no such script (--script); did you mean 'train.py'?"),
        (("./run.hs",), 2, "./run.hs: no such script (the command line); did you mean 'run.sh'?"),
        (("bahs", "run.sh"), 2, "bahs: no such script or program (the command line); did you mean 'bash'?"),
        (("--", "resnet50"), 2, "resnet50: no such script or program"),
        (("-m", "pkg.trian"), 2, "has no module 'pkg.trian'; did you mean 'pkg.train'?"),
        (("-m", "pgk.train"), 2, "; did you mean 'pkg.train'?"),
        (("-m", "pkg/train.py"), 2, "'pkg/train.py' is not the name of a module. Leave -m out to run the file"),
        (("-m",), 2, "-m: which module?"),
        (("pkg/",), 2, "pkg/: no such script"),
        (("python", "pkg"), 2, "pkg is a folder, not a script. Did you mean -m pkg?"),
        (("python9.9", "train.py"), 3, "python9.9: no such Python (the command line)"),
        (("cfg.yaml",), 2, "cfg.yaml is no script. Did you mean --config cfg.yaml?"),
        (("--script", "train.py", "run.sh"), 2, "--script train.py and run.sh both name the program"),
        (("--config", "two.yaml"), 2, "two.yaml:2 and two.yaml:3 both name the program. Keep one."),
        (("--config", "none.yaml"), 2, "none.yaml:2: command: "),
    ],
)
def test_a_program_that_is_not_there_is_told_with_the_nearest(
    job: Bench, words: tuple[str, ...], code: int, said: str
) -> None:
    """One sentence, before anything starts."""
    job.write("two.yaml", "launch:\n  script: train.py\n  module: pkg.train\n")
    job.write("none.yaml", "launch:\n  command: []\n")
    job.write("cfg.yaml", "")
    done = job.mslaunch("train", "-n", "1", *words)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("mslaunch:")]) == 1
    assert not job.runs.exists()


def test_the_program_is_shown_in_the_dry_run_and_in_the_list_of_runs(job: Bench) -> None:
    """Its kind, what it is and its arguments."""
    shown = job.mslaunch("train", "-n", "1", "--dry-run", "-m", "pkg.train", "a b").stdout
    assert f"program  module pkg.train 'a b', in {job.folder}\n" in shown
    ran(job, "-m", "pkg.train")
    assert "-m pkg.train" in job.mslaunch("ps").stdout
    assert job.plan()["program"]["kind"] == "module"


def test_a_rendered_script_runs_a_module(job: Bench) -> None:
    """render takes every program that train takes."""
    done = job.mslaunch("render", "--method", "rank-table", "-n", "2", "-m", "pkg.train", "x")
    assert '"$run/mslaunch_rank.py" -m pkg.train x &' in done.stdout


def test_a_sweep_of_a_module_can_be_resumed(job: Bench) -> None:
    """What was typed is in sweep.json."""
    job.write("cfg.yaml", "lr: 0\nlaunch:\n  config_arg: null\n")
    args = ("sweep", "--config", "cfg.yaml", "--set", "lr=1,2", "--run-id", "s1", "-m", "pkg.train", "x")
    done = job.mslaunch(*args)
    assert done.returncode == 0, done.stderr
    assert (job.runs / "s1" / "1" / "rank_0" / "log.txt").read_text().startswith('[["x"], "pkg.train"')
    assert job.mslaunch("sweep", "--resume", "s1").returncode == 0


@pytest.mark.parametrize(
    ("words", "shown"), [(("-m", "pkg.tool", "x"), "pkg.tool ['x']\n"), (("bash", "go.sh"), "1\n")]
)
def test_other_hosts_run_any_program(far: Bench, words: tuple[str, ...], shown: str) -> None:
    """The module comes from the snapshot, the executable from the host's PATH."""
    far.write("pkg/tool.py", "import sys\nprint(__spec__.name, sys.argv[1:])\n")
    far.write("go.sh", "echo $RANK\n")
    done = far.mslaunch("train", "--hosts", "n1:1,n2:1", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert far.log(1) == shown
