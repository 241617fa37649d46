"""`mslaunch examples`: lists the examples and sample rank tables that come with mslaunch, and copies them."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

import mslaunch
from mslaunch.cli.console.tables import columns
from mslaunch.cli.parsing import common
from mslaunch.errors import NotReadyError, RequestError, did_you_mean
from mslaunch.ranktable.versions import read_table
from mslaunch.text import counted

app = common.new_app()

PATTERNS = ("*.md", "*.py", "*.yaml", ".gitignore")
"""An example's own files. Others in its folder are the output of a run there."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One example (a folder) or one sample rank table (a file)."""

    name: str
    about: str
    path: Path


@app.callback()
def examples() -> None:
    """List the examples and sample rank tables that come with mslaunch, and copy them."""


@app.command("list")
def list_samples(as_json: common.Json = False) -> None:
    """List the examples and sample rank tables, with one sentence on each."""
    samples = list(_samples())
    if as_json:
        common.print_json([{"name": sample.name, "about": sample.about} for sample in samples])
    else:
        print(columns([("NAME", "ABOUT"), *((sample.name, sample.about) for sample in samples)]), end="")


@app.command("copy")
def copy_sample(
    name: Annotated[str, typer.Argument(help="A name that `mslaunch examples list` shows.", metavar="NAME")],
    folder: Annotated[str, typer.Argument(help="The folder to copy into; created if missing.", metavar="DIR")] = ".",
) -> None:
    """Copy an example (a folder) or a sample rank table (a file) into DIR. Nothing is overwritten."""
    source = _find(name.rstrip("/"))
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise RequestError(f"{folder} is not a folder, so nothing was copied. Name a folder.") from None
    except OSError as error:
        raise unwritable(Path(folder), error) from None
    target = Path(folder) / source.name
    _copy(source, target)
    print(f"{target}: see its README.md" if target.is_dir() else target)


def _find(name: str) -> Path:
    paths = {sample.name: sample.path for sample in _samples()}
    if name not in paths:
        hint = did_you_mean(name, paths) or "."
        raise RequestError(f"there is no example {name!r}{hint} `mslaunch examples list` shows them.")
    return paths[name]


def find_example(name: str) -> Path:
    """Return the folder of an example, or say which there are."""
    path = _find(name)
    if not path.is_dir():
        raise RequestError(f"{name} is a rank table, not an example. `mslaunch examples list` shows both.")
    return path


def _copy(source: Path, target: Path) -> None:
    """Copy a file, or the files of an example. After an error nothing is left."""
    try:
        # Either call fails if the target exists, even if it was created a moment ago.
        target.touch(exist_ok=False) if source.is_file() else target.mkdir()
    except FileExistsError:
        raise RequestError(f"{target} exists, so nothing was copied. Name another folder.") from None
    except OSError as error:
        raise unwritable(target, error) from None
    with removed_on_error(target):
        # Contents, not permissions: installed files may be read-only, and copies are for editing.
        if source.is_file():
            shutil.copyfile(source, target)
        else:
            for path in (path for pattern in PATTERNS for path in source.glob(pattern)):
                shutil.copyfile(path, target / path.name)


@contextlib.contextmanager
def removed_on_error(target: Path) -> Iterator[None]:
    """Remove a new file or folder where writing it fails."""
    try:
        yield
    except BaseException as error:
        with contextlib.suppress(OSError):
            shutil.rmtree(target) if target.is_dir() else target.unlink()
        if isinstance(error, OSError):
            raise unwritable(target, error) from None
        raise


def unwritable(path: Path, error: OSError) -> NotReadyError:
    return NotReadyError(f"{path}: cannot write: {error.strerror}. Name another folder.")


def _samples() -> Iterator[Sample]:
    """Return the examples, then the rank tables, each sorted by name."""
    for readme in sorted(_shipped("examples").glob("*/README.md")):
        yield Sample(readme.parent.name, _first_sentence(readme.read_text()), readme.parent)
    for table in sorted(_shipped("rank_tables").glob("*.json")):
        yield Sample(f"rank_tables/{table.name}", _describe_table(table), table)


def _shipped(folder: str) -> Path:
    """Return a folder that comes with mslaunch: inside the package in a wheel, beside it in a checkout."""
    package = Path(mslaunch.__file__).parent
    return package / folder if (package / folder).is_dir() else package.parent / folder


def _first_sentence(readme: str) -> str:
    """Return the first sentence below the title."""
    paragraph = " ".join(readme.split("\n\n")[1].split())
    return paragraph.split(". ")[0].removesuffix(".") + "."


def _describe_table(path: Path) -> str:
    table = read_table(path.read_text(), path.name)
    version = "standard" if table.version == "standard" else f"version {table.version}"
    servers, devices = len(table.servers), len(table.servers[0].devices)
    each = " each" if servers > 1 else ""
    return f"Rank table, {version}: {counted(servers, 'server')} with {counted(devices, 'device')}{each}."
