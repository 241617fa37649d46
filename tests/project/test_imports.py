"""Imports go one way, deciding is apart from acting, and what travels needs the standard library only."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mslaunch
from mslaunch.agent import stack_signal as agent_stacks
from mslaunch.plan.methods import METHODS
from mslaunch.transports.registry import BUILT_IN
from mslaunch.worker import rank_main as worker_main

PACKAGE = Path(mslaunch.__file__).parent
EDGES: dict[str, set[str]] = {
    "__main__": {"cli", "interrupts"},
    "__init__": {"diagnose", "errors", "job", "run"},
    "job": {"errors", "launcher", "plan", "run", "runtime", "settings", "shared", "sweeps"},
    "cli": {
        "__version__",
        "checkpoint",
        "diagnose",
        "documents",
        "errors",
        "hosts",
        "interrupts",
        "launcher",
        "metrics",
        "plan",
        "ranges",
        "ranktable",
        "run",
        "settings",
        "shared",
        "signals",
        "sweeps",
        "text",
        "transports",
        "ui",
        "weights",
    },
    "sweeps": {
        "diagnose",
        "errors",
        "launcher",
        "metrics",
        "plan",
        "ranges",
        "run",
        "settings",
        "signals",
        "text",
        "transports",
    },
    "launcher": {
        "checkpoint",
        "diagnose",
        "documents",
        "errors",
        "hosts",
        "metrics",
        "plan",
        "plugins",
        "ranges",
        "ranktable",
        "run",
        "settings",
        "shared",
        "signals",
        "text",
        "transports",
        "ui",
    },
    "ui": {"documents", "errors", "masking", "metrics", "ranges", "run", "shared", "text"},
    "run": {
        "checkpoint",
        "diagnose",
        "documents",
        "errors",
        "masking",
        "metrics",
        "plan",
        "plugins",
        "ranges",
        "settings",
        "shared",
        "signals",
        "text",
        "transports",
    },
    "weights": {"checkpoint", "documents", "errors", "open_files", "shared"},
    "transports": {
        "__version__",
        "documents",
        "errors",
        "hosts",
        "open_files",
        "plan",
        "plugins",
        "ranges",
        "settings",
        "shared",
        "signals",
        "text",
    },
    "metrics": {"diagnose", "documents", "plan", "plugins", "shared", "text"},
    "plan": {"documents", "errors", "hosts", "plugins", "ranges", "ranktable", "settings", "shared"},
    "diagnose": {"documents", "errors", "masking", "plugins", "ranktable", "shared", "text"},
    "checkpoint": {"documents", "errors", "open_files", "shared"},
    "settings": {"documents", "errors", "hosts", "ranges", "shared"},
    "ranktable": {"documents", "errors", "hosts", "ranges"},
    "open_files": {"errors", "text"},
    "text": {"ranges"},
    "masking": {"documents", "shared"},
    "hosts": {"errors", "ranges"},
    "worker": {"__version__", "shared"},
    "signals": {"interrupts"},
    "runtime": {"shared"},
    "ranges": {"errors"},
    "plugins": {"errors"},
    "documents": {"errors"},
    "agent": {"shared"},
    "shared": set(),
    "interrupts": set(),
    "errors": set(),
}
"""Every edge that imports may take, those inside functions and for type checking included. There is no cycle."""
IMPURE = {"socket", "subprocess", "psutil"}
PURE = ("settings", "plan", "ranktable", "diagnose", "metrics")
OWN = {
    "shared": ("mslaunch.shared",),
    "agent": ("mslaunch.agent", "mslaunch.shared"),
    "worker": ("mslaunch.worker", "mslaunch.shared", "mslaunch.__version__"),
    "runtime": ("mslaunch.runtime", "mslaunch.shared"),
}
OPTIONAL = {"mindspore", "yaml", "cloudpickle", "numpy", "moxing", "boto3", "botocore"}
"""Imported inside functions, where a rank needs them."""


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "mslaunch":
            yield from (f"mslaunch.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def part(name: str) -> str:
    """The package or module directly below mslaunch."""
    return name.split(".")[1]


def test_imports_take_the_listed_edges_only() -> None:
    """One direction: cli, api, launcher, store and transports, plan, and what they all share."""
    found: dict[str, set[str]] = {name: set() for name in EDGES}
    for path in PACKAGE.rglob("*.py"):
        own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        found[own] |= {part(name) for name in imports(path) if name.startswith("mslaunch.")} - {own}
    assert {own: others - EDGES[own] for own, others in found.items() if others - EDGES[own]} == {}


def test_the_edges_have_no_cycle() -> None:
    """Whoever imports is above whoever is imported."""
    order: list[str] = []
    left = {name: others & EDGES.keys() for name, others in EDGES.items()}
    while left:
        free = [name for name, others in left.items() if others <= set(order)]
        assert free, f"a cycle among {sorted(left)}"
        order += free
        left = {name: others for name, others in left.items() if name not in free}


@pytest.mark.parametrize("package", PURE)
def test_what_decides_does_not_act(package: str) -> None:
    """Planning, rank tables and verdicts start no process and open no socket."""
    for path in (PACKAGE / package).rglob("*.py"):
        assert not IMPURE & {name.split(".")[0] for name in imports(path)}, path.name


NOUNS = {"join", "kubernetes"}
"""Names of transports that are also a verb of the command line and a setting."""


def transport_names(module: ast.AST) -> Iterator[int]:
    """The lines that name a transport, or compare with a name that means other things too."""
    for node in ast.walk(module):
        names = set(BUILT_IN)
        if not isinstance(node, (ast.Compare, ast.match_case)):
            names -= NOUNS
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and part.value in names:
                yield part.lineno


def test_no_module_outside_asks_which_transport_it_is() -> None:
    """What differs between transports is a member of theirs; elsewhere nobody compares with their five names."""
    places = []
    for path in PACKAGE.rglob("*.py"):
        if "transports" in path.parts or path.name == "model.py":
            continue
        places += [(path.name, line) for line in transport_names(ast.parse(path.read_text()))]
    assert places == []


METHOD_NAMES = {"dynamic", "msrun", "mpirun", "rank-table"}


def compared_names(path: Path) -> Iterator[tuple[str, int]]:
    """Every line of a module that compares something with the name of a method, or looks it up in a list of them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.Compare, ast.match_case)):
            tests = [*node.comparators, node.left] if isinstance(node, ast.Compare) else [node.pattern]
            texts = {part.value for test in tests for part in ast.walk(test) if isinstance(part, ast.Constant)}
            if texts & METHOD_NAMES:
                yield str(path.relative_to(PACKAGE)), tests[0].lineno


