"""`mslaunch new`: begins a project from an example, with its modules in src/ and its scripts beside config.yaml."""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path
from typing import Annotated

import typer

from mslaunch.cli import basics, examples
from mslaunch.errors import NotReadyError, RequestError

app = basics.new_app()
DEFAULT = "single_inference"
STARTED = 'if __name__ == "__main__":'
"""A line of what is started; the other modules of an example are imported, and become those of src/."""
IGNORED = "*.ckpt\n*.pth\n*.safetensors\nkernel_meta/\nmslaunch-runs/\n__pycache__/\n"
START = {
    "train.py": "mslaunch train --workers 2 --config config.yaml",
    "eval.py": "mslaunch train --workers 1 --config config.yaml --script eval.py",
    "infer.py": "mslaunch infer --workers 1 --config config.yaml --script infer.py --ckpt CHECKPOINT",
}
"""The line that starts a script."""


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="The new folder.", metavar="NAME")],
    source: Annotated[
        str, typer.Option("--from", help="An example that `mslaunch examples list` shows.", metavar="EXAMPLE")
    ] = DEFAULT,
) -> None:
    """Begin a project: config.yaml, train.py and others, and src/. It runs at once on this machine's device."""
    origin = examples.find_example(source)
    if not (origin / "train.py").is_file():
        raise RequestError(f"{source} cannot begin a project: it has no train.py. Take another example.")
    target = Path(name)
    files = plan_project(origin, target.name)
    _write(target, files)
    basics.say(f"{target}: {', '.join(sorted(path for path in files if '/' not in path and path[0] != '.'))}, src/")
    print(f"cd {target} && {START['train.py']}")


def plan_project(origin: Path, name: str) -> dict[str, str]:
    """Return the files of a project that begins as an example, by their paths in it."""
    texts = {path.name: path.read_text() for pattern in ("*.py", "*.yaml") for path in sorted(origin.glob(pattern))}
    modules = [file.removesuffix(".py") for file in texts if file.endswith(".py") and STARTED not in texts[file]]
    own = re.compile(rf"^(\s*)from ({'|'.join(modules) or '(?!)'}) import ", re.MULTILINE)
    files = {"README.md": _readme(name, origin.name, texts), ".gitignore": IGNORED, "src/__init__.py": ""}
    for file, text in texts.items():
        place = f"src/{file}" if file.removesuffix(".py") in modules and file.endswith(".py") else file
        files[place] = own.sub(r"\1from src.\2 import ", text) if file.endswith(".py") else text
    ignored = origin / ".gitignore"
    if ignored.is_file():
        files[".gitignore"] += ignored.read_text()
    return files


def _readme(name: str, example: str, texts: dict[str, str]) -> str:
    lines = "".join(f"    {line}\n" for script, line in START.items() if script in texts)
    return (
        f"# {name}\n\nBegun from mslaunch's example {example}, whose README says more:\n\n"
        f"    mslaunch examples copy {example}\n\nTo start it:\n\n{lines}\n"
        "`config.yaml` holds what can be set; `--set key=value` sets it for one run. Network and data are in `src/`.\n"
    )


def _write(target: Path, files: dict[str, str]) -> None:
    """Write a new folder; after an error nothing of it is left."""
    try:
        target.mkdir(parents=True)
    except FileExistsError:
        raise RequestError(f"{target} exists, so nothing was written. Give another name.") from None
    except OSError as error:
        raise _unwritable(target, error) from None
    try:
        (target / "src").mkdir()
        for place, text in files.items():
            (target / place).write_text(text)
    except BaseException as error:
        with contextlib.suppress(OSError):
            shutil.rmtree(target)
        if isinstance(error, OSError):
            raise _unwritable(target, error) from None
        raise


def _unwritable(path: Path, error: OSError) -> NotReadyError:
    return NotReadyError(f"{path}: cannot write: {error.strerror}. Name another folder.")
