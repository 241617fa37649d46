"""What works with plain Python works as a rank, and what a script does to itself does not blind the launcher."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.conftest import MSLAUNCH, Bench


def run(bench: Bench, body: str, *args: str, **env: str) -> str:
    bench.write("train.py", body)
    done = bench.mslaunch("train", "-n", "1", *args, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_forked_child_that_fails_is_the_scripts_own_affair(bench: Bench) -> None:
    """Only the rank itself speaks for the rank."""
    body = (
        "import os\npid = os.fork()\nif pid == 0: raise ValueError('in a child')\nos.waitpid(pid, 0)\nprint('fine')\n"
    )
    assert "[rank 0] fine" in run(bench, body)


@pytest.mark.parametrize(
    "body",
    [
        "import os\nos.environ.clear()\nraise ValueError('the real reason')\n",
        "import os\nos.environ['RANK_ID'] = '0'\nraise ValueError('the real reason')\n",
        "import json\nraise ValueError('the real reason')\n",
        "import traceback\nraise ValueError('the real reason')\n",
        "import signal, subprocess\nraise ValueError('the real reason')\n",
    ],
)
def test_the_reason_is_found_whatever_the_script_has_changed(bench: Bench, body: str) -> None:
    """An emptied environment, a changed rank, modules that shadow the standard library."""
    for name in ("json", "traceback", "signal", "subprocess"):
        bench.write(f"{name}.py", "")
    bench.write("train.py", f"import os, time\nif os.environ['RANK_ID'] == '0': time.sleep(60)\n{body}")
    done = bench.mslaunch("train", "-n", "2")
    assert done.returncode == 1
    verdict = bench.record()["verdict"]
    assert verdict["rank"] == 1
    assert verdict["summary"].startswith("ValueError")
    assert "ValueError: the real reason" in bench.log(1)


def test_the_scripts_module_has_what_pythons_has(bench: Bench) -> None:
    """Annotations, loader, source and pickling of its classes."""
    body = (
        "import inspect, pickle, sys\nfrom dataclasses import dataclass\nx: int = 3\n@dataclass\nclass P:\n    a: int\n"
        "assert __annotations__ == {'x': int} and __loader__ is not None and __spec__ is None\n"
        "assert inspect.getsource(P).startswith('@dataclass')\nassert pickle.loads(pickle.dumps(P(1))) == P(1)\n"
        "import __main__; assert __main__.P is P\nprint('fine')\n"
    )
    assert "[rank 0] fine" in run(bench, body)


def test_pythonpath_works_from_the_ranks_folder(bench: Bench) -> None:
    """Relative entries are made absolute, and PYTHONSAFEPATH keeps the script's folder out without losing one."""
    (bench.folder.parent / "lib").mkdir()
    (bench.folder.parent / "lib" / "mylib.py").write_text("X = 5\n")
    bench.write("beside.py", "")
    assert "[rank 0] 5" in run(bench, "import mylib\nprint(mylib.X)\n", PYTHONPATH="../lib")
    safe = "import mylib\ntry:\n    import beside\nexcept ImportError: print('safe', mylib.X)\n"
    assert "[rank 0] safe 5" in run(bench, safe, PYTHONPATH=str(bench.folder.parent / "lib"), PYTHONSAFEPATH="1")


def test_a_linked_script_belongs_to_the_folder_of_its_link(bench: Bench) -> None:
    """The data beside the link is found."""
    real = bench.folder.parent / "real"
    real.mkdir()
    (real / "t.py").write_text("print(open('data.txt').read())\n")
    bench.write("data.txt", "here")
    (bench.folder / "train.py").symlink_to(real / "t.py")
    assert "[rank 0] here" in bench.mslaunch("train", "-n", "1").stdout


READS = "import os, sys\nfor name in sys.argv[2:]: print(open(name).read(), end=' ')\nprint(open('here').read())\n"