def test_no_module_asks_which_method_it_is() -> None:
    """What differs between methods is a property of theirs; nobody compares with their names."""
    assert set(METHODS) == METHOD_NAMES
    assert [place for path in PACKAGE.rglob("*.py") for place in compared_names(path)] == []


@pytest.mark.parametrize("package", OWN)
def test_what_travels_needs_nothing_installed(package: str) -> None:
    """What travels to hosts imports the standard library, its own package and `shared`."""
    for path in (PACKAGE / package).rglob("*.py"):
        for name in imports(path):
            top = name.split(".")[0]
            allowed = (
                name == "mslaunch" or name.startswith(OWN[package]) or top in sys.stdlib_module_names or top in OPTIONAL
            )
            assert allowed, f"{path.name} imports {name}"


def test_both_sides_of_the_stack_signal_mean_the_same() -> None:
    """The worker writes it as a number, to spare itself an import."""
    assert worker_main.STACK_SIGNAL == agent_stacks.STACK_SIGNAL


def test_help_imports_nothing_heavy() -> None:
    """`mslaunch --help` is quick because it loads none of the libraries and looks for no plug-in."""
    code = "import sys; from mslaunch.cli import run; run(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"typer", "rich", "pydantic", "yaml", "jinja2", "numpy", "importlib.metadata"}
    assert not heavy & set(done.stdout.split())


PROGRAMS = ("agent", "worker", "runtime", "shared", "interrupts.py", "transports/kubernetes/pod.py")
"""What runs as a program of its own, or ends the command before it has begun."""


def test_only_the_command_line_prints_and_exits() -> None:
    """Everything else returns values or raises; typer is imported in cli alone."""
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE).as_posix()
        if place.startswith(("cli/", *PROGRAMS)):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "sys.exit", "exit", "os._exit"):
                wrong.append(f"{place}:{node.lineno}")
        if "typer" in {name.split(".")[0] for name in imports(path)}:
            wrong.append(f"{place}: typer")
    assert wrong == []


def test_contributing_lists_every_package() -> None:
    """Its table has each package and module directly below mslaunch, and no other."""
    table = (PACKAGE.parent / "CONTRIBUTING.md").read_text().partition("| package |")[2].partition("\n\n")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if "mslaunch/" in row.split("|")[1]]
    listed = {name.removeprefix("mslaunch/") for row in rows for name in re.findall(r"`([^`]+)`", row)}
    there = {path.name for path in PACKAGE.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    there |= {path.name for path in PACKAGE.glob("*.py") if not path.name.startswith("__")}
    assert listed == there
