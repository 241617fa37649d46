"""One rule about files: a rank writes into its own folder, and nothing else of the project is changed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tests.conftest import Bench

BIG = 2001  # more entries than a folder may have to be mirrored


def digest(folder: Path) -> dict[str, str]:
    """Everything in a folder but runs: names, kinds, modes and contents."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if not name.startswith("mslaunch-runs"):
            content = path.read_bytes() if path.is_file() else b""
            found[name] = f"{path.lstat().st_mode:o} {hashlib.sha256(content).hexdigest()}"
    return found


@pytest.fixture
def project(bench: Bench) -> Bench:
    """A project with a text file, a large file, a folder with something in it, and one with very much in it."""
    bench.write("notes.txt", "old\n")
    bench.write("large.bin", "x" * 1_100_000)
    bench.write("checkpoint/net.ckpt", "old\n")
    bench.write("data/images/0", "zero")
    for number in range(1, BIG):
        (bench.folder / "data" / "images" / str(number)).touch()
    return bench


WRITES = {
    "a new file": "open('new.txt', 'w').write('mine')",
    "a text file, anew": "open('notes.txt', 'w').write('mine')",
    "a text file, at its end": "open('notes.txt', 'a').write('mine')",
    "a text file, in place": "open('notes.txt', 'r+').write('mine')",
    "a large file, anew": "open('large.bin', 'wb').write(b'mine')",
    "a large file, in place": "f = open('large.bin', 'r+b'); f.seek(5); f.write(b'mine')",
    "by os.open": "os.write(os.open('large.bin', os.O_WRONLY), b'mine')",
    "by pathlib": "pathlib.Path('checkpoint/net.ckpt').write_text('mine')",
    "in a folder that is there": "open('checkpoint/new.ckpt', 'w').write('mine')",
    "in a folder with very much in it": "open('data/images/0', 'w').write('mine')",
    "a new folder in a large one": "os.makedirs('data/images/a/b'); open('data/images/a/b/c', 'w').write('mine')",
    "removing": "os.remove('data/images/0'); os.remove('notes.txt')",
    "removing a folder": "shutil.rmtree('data/images'); shutil.rmtree('checkpoint')",
    "renaming": "os.rename('data/images/0', 'data/images/zero'); os.replace('notes.txt', 'other.txt')",
    "a mode": "os.chmod('large.bin', 0o400)",
    "times": "os.utime('large.bin', (1, 1))",
    "a length": "os.truncate('large.bin', 3)",
    "after a change of folder": "os.chdir('data/images'); open('0', 'w').write('mine')",
    "a copy over it": "shutil.copy('notes.txt', 'large.bin')",
    "by a child process": "p = os.fork() or (open('notes.txt', 'w').write('m'), os._exit(0)); os.waitpid(p, 0)",
    "beside the script's own file": "open(os.path.join(os.path.dirname(__file__), 'large.bin'), 'wb').write(b'm')",
    "cut without being written to": "os.open('large.bin', os.O_RDONLY | os.O_TRUNC)",
    "a database by its address": (
        "import sqlite3; sqlite3.connect('file:notes.db?mode=rw', uri=True).execute('create table t (x)')"
    ),
    "a long name": "open('" + "n" * 250 + "', 'a').write('mine')",
    "a database": "import sqlite3; sqlite3.connect('notes.db').execute('create table t (x)')",
    "through a path with dots": "open('checkpoint/../data/./images/0', 'w').write('mine')",
}


def test_whatever_a_rank_writes_the_project_stays_as_it_was(project: Bench) -> None:
    """Every way to write to something that is there already."""
    project.write("notes.db", "")
    project.write("n" * 250, "")
    lines = "\n".join(f"    {name!r}: {code!r}," for name, code in WRITES.items())
    project.write(
        "train.py",
        f"import os, pathlib, shutil, sys\nWRITES = {{\n{lines}\n}}\n"
        "exec(WRITES[sys.argv[1]])\nprint('written', flush=True)\nos._exit(0)\n",
    )
    before = digest(project.folder)
    for name in WRITES:
        done = project.mslaunch("train", "-n", "1", "train.py", "--", name)
        assert done.returncode == 0, (name, done.stdout, done.stderr)
        assert project.log(0) == "written\n", name
        assert digest(project.folder) == before, name


