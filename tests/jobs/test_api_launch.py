"""mslaunch.launch(): a function on every rank, its results and its errors, with real jobs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import mslaunch
from mslaunch.job import import_path
from mslaunch.run.run import JobFailed
from tests.beds import ssh_bed
from tests.conftest import Bench


@pytest.fixture(autouse=True)
def here(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A folder to launch from that is the current one."""
    pytest.importorskip("cloudpickle")
    monkeypatch.chdir(bench.folder)
    return bench


def rank() -> int:
    return int(os.environ["RANK_ID"])


class Diverged(ValueError):
    """An exception of the caller's own."""


def test_results_come_by_rank_with_arguments() -> None:
    """Positional and named arguments reach the function on every rank."""

    def train(rate: float, *, scale: int) -> tuple[int, float]:
        return int(os.environ["RANK_ID"]), rate * scale

    assert mslaunch.launch(train, 0.5, scale=4, workers=3) == [(0, 2.0), (1, 2.0), (2, 2.0)]


def test_lambdas_and_closures_are_sent(here: Bench) -> None:
    """Nothing has to be importable; what a function closes over goes with it."""
    offset = {"by": 10}
    assert mslaunch.launch(lambda: offset["by"] + 1) == [11]
    assert [run.state for run in mslaunch.runs(here.runs)] == ["succeeded"]


def test_a_function_of_a_module_is_imported_by_the_ranks() -> None:
    """What the caller can import, the ranks can."""
    assert mslaunch.launch(rank, workers=2) == [0, 1]


def test_a_function_of_the_program_itself_is_sent(here: Bench) -> None:
    """A script that launches its own function needs no guard, and is not run again by the ranks."""
    here.write("helper.py", "WORD = 'helped'\n")
    path = here.write(
        "program.py",
        "import os, mslaunch, helper\nprint('once')\n"
        "def train():\n    return helper.WORD, os.environ['RANK_ID']\n"
        "print(mslaunch.launch(train, workers=2))\n",
    )
    done = subprocess.run([sys.executable, str(path)], env=here.env, capture_output=True, text=True)
    assert done.stdout == "once\n[('helped', '0'), ('helped', '1')]\n", done.stderr


def test_a_module_of_the_caller_may_import_the_api(here: Bench) -> None:
    """In a rank, too, where mslaunch comes from the run's folder."""
    here.write("lib.py", "from mslaunch import Job, launch\n\ndef train():\n    return Job.__name__\n")
    path = here.write("program.py", "import lib\nprint(lib.launch(lib.train))\n")
    done = subprocess.run([sys.executable, str(path)], env=here.env, capture_output=True, text=True)
    assert done.stdout == "['Job']\n", done.stderr


def test_settings_are_those_of_the_job(here: Bench) -> None:
    """Any key of launch: can be given, variables included."""

    def where() -> tuple[str, str]:
        return os.environ["WORD"], str(Path.cwd())

    found = mslaunch.launch(where, settings={"env": {"WORD": "yes"}, "cwd": "submit", "run_id": "mine"})
    assert found == [("yes", str(here.folder))]
    assert mslaunch.find_run("mine").state == "succeeded"


def test_an_exception_of_a_rank_is_raised_here() -> None:
    """With its own type; its cause is JobFailed, which shows the rank's traceback."""

    def train() -> None:
        if rank() == 1:
            raise Diverged("loss is nan")

    with pytest.raises(Diverged, match="loss is nan") as caught:
        mslaunch.launch(train, workers=2)
    cause = caught.value.__cause__
    assert isinstance(cause, JobFailed)
    assert cause.verdict is not None
    assert cause.verdict.rank == 1
    assert 'raise Diverged("loss is nan")' in str(cause)


def test_an_exception_of_a_local_class_keeps_its_identity() -> None:
    """`except Local` catches it."""

    class Local(Exception):
        pass

    def train() -> None:
        raise Local

    with pytest.raises(Local):
        mslaunch.launch(train)


def test_an_exception_that_cannot_be_pickled_is_told_by_job_failed() -> None:
    """Its words are in the verdict."""

    def train() -> None:
        error = ValueError("with a lock")
        error.lock = threading.Lock()  # type: ignore[attr-defined]
        raise error

    with pytest.raises(JobFailed, match="ValueError: with a lock"):
        mslaunch.launch(train)


