"""`mslaunch examples`: lists the examples and sample rank tables that come with mslaunch, and copies them."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
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


@app.callback()
def examples() -> None:
    """List the examples and sample rank tables that come with mslaunch, and copy them."""


@app.command("list")
def list_samples(as_json: common.Json = False) -> None:
    """List the examples and sample rank tables, with one sentence on each."""
    samples = [(name, about) for name, about, _ in _samples()]
    if as_json:
        common.print_json([{"name": name, "about": about} for name, about in samples])
    else:
        print(columns([("NAME", "ABOUT"), *samples]), end="")


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
    with new_path(target, "copied. Name another folder.", is_file=source.is_file()):
        # Contents, not permissions: installed files may be read-only, and copies are for editing.
        if source.is_file():
            shutil.copyfile(source, target)
        else:
            for path in (path for pattern in PATTERNS for path in source.glob(pattern)):
                shutil.copyfile(path, target / path.name)
    print(f"{target}: see its README.md" if target.is_dir() else target)


def _find(name: str) -> Path:
    paths = {sample: path for sample, _, path in _samples()}
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


@contextlib.contextmanager
def new_path(target: Path, otherwise: str, is_file: bool = False) -> Iterator[None]:
    """Make a file or folder that is not there yet; where writing it fails, nothing of it is left."""
    try:
        # Either call fails if the target exists, even if it was created a moment ago.
        target.touch(exist_ok=False) if is_file else target.mkdir(parents=True)
    except FileExistsError:
        raise RequestError(f"{target} exists, so nothing was {otherwise}") from None
    except OSError as error:
        raise unwritable(target, error) from None
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


def _samples() -> Iterator[tuple[str, str, Path]]:
    """Return name, description and path of the examples (folders), then of the rank tables, each sorted by name."""
    for readme in sorted(_shipped("examples").glob("*/README.md")):
        paragraph = " ".join(readme.read_text().split("\n\n")[1].split())
        first_sentence = paragraph.split(". ")[0].removesuffix(".") + "."
        yield readme.parent.name, first_sentence, readme.parent
    for path in sorted(_shipped("rank_tables").glob("*.json")):
        table = read_table(path.read_text(), path.name)
        version = "standard" if table.version == "standard" else f"version {table.version}"
        servers, devices = len(table.servers), counted(len(table.servers[0].devices), "device")
        each = " each" if servers > 1 else ""
        about = f"Rank table, {version}: {counted(servers, 'server')} with {devices}{each}."
        yield f"rank_tables/{path.name}", about, path


def _shipped(folder: str) -> Path:
    """Return a folder that comes with mslaunch: inside the package in a wheel, beside it in a checkout."""
    package = Path(mslaunch.__file__).parent
    return package / folder if (package / folder).is_dir() else package.parent / folder
