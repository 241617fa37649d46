"""What a rank runs: finds a script or module as Python itself would, or becomes another program."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing itself costs every rank 10 ms
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any, NoReturn


class Main:
    """What becomes __main__: its file, the names that it has before it runs, and its code."""

    def __init__(self, file: str, names: dict[str, Any], code: Callable[[], CodeType]) -> None:
        self.file = file
        self.names = names
        self.code = code


def find_script(path: str) -> Main:
    """A script; its folder is the first place that its imports are looked for."""
    from importlib.machinery import SourceFileLoader

    def code() -> CodeType:
        with open(path, "rb") as file:
            return compile(file.read(), path, "exec", dont_inherit=True)

    _look_first_in(os.path.dirname(path))
    return Main(path, {"__cached__": None, "__loader__": SourceFileLoader("__main__", path)}, code)


def find_module(name: str, folder: str) -> Main:
    """A module, or the __main__ of a package: looked for in the job's folder first, then where Python looks."""
    from importlib.util import find_spec

    _look_first_in(folder)
    spec = _spec(find_spec, name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _spec(find_spec, f"{name}.__main__")
    if spec is None or spec.origin is None or not hasattr(spec.loader, "get_code"):
        print(f"{sys.executable}: No module named {name}", file=sys.stderr)
        sys.exit(1)
    names = {
        "__spec__": spec,
        "__package__": spec.parent,
        "__cached__": spec.cached,
        "__loader__": spec.loader,
    }
    return Main(spec.origin, names, lambda: spec.loader.get_code(spec.name))


def _spec(find_spec: Callable[[str], Any], name: str) -> Any:
    try:
        return find_spec(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            return None
        raise  # what the package imports is missing, not the package


def _look_first_in(folder: str) -> None:
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, folder)


def run_executable(name: str, args: list[str]) -> NoReturn:
    """Become another program: `python` is this Python; other names are looked for on PATH, then beside this Python."""
    program = sys.executable if name == "python" else name
    beside = os.path.join(os.path.dirname(sys.executable), program)
    try:
        try:
            os.execvp(program, [program, *args])
        except FileNotFoundError:
            os.execv(beside, [program, *args])
    except OSError as error:
        code, fix = 126, "Check its name and PATH"
        if isinstance(error, PermissionError):
            fix = "Make it executable (chmod +x)"
        elif isinstance(error, FileNotFoundError):
            code = 127
        print(f"mslaunch: cannot run {name}: {error.strerror}. {fix}.", file=sys.stderr)
        os._exit(code)