@pytest.mark.parametrize("typed", ["../lib/train.py", "{lib}/train.py"])
def test_a_script_beside_this_folder_runs_here(bench: Bench, typed: str) -> None:
    """As with Python: what it is given and what it opens by itself is looked for where the command was typed."""
    for folder in ("lib", "work"):
        bench.write(f"{folder}/configs/a.yaml", folder)
        bench.write(f"{folder}/here", f"opened in {folder}")
    bench.write("lib/train.py", READS)
    bench.write("work/my.yaml", "my")
    here = bench.folder / "work"
    command = ("train", "-n", "1", typed.format(lib=bench.folder / "lib"), "--config", "configs/a.yaml", "my.yaml")
    done = subprocess.run([bench.program, *command], cwd=here, env=bench.env, capture_output=True, text=True)
    assert "[rank 0] work my opened in work\n" in done.stdout
    assert "lib/train.py" in (here / "mslaunch-runs" / "latest" / "plan.json").read_text()
    bench.write("lib/train.py", "open('written', 'w').close(); import helper; print(helper.__file__)\n")
    bench.write("lib/helper.py", "")
    done = subprocess.run([bench.program, *command], cwd=here, env=bench.env, capture_output=True, text=True)
    assert "latest/code/lib/helper.py" in done.stdout.replace(
        str((here / "mslaunch-runs" / "latest").resolve()), "latest"
    )
    assert not (here / "written").exists()


