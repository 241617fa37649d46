"""`make shape`: how the tree looks from a distance, and what one launch walks through. Figures to look at, not limits.

python -m tools.shape                     # the tree, and the walk of `train -n 2`
python -m tools.shape -- infer ...        # the walk of another command
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "mslaunch"
VAGUE = frozenset(
    (
        *("found", "told", "one", "known", "wanted", "asked", "given", "words"),
        *("named", "kept", "heard", "meant", "shown", "taken", "said"),
    )
)
"""Names that say how a value was come by, and not what it is."""
BLAND = frozenset(("result", "item", "value", "data", "info", "entry"))
DEFAULT_WALK = ("train", "-n", "2", "--tail", "none", "noop.py")
TRACER = """
import atexit, json, os, sys, threading
root, out, argv = sys.argv[1], sys.argv[2], sys.argv[3:]
calls, main, pid = [], threading.get_ident(), os.getpid()

def profile(frame, event, arg):
    code = frame.f_code
    ours = code.co_filename.startswith(root) and code.co_flags & 1 and not code.co_name.startswith("<")
    if event != "call" or not ours or threading.get_ident() != main:
        return
    depth, above = 0, frame.f_back
    while above is not None:
        if above.f_code.co_filename.startswith(root):
            if above.f_code.co_name == "<module>":
                return
            depth += 1
        above = above.f_back
    calls.append((code.co_filename[len(root):], code.co_firstlineno, code.co_name, depth))

def save():
    sys.setprofile(None)
    if os.getpid() == pid:
        modules = [name for name in sys.modules if name.split(".")[0] == "mslaunch"]
        with open(out, "w") as file:
            json.dump({"calls": calls, "modules": modules}, file)

end = os._exit
os._exit = lambda code: (save(), end(code))
atexit.register(save)
sys.path.insert(0, os.path.dirname(root.rstrip("/")))
import mslaunch.cli
sys.setprofile(profile)
mslaunch.cli.main(argv)
"""


def tree_figures() -> dict[str, Any]:
    """Count modules, folders, repeated names and vague bindings."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
    lines = sum(path.read_text().count("\n") for path in trees)
    modules = [path for path in trees if path.name != "__init__.py"]
    folders = Counter(str(path.parent.relative_to(ROOT)) for path in modules)
    stems = Counter(path.stem for path in modules if path.relative_to(PACKAGE).parts[0] != "cli")
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    classes = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    bindings = Counter(name for tree in trees.values() for name in _bindings(tree))
    return {
        "lines": lines,
        "modules": len(modules),
        "folders over 20 modules": {name: count for name, count in folders.items() if count > 20},
        "modules with one importer": sum(len(users) == 1 for users in _importers(trees).values()),
        "module names twice (outside cli)": sorted(name for name, count in stems.items() if count > 1),
        "class names twice": sorted(name for name, count in classes.items() if count > 1),
        "vague bindings (%)": _share(bindings, VAGUE),
        "bland bindings (%)": _share(bindings, BLAND),
        "conditional expressions per 1,000 lines": _per_thousand(nodes, (ast.IfExp,), lines),
        "comprehensions per 1,000 lines": _per_thousand(
            nodes, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp), lines
        ),
    }


def _bindings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def _share(bindings: Counter[str], names: frozenset[str]) -> float:
    counted = sum(count for name, count in bindings.items() if name.strip("_") in names)
    return round(100 * counted / bindings.total(), 1)


def _per_thousand(nodes: list[ast.AST], kinds: tuple[type[ast.AST], ...], lines: int) -> float:
    return round(1000 * sum(isinstance(node, kinds) for node in nodes) / lines, 1)


def _importers(trees: dict[Path, ast.Module]) -> dict[str, set[Path]]:
    """Return the modules that import each module."""
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in trees if path.name != "__init__.py"}
    users: dict[str, set[Path]] = defaultdict(set)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    for name in {node.module, f"{node.module}.{alias.name}"} & names:
                        users[name].add(path)
    return users


def walk_figures(argv: tuple[str, ...] = DEFAULT_WALK) -> dict[str, Any]:
    """Run one command and count what it walks through in the launcher, in order of first visits."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "noop.py").write_text("pass\n")
        calls_file, tracer = Path(folder, "walk.json"), Path(folder, "tracer.py")
        tracer.write_text(TRACER)
        command = [sys.executable, str(tracer), f"{PACKAGE}/", str(calls_file), *argv]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if not calls_file.exists():
            sys.exit(f"{' '.join(argv)} left no calls: exit code {done.returncode}\n{done.stderr}")
        traced = json.loads(calls_file.read_text())
    visits = list(dict.fromkeys((file, line, name) for file, line, name, _ in traced["calls"]))
    packages = [file.split("/")[0] for file, _, _ in visits]
    parts = [name.split(".") for name in traced["modules"]]
    return {
        "exit code": done.returncode,
        "functions": len(visits),
        "files": len({file for file, _, _ in visits}),
        "package changes": sum(before != after for before, after in pairwise(packages)),
        "depth": max(depth for *_, depth in traced["calls"]),
        "modules imported": len(parts),
        "packages of transports": sorted({name[2] for name in parts if name[1:2] == ["transports"] and len(name) > 3}),
    }


def main() -> None:
    """Print both."""
    argv = tuple(sys.argv[sys.argv.index("--") + 1 :]) if "--" in sys.argv else DEFAULT_WALK
    for title, figures in (("tree", tree_figures()), (f"walk of {' '.join(argv)}", walk_figures(argv))):
        print(f"{title}:")
        for name, figure in figures.items():
            print(f"  {name}: {figure}")


if __name__ == "__main__":
    main()