def test_a_rank_reads_what_it_wrote_and_others_read_the_project(project: Bench) -> None:
    """An appended file begins with what the project's held; other ranks do not see it."""
    body = (
        "import os, time\nif os.environ['RANK_ID'] == '0':\n    open('notes.txt', 'a').write('mine\\n')\n"
        "    open('data/images/0', 'a').write('!')\nelse:\n    time.sleep(1)\n"
        "print(open('notes.txt').read().split(), open('data/images/0').read(), len(os.listdir('data/images')))\n"
    )
    project.write("train.py", body)
    assert project.mslaunch("train", "-n", "2").returncode == 0
    assert project.log(0) == f"['old', 'mine'] zero! {BIG}\n"
    assert project.log(1) == f"['old'] zero {BIG}\n"


def test_a_link_that_the_script_makes_is_its_own(project: Bench) -> None:
    """Whoever links to a file on purpose means that file."""
    body = "import os\nos.symlink(os.environ['TARGET'], 'link')\nopen('link', 'w').write('meant')\n"
    project.write("train.py", body)
    target = project.folder / "notes.txt"
    outside = project.folder.parent / "outside.txt"
    assert project.mslaunch("train", "-n", "1", "--env", f"TARGET={outside}").returncode == 0
    assert outside.read_text() == "meant"
    assert target.read_text() == "old\n"


def test_shared_folders_are_the_projects_own(project: Bench) -> None:
    """`launch.shared` names folders that ranks write to; one that is missing is made."""
    body = (
        "import os\nr = os.environ['RANK_ID']\nopen(f'checkpoint/{r}', 'w').write(r)\n"
        "open(f'data/cache/{r}', 'w').write(r)\nopen('data/images/0', 'w').write('mine')\n"
    )
    project.write("train.py", body)
    project.write("c.yaml", "launch: {shared: [checkpoint, data/cache], config_arg: null}\n")
    done = project.mslaunch("train", "-n", "2", "-c", "c.yaml")
    assert done.returncode == 0, done.stdout
    assert sorted(path.name for path in (project.folder / "checkpoint").iterdir()) == ["0", "1", "net.ckpt"]
    assert sorted(path.name for path in (project.folder / "data" / "cache").iterdir()) == ["0", "1"]
    assert (project.folder / "data" / "images" / "0").read_text() == "zero"


@pytest.mark.parametrize("name", ["/absolute", "../above", ""])
def test_a_shared_folder_is_one_of_the_project(bench: Bench, name: str) -> None:
    """Anything else is refused before the start."""
    bench.write("train.py", "")
    done = bench.mslaunch("train", "-n", "1", f"--shared={name}")
    assert done.returncode == 2
    assert "name a folder of the project by its relative path" in done.stderr


def test_a_program_has_small_files_of_its_own(project: Bench) -> None:
    """What a shell script appends to is the rank's copy."""
    before = digest(project.folder)
    body = "cat notes.txt\necho mine >> notes.txt\necho mine >> checkpoint/net.ckpt\necho new > checkpoint/new\n"
    script = project.write("run.sh", f"#!/bin/sh\n{body}")
    script.chmod(0o755)
    assert project.mslaunch("train", "-n", "2", "run.sh").returncode == 0
    assert project.log(1) == "old\n"
    assert (project.work(1) / "notes.txt").read_text() == "old\nmine\n"
    assert (project.work(1) / "checkpoint" / "net.ckpt").read_text() == "old\nmine\n"
    after = digest(project.folder)
    del after["run.sh"]
    assert after == before


@pytest.mark.parametrize("program", [("train.py",), ("-m", "train")])
def test_submit_runs_where_the_command_was_typed(project: Bench, program: tuple[str, ...]) -> None:
    """`--cwd submit` is as msrun: files are the project's, by a path from `__file__` too; nothing is mirrored."""
    body = (
        "import os\nopen('notes.txt', 'a').write('mine\\n')\nprint(os.getcwd())\n"
        "open(os.path.join(os.path.dirname(os.path.realpath(__file__)), 'beside'), 'w').write('mine')\n"
    )
    project.write("train.py", body)
    assert project.mslaunch("train", "-n", "1", "--cwd", "submit", *program).returncode == 0
    assert project.log(0) == f"{project.folder}\n"
    assert (project.folder / "notes.txt").read_text() == "old\nmine\n"
    assert (project.folder / "beside").read_text() == "mine"
    assert not project.work(0).exists()


def test_paths_through_dots_work_from_a_subfolder(bench: Bench) -> None:
    """Imports and data above the script are found by name, from the working directory and from the file."""
    bench.write("pyproject.toml", "")
    bench.write("lib/__init__.py", "NAME = 'lib'\n")
    bench.write("data/x.txt", "data")
    bench.write(
        "tools/train.py",
        "import os, sys\nsys.path.append('..')\nimport lib\n"
        "here = os.path.dirname(os.path.abspath(__file__))\n"
        "print(lib.NAME, open('../data/x.txt').read(), open(here + '/../data/x.txt').read())\n"
        "open('out.txt', 'w').write('1')\nopen('../data/x.txt', 'w').write('mine')\n",
    )
    inside = Bench(bench.folder / "tools", bench.env, bench.started)
    done = inside.mslaunch("train", "-n", "2")
    assert done.returncode == 0, done.stdout
    assert inside.log(1) == "lib data data\n"
    assert (inside.work(1) / "tools" / "out.txt").read_text() == "1"
    assert (bench.folder / "data" / "x.txt").read_text() == "data"