def test_a_script_far_away_brings_its_folder_and_reads_what_it_is_given_here(
    bench: Bench, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A path of an argument is this folder's even where the script's has one of the same name; a note says so."""
    far = tmp_path_factory.mktemp("far")
    home = str(Path(os.path.commonpath([far, bench.folder])))
    for folder, place in (("far", far), ("work", bench.folder)):
        (place / "configs").mkdir()
        (place / "configs" / "a.yaml").write_text(folder)
        (place / "here").write_text(f"opened in {folder}")
    (far / "train.py").write_text(READS)
    done = bench.mslaunch("train", "-n", "1", str(far / "train.py"), "--config", "configs/a.yaml", HOME=home)
    assert "[rank 0] work opened in far\n" in done.stdout
    assert (
        "lies elsewhere: the ranks work in a mirror of its folder, not of this one (--cwd submit: here)" in done.stdout
    )


@pytest.mark.parametrize("how", ["exported", "typed"])
def test_a_variable_that_leads_out_of_the_folder_leads_to_the_same_place(bench: Bench, how: str) -> None:
    """A rank's folder lies elsewhere, so the variable is made absolute, and that is noted."""
    bench.write("data/a", "found")
    bench.write("scripts/train.py", "import os; print(open(os.environ['DATA_PATH'] + '/a').read())\n")
    typed = ("--env", "DATA_PATH=../data") if how == "typed" else ()
    env = bench.env if typed else {**bench.env, "DATA_PATH": "../data"}
    command = [bench.program, "train", "-n", "1", *typed, "train.py"]
    done = subprocess.run(command, cwd=bench.folder / "scripts", env=env, capture_output=True, text=True)
    assert "[rank 0] found\n" in done.stdout
    assert f"../data is given to the script as {bench.folder / 'data'}" in done.stdout


def test_the_script_of_an_earlier_run_can_be_run_again(bench: Bench) -> None:
    """Its own folder is then the job's."""
    run(bench, "print('hello')\n", "--run-id", "r1")
    assert "[rank 0] hello" in bench.mslaunch("train", "-n", "1", "mslaunch-runs/r1/code/train.py").stdout


def test_a_detached_launcher_does_not_import_from_the_current_folder(bench: Bench) -> None:
    """A signal.py of the user's stays out of it."""
    bench.write("signal.py", "raise SystemExit('wrong signal')\n")
    bench.write("src/go.py", "print('fine')\n")
    done = bench.mslaunch("train", "-n", "1", "--detach", "src/go.py")
    assert done.returncode == 0, done.stderr
    bench.mslaunch("logs", "-f")
    assert bench.log(0) == "fine\n"


def test_a_very_long_line_hides_nothing_after_it(bench: Bench) -> None:
    """Neither on the console nor in `mslaunch logs`."""
    output = run(bench, "print('x' * 700000)\nprint('LAST')\n")
    assert "[rank 0] LAST" in output
    assert "LAST" in bench.mslaunch("logs").stdout


def test_a_script_that_overwrites_its_log_is_still_heard(bench: Bench) -> None:
    """Following goes on from the start of a file that was cut."""
    body = (
        "import time\nprint('x' * 5000); time.sleep(0.5)\n"
        "open('log.txt', 'w').write('mine\\n'); time.sleep(0.5)\nprint('END')\n"
    )
    assert "[rank 0] END" in run(bench, body)


@pytest.mark.parametrize(
    ("line", "env"),
    [
        ("per step time: ... ms", {}),
        ("naïve 训练 \ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"), {"PYTHONIOENCODING": "ascii"}),
    ],
)
def test_no_output_of_a_rank_ends_the_launcher(bench: Bench, line: str, env: dict[str, str]) -> None:
    """Lines that look like progress and are not, and characters that a terminal cannot show."""
    body = f"import sys\nsys.stdout.buffer.write({line.encode()!r} + b'\\n')\n"
    bench.write("train.py", body)
    done = bench.mslaunch("train", "-n", "1", **env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert bench.log(0).strip() == line


def test_a_real_time_signal_has_a_number_for_a_name(bench: Bench) -> None:
    """Exit code 128 + n for any n."""
    bench.write("train.py", "import os\nos.kill(os.getpid(), 40)\n")
    done = bench.mslaunch("train", "-n", "1")
    assert done.returncode == 168
    assert "was killed by signal 40" in done.stdout


def test_odd_things_in_the_jobs_folder_do_no_harm(bench: Bench) -> None:
    """Link loops, sockets and names that are ours."""
    (bench.folder / "l1").symlink_to("l2")
    (bench.folder / "l2").symlink_to("l1")
    for name in ("log.txt", "env.log", "rank_0", "code", "a\nb"):
        bench.write(name, "theirs")
    assert "[rank 0] theirs" in run(bench, "print(open('rank_0').read())\n")
    assert bench.log(0) == "theirs\n"


def test_runs_may_lie_in_the_jobs_own_folder(bench: Bench) -> None:
    """`--runs-dir .` does not copy runs into runs."""
    bench.write("train.py", "import os\nprint(sorted(os.listdir('.')))\n")
    for name in ("a1", "a2"):
        assert bench.mslaunch("train", "-n", "1", "--runs-dir", ".", "--run-id", name).returncode == 0
    assert sorted(path.name for path in (bench.folder / "a2" / "code").iterdir()) == ["train.py"]


@pytest.mark.parametrize(
    "text",
    [
        "when: 2020-13-45",
        "x: !!int abc",
        "a: &x {b: *x}",
        "a: &x [*x]",
        "launch: {1: 2}",
        "x: " + "9" * 5000,
        "launch: {workers: 99999999999}",
    ],
)
def test_yaml_that_cannot_be_meant_is_one_line(bench: Bench, text: str) -> None:
    """Exit code 2 and no traceback."""
    bench.write("train.py", "")
    bench.write("cfg.yaml", text + "\n")
    done = bench.mslaunch("train", "-c", "cfg.yaml")
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("mslaunch: cfg.yaml")


def test_dates_as_keys_reach_the_script(bench: Bench) -> None:
    """JSON has text only for names."""
    bench.write("cfg.yaml", "a: {2020-01-01: x}\n")
    run(bench, "", "-c", "cfg.yaml")
    assert json.loads((bench.latest / "config.json").read_text())["a"] == {"2020-01-01": "x"}


@pytest.mark.parametrize(
    ("yaml", "words"),
    [
        ("devices: [0, 0]", "devices: name each number once"),
        ("devices: [-1]", "devices: name each number once"),
        ("devices: []", "devices: name each number once"),
        ("tail: [-1]", "tail: name each number once"),
        ('env: {"A=B": x}', "'A=B' is not the name of a variable"),
        ('env: {A: "x\\0y"}', "'A' cannot hold a NUL"),
    ],
)
def test_lists_and_variables_are_checked_in_yaml_too(bench: Bench, yaml: str, words: str) -> None:
    """A list is held to what a flag is held to."""
    bench.write("train.py", "")
    bench.write("cfg.yaml", f"launch:\n  {yaml}\n")
    done = bench.mslaunch("train", "-c", "cfg.yaml")
    assert done.returncode == 2
    assert words in done.stderr


def test_a_deleted_folder_is_said(bench: Bench) -> None:
    """One line, exit code 2."""
    command = f"mkdir gone && cd gone && rmdir ../gone && {shlex.quote(MSLAUNCH)} train -n 1 x.py"
    done = subprocess.run(["bash", "-c", command], cwd=bench.folder, env=bench.env, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "mslaunch: the current folder has been deleted. Change into one that exists.\n"
