"""Whether a script takes the argument that names its configuration, as far as its text and that of its modules show."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

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
