"""Finding what a job runs: the script, module or executable that was named, and the project that it belongs to."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from mslaunch.errors import PythonMissing, RequestError, ScriptMissing, did_you_mean
from mslaunch.launcher.nested import find_nested
from mslaunch.plan.program import PYTHON, NestedLauncher, Program, python_version, read_python
from mslaunch.plan.spec import TRAIN_SCRIPT, JobSpec
from mslaunch.run.paths import runs_root
from mslaunch.settings.launch import COMMAND_LINE, PROGRAM_SETTINGS
from mslaunch.shared.other_launchers import find_launcher, is_python

REPOSITORY_MARKS = (".git", ".hg", ".svn", "pyproject.toml")
"""What the top of a repository holds."""
_READ = {".py", ".yaml", ".yml", ".sh"}
_MOST_FILES = 200
_MOST_BYTES = 1 << 20
_DEPTH = 2
_SHORTEST = 2  # "/" and one name: a disk, /tmp, /home
_HIGHEST = 3
"""How many folders above the job's folder a source may name."""

# "../data", '..' and "/.." as a piece of a path; an ellipsis in quotes is none.
_NAMED = re.compile(rb"""(?<=["'/\s=:])((?:\.\./)*\.\.(?:/[\w.@+-]+)*)/?(?=["'\s,)\]]|$)""", re.MULTILINE)
# Two steps up from a file: its folder's parent.
_TWO_UP = re.compile(
    rb"\.parent\.parent\b|\.parents\[[1-9]\]|dirname\(\s*(?:os\.path\.|osp\.)?dirname\(|\bos\.pardir\b"
)


@dataclass(frozen=True, slots=True)
class Project:
    """The folder that code/ and every rank's folder mirror."""

    root: Path
    workdir: Path
    """Where in it the ranks work, relative to it."""
    sources: Path
    """Where in it sources are copied, relative to it; what lies beside that is linked."""


def find_project(job_dir: Path, file: Path | None, home: str | None) -> Project:
    """Find the root that holds everything that a job's sources name; `file` is that of its program, if it is a source.

    It is the job's folder, or the one that holds both that and the program. Where a source names a path above it, such
    as ../data, the root is the folder in which that path begins. Sources of the same repository are copied from there
    on; what lies outside of it is linked.
    """
    own = root = job_dir
    if file is not None:
        own = Path(os.path.commonpath([job_dir, file.parent]))
        root = Path(os.path.commonpath([own, *_paths_above(job_dir, file)]))
    repository = own
    for folder in (own, *own.parents):
        if any(_exists(folder / mark) for mark in REPOSITORY_MARKS):
            repository = folder
            break
    if Path(home or "/").is_relative_to(repository):  # dotfiles are kept in a repository, too
        repository = own
    sources = root if root.is_relative_to(repository) else repository
    return Project(root, job_dir.relative_to(root), sources.relative_to(root))


def is_beside(file: Path, here: Path, home: str | None) -> bool:
    """Tell whether a file and a folder belong together: what holds both is near, and is nobody's home or disk."""
    both = Path(os.path.commonpath([here, file.parent]))
    is_small = len(both.parts) > _SHORTEST and not Path(home or "/").is_relative_to(both)
    return is_small and len(here.parts) - len(both.parts) <= _HIGHEST


def _paths_above(job_dir: Path, script: Path) -> Iterator[Path]:
    """The paths outside the job's folder that its sources name, and that are there."""
    lowest = len(job_dir.parts) - _HIGHEST
    for source in _sources(script):
        try:
            text = source.read_bytes()[:_MOST_BYTES]
        except OSError:
            continue
        paths = [source.parent.parent] if _TWO_UP.search(text) else []
        for name in {os.fsdecode(match) for match in _NAMED.findall(text)}:
            beside = Path(os.path.normpath(source.parent / name))
            paths.append(beside)
            within = beside.is_relative_to(job_dir) and _exists(beside)
            if not within and not set(name.split("/")) <= {".."}:
                paths.append(Path(os.path.normpath(job_dir / name)))
        for path in paths:
            if not path.is_relative_to(job_dir) and len(path.parts) > lowest and _exists(path):
                yield path


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _sources(script: Path) -> Iterator[Path]:
    """The script, and the sources beside and below it that it may use, so many at most."""
    yield script
    files, folders = _MOST_FILES, _MOST_FILES
    for place, below, names in os.walk(script.parent):
        depth = len(Path(place).relative_to(script.parent).parts)
        below[:] = sorted(name for name in below if name.isidentifier() and depth < _DEPTH)
        sources = [Path(place, name) for name in sorted(names) if Path(name).suffix in _READ and name != script.name]
        yield from sources[:files]
        files, folders = files - len(sources), folders - 1
        if files <= 0 or folders <= 0:
            return