def test_data_beside_the_project_is_found(bench: Bench) -> None:
    """A default of ../data works, in a project without a mark as well."""
    (bench.folder.parent / "data").mkdir()
    (bench.folder.parent / "data" / "x.txt").write_text("beside")
    bench.write("train.py", "print(open('../data/x.txt').read())\nopen('../data/new', 'w').write('mine')\n")
    assert bench.mslaunch("train", "-n", "1").returncode == 0
    assert bench.log(0) == "beside\n"
    assert [path.name for path in (bench.folder.parent / "data").iterdir()] == ["x.txt"]


def test_the_end_says_what_was_written_and_where(bench: Bench) -> None:
    """On the screen, in run.json and by `mslaunch outputs`; links, logs and bytecode do not count."""
    bench.write("big.bin", "x" * 1_100_000)
    bench.write(
        "train.py",
        "import os\nopen('results.csv', 'w').write('a' * 1200)\nos.makedirs('checkpoint/a')\n"
        "for i in range(3):\n    open(f'checkpoint/a/{i}', 'w').write('x')\n",
    )
    done = bench.mslaunch("train", "-n", "2", "--run-id", "r")
    written = "rank_*/work/results.csv (2 files, 2.4 KB), rank_*/work/checkpoint/ (6 files, 6 B)"
    assert f"outputs in mslaunch-runs/r: {written}\n" in done.stdout
    assert bench.record()["outputs"] == [
        {"path": "work/results.csv", "ranks": "0-1", "files": 2, "bytes": 2400},
        {"path": "work/checkpoint/", "ranks": "0-1", "files": 6, "bytes": 6},
    ]
    listed = json.loads(bench.mslaunch("outputs", "--json").stdout)
    assert [(row["rank"], row["path"], row["files"]) for row in listed] == [
        (rank, f"{bench.runs.name}/r/rank_{rank}/work/{name}", files)
        for rank in (0, 1)
        for name, files in (("results.csv", 1), ("checkpoint/", 3))
    ]
    assert "rank_1/work/checkpoint/" in bench.mslaunch("outputs", "r").stdout


def test_every_name_is_the_scripts_own(bench: Bench) -> None:
    """Files called as mslaunch's are, by Python, C and the shell: both are there, ours whole, theirs listed, alone."""
    names = ["error.csv", "env.yaml", "env.log", "error.json", "exit.json", "stack.txt", "result.json", "result.pkl"]
    names += ["log.times", "mslaunch_versions.json", "result/acc.json", "log/metrics.csv", "plog/x.log"]
    bench.write("data/x.txt", "data")
    bench.write(
        "train.py",
        "import ctypes, logging, os, subprocess\nprint('first', flush=True)\n"
        "logging.basicConfig(handlers=[logging.FileHandler('log.txt', mode='w')])\nlogging.warning('theirs')\n"
        f"for name in {names}:\n    os.makedirs(os.path.dirname(name) or '.', exist_ok=True)\n"
        "    open(name, 'w').write('theirs')\n"
        "subprocess.run('echo theirs > log.0.txt', shell=True)\n"
        "ctypes.CDLL(None).creat(b'log.1.txt', 0o600)\nprint('last')\n",
    )
    assert bench.mslaunch("train", "-n", "1").returncode == 0
    assert bench.log(0) == bench.mslaunch("logs").stdout == "first\nlast\n"
    assert bench.environment(0)["RANK_ID"] == "0"
    written = {path.name for path in bench.work(0).iterdir()}
    assert written == {name.partition("/")[0] for name in names} | {"log.txt", "log.0.txt", "log.1.txt"}
    listed = json.loads(bench.mslaunch("outputs", "--json").stdout)
    assert {Path(row["path"]).name for row in listed} == written


def test_a_run_that_writes_nothing_says_nothing_of_outputs(bench: Bench) -> None:
    """A shell script's copies of the project's files are no outputs."""
    bench.write("notes.txt", "old")
    bench.write("run.sh", "#!/bin/sh\necho fine\n").chmod(0o755)
    done = bench.mslaunch("train", "-n", "1", "run.sh")
    assert "outputs" not in done.stdout
    assert bench.record()["outputs"] == []
    assert "has written nothing" in bench.mslaunch("outputs").stderr
    assert list(bench.work(0).iterdir()) == []


