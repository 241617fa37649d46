"""One rule about files: a rank writes into its own folder, and nothing else of the project is changed."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest

from mslaunch.shared import work_folder
from tests.beds import file_ways
from tests.conftest import Bench

LARGE = 1_100_000  # bytes: more than a file may have to be copied
BIG = 2001  # more entries than a folder may have to be mirrored


def digest(folder: Path) -> dict[str, str]:
    """Everything in a folder but runs: names, kinds, modes and contents."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if not name.startswith("mslaunch-runs"):
            content = path.read_bytes() if path.is_file() else b""
            status = path.lstat()
            found[name] = f"{status.st_mode:o} {status.st_mtime_ns} {hashlib.sha256(content).hexdigest()}"
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


def test_what_every_way_to_write_changes(bench: Bench) -> None:
    """As the page says, for each way and kind of file: the rank's own, the run's copy, or the project itself."""
    ways = file_ways.WAYS
    paths = [{kind: file_ways.path_of(number, kind) for kind in file_ways.KINDS} for number in range(len(ways))]
    for kind, name in ((kind, name) for names in paths for kind, name in names.items()):
        os.truncate(bench.write(name, "old"), LARGE if kind == "large" else 3)
    rows = [(way.code, names) for way, names in zip(ways, paths, strict=True)]
    bench.write("train.py", f"WAYS = {rows!r}\n{file_ways.SCRIPT}")
    before = digest(bench.folder)
    done = bench.mslaunch("train", "-n", "1")
    assert (done.returncode, "failed" in bench.log(0)) == (0, False), bench.log(0)
    in_project = {name for name, _ in before.items() ^ digest(bench.folder).items()}
    in_code = {name.removeprefix("code/") for name, _ in work_folder.code_files(str(bench.latest))}
    code = bench.latest / "code"
    in_code |= {str(path.relative_to(code)) for path in code.rglob("*.ckpt") if path.lstat().st_mode == 0o100640}

    def owner(folder: str) -> str:
        if any(name.startswith(folder) for name in in_project):
            return "project"
        return "run" if any(name.startswith(folder) for name in in_code) else "rank"

    found = [tuple(owner(f"{Path(name).parent}/") for name in names.values()) for names in paths]
    assert dict(zip((way.name for way in ways), found, strict=True)) == {way.name: way.owners for way in ways}


def test_a_commit_in_a_rank_changes_no_branch_of_the_project(bench: Bench) -> None:
    """The run has a repository of its own, which reads the project's objects."""

    def git(*args: str) -> str:
        who = ("-c", "user.name=n", "-c", "user.email=e")
        return subprocess.run(["git", *who, *args], cwd=bench.folder, check=True, capture_output=True, text=True).stdout

    bench.write(
        "train.py",
        "import subprocess\ngit = ['git', '-c', 'user.name=n', '-c', 'user.email=e']\nopen('new', 'w').write('mine')\n"
        "for words in ('add new', 'commit -qm mine', 'log --format=%s', 'show HEAD~:train.py'):\n"
        "    subprocess.run([*git, *words.split()], check=True)\n",
    )
    git("init", "-q")
    git("add", "train.py")
    git("commit", "-qm", "first")
    before = digest(bench.folder)
    done = bench.mslaunch("train", "-n", "1")
    assert done.returncode == 0, bench.log(0)
    assert bench.log(0) == f"mine\nfirst\n{(bench.folder / 'train.py').read_text()}"
    assert digest(bench.folder) == before
    assert git("log", "--format=%s") == "first\n"


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


def test_what_is_written_by_a_path_from_the_script_is_listed(bench: Bench) -> None:
    """It lies in code/, which all ranks share; so is what a rank puts above its working directory."""
    bench.write("notes.txt", "old")
    bench.write(
        "train.py",
        "import os, pathlib\nhere = pathlib.Path(__file__).resolve().parent\nrank = os.environ['RANK_ID']\n"
        "(here / 'ckpt').mkdir(exist_ok=True)\n(here / 'ckpt' / f'net{rank}-1_1.ckpt').write_text('12')\n"
        "(here / 'notes.txt').write_text('changed')\nopen('../above.txt', 'w').write('123')\n",
    )
    done = bench.mslaunch("train", "-n", "2", "--run-id", "r")
    listed = (
        "outputs in mslaunch-runs/r: code/notes.txt (7 B), rank_*/above.txt (2 files, 6 B), code/ckpt/ (2 files, 4 B)"
    )
    assert f"{listed}\n" in done.stdout
    shown = json.loads(bench.mslaunch("outputs", "--json").stdout)
    assert {Path(row["path"]).name: row["rank"] for row in shown} == {"notes.txt": None, "ckpt": None, "above.txt": 1}
    assert (bench.folder / "notes.txt").read_text() == "old"


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