_TAKES = re.compile(
    r"""
      --config_path\b                              # argparse, click, or sys.argv taken apart by hand
    | DEFINE_\w+\(\s*["']config_path["']          # absl
    | \bparse_known_args\b                         # what is not known is ignored
    | \bfire\.Fire\b(?=.*\bconfig_path\b)          # parameters are options
    | \bconfig_path\b(?=.*\bfire\.Fire\b)
    | \bmslaunch\.runtime\b(?=.*\bload_config\b)
    """,
    re.VERBOSE | re.DOTALL,
)
_TAKES_ANOTHER = re.compile(r"@hydra\.main\b|\bhydra\.compose\b")  # its own --config-path names a folder


def takes_config(texts: Iterable[str]) -> bool:
    """Tell whether one of the texts shows it; a strict parser ends at an argument that it does not know."""
    given = list(texts)
    if any(_TAKES_ANOTHER.search(text) for text in given):
        return False
    return any(_TAKES.search(text) for text in given)


def imported_modules(text: str) -> Iterator[tuple[int, str]]:
    """The modules that a text imports, in its order: how many dots stand before the name, and the name."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield node.level, module
            yield from ((node.level, f"{module}.{alias.name}".lstrip(".")) for alias in node.names)


TEXT_LIMIT = 1 << 18
MOST_MODULES = 50


@dataclass(frozen=True, slots=True)
class FoundProgram:
    """A program, and where it was found on this machine."""

    program: Program
    job_dir: Path
    """The folder that code/ mirrors."""
    file: Path | None = None
    """The file that holds its code, where there is one here."""
    notes: tuple[str, ...] = ()


def find_program(spec: JobSpec, config_path: Path | None) -> FoundProgram:
    """Find what was named, or the default script; every kind of program is told apart here and nowhere else."""
    launch, args = spec.launch, spec.script_args
    named = None if spec.default_script == TRAIN_SCRIPT else _named_for_training(spec)
    if named and _default_files(spec, config_path):
        found = _default_script(spec, config_path)
        note = f"{spec.default_script} is run, not what {spec.sources[named]} names; --script FILE runs another"
        return replace(found, notes=(*found.notes, note))
    if launch.module is not None:
        return _module(spec, launch.module, args, config_path, "module")
    if launch.command is not None:
        return _command(spec, (*launch.command, *args), config_path)
    if launch.script is not None:
        return _script(spec, launch.script, args, config_path, "script")
    return _default_script(spec, config_path)


def _command(spec: JobSpec, words: tuple[str, ...], config_path: Path | None) -> FoundProgram:
    word, *rest = words
    typed = read_python(words) if is_python(word) else None
    if typed is not None:
        find = _module if typed.is_module else _script
        found = find(spec, typed.what, typed.args, config_path, "command")
        return replace(found, program=replace(found.program, python_env=typed.env))
    here = Path.cwd()
    if is_python(word) and "/" not in word:
        return FoundProgram(Program("executable", PYTHON, tuple(rest)), here)
    if word.endswith(".py"):
        return _script(spec, word, tuple(rest), config_path, "command")
    file = _first_file(_places(spec, word, config_path, "command"))
    if file is None:
        return FoundProgram(Program("executable", _on_path(spec, words), tuple(rest)), here)
    return _executable(spec, file, tuple(rest))


def _executable(spec: JobSpec, file: Path, args: tuple[str, ...]) -> FoundProgram:
    here = Path.cwd()
    # One that lies elsewhere is run where it is: what it needs lies beside it, and its folder may be /usr/bin.
    what = f"./{file.relative_to(here)}" if _is_in(spec, file, here) else str(file)
    return FoundProgram(Program("executable", what, args), here, file)


def _script(spec: JobSpec, name: str, args: tuple[str, ...], config_path: Path | None, setting: str) -> FoundProgram:
    choices = _places(spec, name, config_path, setting)
    file = _first_file(choices)
    if file is None:
        if choices[-1].is_dir():
            raise RequestError(
                f"{name} is a folder, not a script. Did you mean -m {name.strip('./').replace('/', '.')}?"
            )
        raise ScriptMissing(str(choices[-1]), spec.sources[setting], _near(choices[-1]))
    if setting == "script" and file.suffix != ".py":
        return _executable(spec, file, args)
    if not _is_typed(spec, setting) or file.is_relative_to(Path.cwd()):
        return _found_script(spec, file, args)
    if is_beside(file, Path.cwd(), os.environ.get("HOME")):
        return FoundProgram(Program("script", os.path.relpath(file), args), Path.cwd(), file)
    note = f"{file} lies elsewhere: the ranks work in a mirror of its folder, not of this one (--cwd submit: here)"
    return _found_script(spec, file, args, (note,) if spec.launch.cwd != "submit" else ())


def _found_script(spec: JobSpec, file: Path, args: tuple[str, ...], notes: tuple[str, ...] = ()) -> FoundProgram:
    here = Path.cwd()
    job_dir = here if _is_in(spec, file, here) else file.parent
    return FoundProgram(Program("script", str(file.relative_to(job_dir)), args), job_dir, file, notes)


def _default_script(spec: JobSpec, config_path: Path | None) -> FoundProgram:
    """The script that is meant where none is named: beside the config, else in the current folder."""
    name = spec.default_script
    files = _default_files(spec, config_path)
    if not files:
        beside = f"{name} beside the config or in the current folder" if config_path else name
        missing = str((config_path.parent if config_path else Path()) / name)
        raise ScriptMissing(missing, f"no script was named, so {beside} is looked for")
    both = len(files) > 1 and files[0] != files[1]
    notes = (f"{name} is there twice; the one beside the config is taken: {files[0]}",) if both else ()
    return _found_script(spec, files[0], spec.script_args, notes)


def _named_for_training(spec: JobSpec) -> str | None:
    """The setting with which a config names a program that another verb is not to run: it would train anew."""
    if spec.default_script == Path(spec.launch.script or "").name:
        return None
    return next((name for name in PROGRAM_SETTINGS if spec.sources[name].endswith(f"(launch.{name})")), None)


def _default_files(spec: JobSpec, config_path: Path | None) -> list[Path]:
    places = dict.fromkeys(Path(place) for place in ((config_path.parent if config_path else Path()), Path()))
    return [file for place in places if (file := _first_file([place / spec.default_script])) is not None]


def _module(spec: JobSpec, name: str, args: tuple[str, ...], config_path: Path | None, setting: str) -> FoundProgram:
    """Find a module as `python -m` does; one that is in no folder here may be installed for the job's Python."""
    if not all(part.isidentifier() for part in name.split(".")):
        fix = f"Leave -m out to run the file {name}" if "/" in name or name.endswith(".py") else "Write it as pkg.train"
        raise RequestError(f"{spec.sources[setting]}: {name!r} is not the name of a module. {fix}.")
    roots = [folder.absolute() for folder in _places(spec, "", config_path, setting)]
    for root in roots:
        file = module_file(root, name)
        if file is not None:
            return FoundProgram(Program("module", name, args), root, file)
    top = name.partition(".")[0]
    for root in roots:
        if (root / top).is_dir():
            known = did_you_mean(name, _modules(root, top))
            raise RequestError(
                f"{spec.sources[setting]}: {root / top} has no module {name!r}{known or '. Check its name'}"
            )
    return FoundProgram(Program("module", name, args), Path.cwd())