def test_a_result_that_cannot_be_pickled_is_named() -> None:
    """Rank and reason; the job itself has succeeded."""
    with pytest.raises(mslaunch.MslaunchError, match=r"rank 0: what it returned cannot be pickled \(TypeError"):
        mslaunch.launch(threading.Lock)


def test_a_result_that_cannot_be_read_here_is_named() -> None:
    """For example of a module that only the ranks have."""

    def train() -> object:
        import sys
        import types

        module = types.ModuleType("only_there")
        exec("class Thing: pass", module.__dict__)
        module.Thing.__module__ = "only_there"
        module.__file__ = "only_there.py"
        sys.modules["only_there"] = module
        return module.Thing()

    with pytest.raises(mslaunch.MslaunchError, match=r"cannot be read here \(ModuleNotFoundError"):
        mslaunch.launch(train)


def test_an_argument_that_cannot_be_pickled_is_refused_before_the_start(here: Bench) -> None:
    """Nothing is started."""
    with pytest.raises(mslaunch.MslaunchError, match="cannot be pickled"):
        mslaunch.launch(len, threading.Lock())
    assert not here.runs.exists()


def test_sys_exit_in_a_rank_does_not_end_the_caller() -> None:
    """A code other than 0 fails the job; sys.exit() alone ends a rank well, which returns None."""
    with pytest.raises(JobFailed) as caught:
        mslaunch.launch(sys.exit, 3)
    assert caught.value.exit_code == 3
    assert mslaunch.launch(sys.exit) == [None]


def test_a_restarted_call_returns_the_last_attempt(here: Bench) -> None:
    """What an earlier attempt raised is forgotten."""

    def train(marker: str) -> str:
        if not Path(marker).exists():
            Path(marker).touch()
            raise Diverged("once")
        return "again"

    marker = str(here.folder / "marker")
    assert mslaunch.launch(train, marker, settings={"max_restarts": 1, "backoff": 0.1}) == ["again"]


def other_python() -> str:
    """A Python of another minor version, from PATH or pyenv."""
    for minor in (10, 12, 9, 11):
        choices = Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3.{minor}")
        for path in (*choices, Path(f"/usr/bin/python3.{minor}"), Path(f"/usr/local/bin/python3.{minor}")):
            if sys.version_info[1] != minor and path.exists():
                return str(path)
    pytest.skip("no other Python on this machine")


def test_another_python_version_is_named() -> None:
    """A pickled function needs the same minor version; both are said."""
    with pytest.raises(JobFailed, match=f"and the caller Python 3.{sys.version_info[1]}: .*equal versions"):
        mslaunch.launch(os.getpid, settings={"python": other_python()})


def test_without_cloudpickle_the_fix_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that installs it."""
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(mslaunch.MslaunchError, match="Run pip install cloudpickle"):
        mslaunch.launch(os.getpid)


def test_the_import_path_has_the_callers_folders_but_not_pythons_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A project may lie below sys.prefix; site-packages and the standard library belong to each Python."""
    library, packages = str(Path(os.__file__).parent), next(p for p in sys.path if p.endswith("site-packages"))
    project = f"{sys.prefix}/src/project"
    monkeypatch.setattr(sys, "path", ["", library, f"{library}/lib-dynload", packages, project])
    assert import_path({"PYTHONPATH": "/more"}).split(":") == [str(Path.cwd()), project, "/more"]


def test_results_come_from_hosts_without_a_shared_folder(far: Bench, hosts: ssh_bed.Bed) -> None:
    """The function is sent, the results are collected."""
    with ssh_bed.apart(hosts, "own8", far.folder):
        code = (
            "import os, mslaunch\n"
            "def where():\n    return os.environ['RANK_ID'], os.environ['MSLAUNCH_HOST']\n"
            "print(mslaunch.launch(where, workers=2, settings={'hosts': 'n1:1,own8:1'}))\n"
        )
        far.write("program.py", code)
        done = subprocess.run(
            [sys.executable, "program.py"], cwd=far.folder, env=far.env, capture_output=True, text=True
        )
    assert done.stdout == "[('0', 'n1'), ('1', 'own8')]\n", done.stderr
