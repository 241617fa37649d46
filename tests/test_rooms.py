"""The rooms keep their doors: planning never acts, and what travels needs the standard library only."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mslaunch
from mslaunch.agent import stacks as agent_stacks
from mslaunch.worker import main as worker_main

PACKAGE = Path(mslaunch.__file__).parent
FORBIDDEN = {
    "plan": ("mslaunch.launch", "mslaunch.cli", "mslaunch.agent", "socket", "subprocess", "psutil", "paramiko"),
    "ranktable": ("mslaunch.launch", "mslaunch.cli"),
    "checkpoint": ("mslaunch.launch", "mslaunch.cli", "mindspore"),
    "diagnose": ("mslaunch.launch", "mslaunch.cli"),
    "launch": ("mslaunch.cli",),
}
OWN = {"agent": ("mslaunch.agent",), "worker": ("mslaunch.worker", "mslaunch.agent"), "runtime": ("mslaunch.runtime",)}
OPTIONAL = {"mindspore", "yaml"}  # imported inside functions, where a rank needs them


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.mark.parametrize("room", FORBIDDEN)
def test_rooms_do_not_look_where_they_should_not(room: str) -> None:
    """Data flows one way: plan, ranktable and friends never import launch or cli."""
    found = [
        (path.name, name)
        for path in (PACKAGE / room).glob("*.py")
        for name in imports(path)
        if name.startswith(FORBIDDEN[room])
    ]
    assert found == []


@pytest.mark.parametrize("room", OWN)
def test_what_travels_needs_nothing_installed(room: str) -> None:
    """Agent, worker and runtime import the standard library and their own room."""
    for path in (PACKAGE / room).glob("*.py"):
        for name in imports(path):
            top = name.split(".")[0]
            allowed = name.startswith(OWN[room]) or top in sys.stdlib_module_names or top in OPTIONAL
            assert allowed, f"{path.name} imports {name}"


def test_what_travels_parses_on_python_3_9() -> None:
    """Hosts may have an older Python than the launcher."""
    for room in OWN:
        for path in (PACKAGE / room).glob("*.py"):
            ast.parse(path.read_text(), feature_version=(3, 9))


def test_both_sides_of_the_stack_signal_mean_the_same() -> None:
    """The worker writes it as a number, to spare itself an import."""
    assert worker_main.STACK_SIGNAL == agent_stacks.STACK_SIGNAL


def test_help_imports_nothing_heavy() -> None:
    """`mslaunch --help` is quick because it loads none of the libraries."""
    code = "import sys; from mslaunch.cli import run; run(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"typer", "rich", "pydantic", "yaml", "jinja2", "numpy", "paramiko"} & set(done.stdout.split())