def check_module(found: FoundProgram, python: str) -> None:
    """Make sure that the job's Python on this machine finds a module that is not in the job's folder."""
    program = found.program
    if program.kind != "module" or found.file is not None:
        return
    top = program.what.partition(".")[0]
    look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({top!r}) is None)"
    if subprocess.run([python, "-c", look], capture_output=True, check=False, cwd=found.job_dir).returncode == 1:
        _check_not_launcher((PYTHON, "-m", program.what, *program.args))
        near = did_you_mean(program.what, _modules(found.job_dir, "")) or f". Run it from the folder that has {top}"
        raise RequestError(f"no module {program.what!r} in {found.job_dir}, on PYTHONPATH or in {python}{near}")


def find_nested_launcher(found: FoundProgram) -> NestedLauncher | None:
    """Return what in a program starts ranks itself, by its name or by the text of its shell scripts here."""

    def read(name: str) -> str | None:
        path = Path(name)
        return _text(path) or None if path.is_file() else None

    return find_nested(found.program, read)


def shows_config_argument(found: FoundProgram) -> bool:
    """Tell whether a program takes --config_path, by its file and the modules of the job that it imports itself."""
    text = _text(found.file) if found.file else ""
    if found.file is None or not text:
        return False
    texts = [text]
    if found.program.kind != "executable":
        files = dict.fromkeys(_imported(found.file, found.job_dir, text))
        texts += [_text(file) for file in list(files)[:MOST_MODULES]]
    return takes_config(texts)


