"""`mslaunch new`: begins a project from an example, with its modules in src/ and its scripts beside config.yaml."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from mslaunch.cli import examples
from mslaunch.cli.parsing import common
from mslaunch.errors import RequestError

app = common.new_app()
DEFAULT = "single_inference"
STARTED = 'if __name__ == "__main__":'
"""A line of what is started; the other modules of an example are imported, and become those of src/."""
IGNORED = "*.ckpt\n*.pth\n*.safetensors\nkernel_meta/\nmslaunch-runs/\n__pycache__/\n"
COMMAND = re.compile(r"^    (\S.*)$", re.MULTILINE)  # a command of a README; the first one is the first step


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="The new folder.", metavar="NAME")],
    source: Annotated[
        str, typer.Option("--from", help="An example that `mslaunch examples list` shows.", metavar="EXAMPLE")
    ] = DEFAULT,
) -> None:
    """Begin a project: config.yaml, train.py and others, and src/. Its first step is printed, README.md has all."""
    origin = examples.find_example(source)
    if not (origin / "train.py").is_file():
        raise RequestError(f"{source} cannot begin a project: it has no train.py. Take another example.")
    target = Path(name)
    files = plan_project(origin, target.name)
    with examples.new_path(target, "written. Give another name."):
        (target / "src").mkdir()
        for place, text in files.items():
            (target / place).write_text(text)
    common.say(f"{target}: {', '.join(sorted(path for path in files if '/' not in path and path[0] != '.'))}, src/")
    common.say("the first step is below; README.md has the others")
    first = COMMAND.search(files["README.md"])
    print(f"cd {shlex.quote(str(target))}" + (f" && {first[1]}" if first else ""))


def plan_project(origin: Path, name: str) -> dict[str, str]:
    """Return the files of a project that begins as an example, by their paths in it."""
    texts = {path.name: path.read_text() for pattern in ("*.py", "*.yaml") for path in sorted(origin.glob(pattern))}
    modules = [file.removesuffix(".py") for file in texts if file.endswith(".py") and STARTED not in texts[file]]
    own = re.compile(rf"^(\s*)from ({'|'.join(modules) or '(?!)'}) import ", re.MULTILINE)
    files = {"README.md": _readme(name, origin, modules), ".gitignore": IGNORED, "src/__init__.py": ""}
    for file, text in texts.items():
        place = f"src/{file}" if file.removesuffix(".py") in modules and file.endswith(".py") else file
        files[place] = own.sub(r"\1from src.\2 import ", text) if file.endswith(".py") else text
    ignored = origin / ".gitignore"
    if ignored.is_file():
        files[".gitignore"] += ignored.read_text()
    return files


def _readme(name: str, origin: Path, modules: list[str]) -> str:
    """Return the example's README under the project's name, with its modules in src/."""
    _, _, text = (origin / "README.md").read_text().partition("\n")
    text = re.sub(rf"`({'|'.join(modules) or '(?!)'})\.py`", r"`src/\1.py`", text)
    return f"# {name}\n\nBegun from mslaunch's example {origin.name}.\n{text}"