def test_tracebacks_name_the_users_own_files(bench: Bench) -> None:
    """In the log, in the verdict and on the screen; the snapshot stands beside it."""
    bench.write("lib.py", "def f():\n    raise ValueError('x')\n")
    bench.write("train.py", "import lib\nlib.f()\n")
    done = bench.mslaunch("train", "-n", "1")
    for text in (bench.log(0), bench.record()["verdict"]["traceback"], done.stdout):
        assert f'File "{bench.folder}/train.py", line 2' in text
        assert f'File "{bench.folder}/lib.py", line 2, in f' in text
    assert f"code:   {bench.latest}/code, the files as they ran" in done.stdout


def test_ranks_that_write_to_one_place_beside_the_script_do_not_disturb_each_other(project: Bench) -> None:
    """A path built from __file__ is the run's, shared by all ranks; none of them loses what it wrote."""
    body = (
        "import os\nfolder = os.path.join(os.path.dirname(__file__), 'data', 'images')\n"
        "mine = os.path.join(folder, 'of rank ' + os.environ['RANK_ID'])\nopen(mine, 'w').write('mine')\n"
        "print(open(mine).read(), open(os.path.join(folder, '0')).read())\n"
    )
    project.write("train.py", body)
    done = project.mslaunch("train", "-n", "12", "--tail", "none")
    assert done.returncode == 0, done.stdout
    assert [project.log(rank) for rank in range(12)] == ["mine zero\n"] * 12
    written = sorted(path.name for path in (project.latest / "code" / "data" / "images").glob("of rank *"))
    assert len(written) == 12
    assert len(list((project.folder / "data" / "images").iterdir())) == BIG


def test_a_tree_is_walked_as_it_is(project: Bench) -> None:
    """os.walk does not go into a folder that is a link inside another one: before and after a write to it."""
    for number in range(600):
        project.write(f"set/train/{number}", "")
    walk = "sum(len(files) for *_, files in os.walk(name))"
    body = (
        f"import os\nfor name in ('data', 'set', 'checkpoint'):\n    print({walk}, end=' ')\n"
        f"for name in ('data', 'set'):\n    open(f'{{name}}/new', 'w').close()\n    print({walk}, end=' ')\n"
    )
    project.write("train.py", body)
    assert project.mslaunch("train", "-n", "1").returncode == 0
    assert project.log(0) == f"{BIG} 600 1 {BIG + 1} 601 "


def test_a_file_that_is_moved_stays_readable(project: Bench) -> None:
    """Also into a folder of another depth."""
    body = (
        "import os, shutil\nos.makedirs('old/deep')\nshutil.move('notes.txt', 'old/deep/notes.txt')\n"
        "print(open('old/deep/notes.txt').read(), end='')\n"
    )
    project.write("train.py", body)
    assert project.mslaunch("train", "-n", "1").returncode == 0
    assert project.log(0) == "old\n"


def test_a_child_that_is_forked_while_a_file_is_copied_holds_up_nobody(project: Bench) -> None:
    """The lock is given back, though the child has it as well."""
    project.write("huge.bin", "x" * 50_000_000)
    body = (
        "import multiprocessing, threading, time\nif __name__ == '__main__':\n"
        "    copying = threading.Thread(target=lambda: open('huge.bin', 'r+b').close())\n    copying.start()\n"
        "    child = multiprocessing.get_context('fork').Process(target=time.sleep, args=(1000,))\n    child.start()\n"
        "    copying.join()\n    open('large.bin', 'r+b').close()\n    child.kill()\n    child.join()\n"
        "    print('done')\n"
    )
    project.write("train.py", body)
    assert project.mslaunch("train", "-n", "1").returncode == 0
    assert project.log(0) == "done\n"


def test_a_rank_whose_folder_was_removed_writes_elsewhere(project: Bench) -> None:
    """An absolute path needs no current folder; a relative one fails as it does without mslaunch."""
    body = (
        "import os, sys, tempfile\nfolder = tempfile.mkdtemp()\nos.chdir(folder)\nos.rmdir(folder)\n"
        "open(sys.argv[1], 'w').write('mine')\n"
        "try:\n    open('relative.txt', 'w')\nexcept FileNotFoundError as error:\n    print(error.filename)\n"
    )
    project.write("train.py", body)
    outside = project.folder.parent / "outside.txt"
    done = project.mslaunch("train", "-n", "1", "train.py", "--", str(outside))
    assert done.returncode == 0, done.stdout
    assert (outside.read_text(), project.log(0)) == ("mine", "relative.txt\n")