def _imported(file: Path, job_dir: Path, text: str) -> Iterator[Path]:
    for dots, name in imported_modules(text):
        roots = [file.parents[dots - 1]] if 0 < dots <= len(file.parents) else [file.parent, job_dir]
        for root in roots:
            place = root.joinpath(*name.split("."))
            at = _first_file([place.with_name(place.name + ".py")] if name else []) or _first_file(
                [place / "__init__.py"]
            )
            if at is not None:
                yield at


def _text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(TEXT_LIMIT).decode(errors="replace")
    except OSError:
        return ""


def module_file(root: Path, name: str) -> Path | None:
    """The file of a module below a folder: the module itself, or the __main__ of a package."""
    place = root.joinpath(*name.split("."))
    return _first_file([place.with_name(place.name + ".py"), place / "__main__.py"])


def with_typed_python(spec: JobSpec) -> JobSpec:
    """The job with the Python of its command: one that is typed with a path, or with a version of its own."""
    words = spec.launch.command
    if not words or not is_python(words[0]):
        return spec
    version = python_version(words[0])
    if "/" not in words[0] and (version is None or _is_version(version, spec.launch.python or sys.executable)):
        return spec
    named = spec.launch.hosts or spec.launch.hostfile or spec.launch.transport
    if not named and _version(words[0]) is None:  # a name on PATH need not work: pyenv has some that do not
        raise PythonMissing(words[0], spec.sources["command"])
    return spec.with_python(words[0], spec.sources["command"])


def _is_version(version: str, python: str) -> bool:
    have = "{}.{}".format(*sys.version_info) if python == sys.executable else _version(python)
    # One that is not there is told of where it is needed.
    return have is None or have == version or have.startswith(f"{version}.")


def _version(python: str) -> str | None:
    """Ask a Python for its version; None where it cannot be run."""
    look = "import sys; print('{}.{}'.format(*sys.version_info))"
    try:
        done = subprocess.run([python, "-c", look], capture_output=True, check=False, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _is_typed(spec: JobSpec, setting: str) -> bool:
    return spec.sources[setting].startswith(("-", COMMAND_LINE))


def _places(spec: JobSpec, name: str, config_path: Path | None, setting: str) -> list[Path]:
    """Where a name may be: what a config says is relative to the config first."""
    return [Path(name)] if _is_typed(spec, setting) or config_path is None else [config_path.parent / name, Path(name)]


def _first_file(choices: Iterable[Path]) -> Path | None:
    for choice in choices:
        if choice.is_file():
            # Not resolved: a link in the job's folder is part of the job.
            return Path(os.path.abspath(choice))  # noqa: PTH100 -- Path.absolute keeps `..`
    return None


def _is_in(spec: JobSpec, file: Path, folder: Path) -> bool:
    runs_dir = runs_root(Path(spec.launch.runs_dir).resolve())
    return file.is_relative_to(folder) and not file.is_relative_to(runs_dir)


def _on_path(spec: JobSpec, words: tuple[str, ...]) -> str:
    """Check a name that stands for a program on PATH, where this machine's PATH counts."""
    word = words[0]
    if "/" in word:
        raise ScriptMissing(word, spec.sources["command"], _near(Path(word)))
    elsewhere = spec.launch.hosts or spec.launch.hostfile or spec.launch.transport or spec.launch.setup
    if elsewhere or shutil.which(word, path=search_path()):
        return word
    _check_not_launcher(words)
    near = did_you_mean(word, [*_names(Path()), *_programs()])
    fix = near or f". If it is an argument of {spec.default_script}, write {spec.default_script} {word}."
    raise RequestError(f"{word}: no such script or program ({spec.sources['command']}){fix}")


def _check_not_launcher(words: tuple[str, ...]) -> None:
    """Refuse a launcher that is not installed with the line that needs none."""
    launcher = find_launcher(words)
    if launcher is not None:
        line = shlex.join(launcher.instead(1))
        raise RequestError(f"{launcher.name} is not installed, and mslaunch takes its place. Type `{line}` instead.")


def search_path() -> str:
    """Where programs are looked for: PATH, then beside the Python that runs mslaunch."""
    return os.pathsep.join((os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)))


def _programs() -> Iterator[str]:
    for folder in search_path().split(os.pathsep):
        yield from _names(Path(folder))


def _near(path: Path) -> str:
    return did_you_mean(path.name, _names(path.parent))


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:
        return []


def _modules(root: Path, top: str) -> list[str]:
    """The modules below a package, or of a folder, by name; two levels of it."""
    found = [*(root / top).glob("*.py"), *(root / top).glob("*/*.py")]
    return [".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__main__") for file in found[:1000]]
