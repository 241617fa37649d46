"""MindSpore's scheduler as a program of its own: nothing of the user's script, and only the C++ half of MindSpore."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import types
from collections.abc import Callable

_GRAPH_MODE = 0  # MindSpore 2.0 refuses to form a cluster in the other one, which is its default


def run() -> None:
    """Serve the cluster until it is dissolved."""
    try:
        try:
            init_cluster = _light()
        except Exception:  # a MindSpore that is laid out differently: take the long way
            sys.modules.pop("mindspore", None)
            import mindspore
            from mindspore.communication import init as init_cluster  # type: ignore[no-redef]

            mindspore.set_context(mode=_GRAPH_MODE)
        init_cluster()
        if _version().startswith("2.0."):  # there it returns once the cluster has formed, and later ones serve it
            while True:
                signal.pause()  # until it is ended, as soon as all ranks have
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    # Leave without the interpreter's exit handlers: MindSpore's would import the Python half only to finish it.
    os._exit(0)


def _version() -> str:
    spec = importlib.util.find_spec("mindspore")
    folder = os.path.dirname(spec.origin) if spec and spec.origin else ""
    try:
        with open(os.path.join(folder, "version.py"), encoding="utf-8") as file:
            return file.read().partition("__version__")[2].strip(" =\n'\"")
    except OSError:
        return ""


def _light() -> Callable[[], None]:
    """Load MindSpore's extension module without its package: 0.3 s in place of 1.7 s, on a core the ranks need."""
    spec = importlib.util.find_spec("mindspore")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'mindspore'")
    package = types.ModuleType("mindspore")
    package.__path__ = list(spec.submodule_search_locations)
    package.__spec__ = spec
    package.__file__ = spec.origin
    sys.modules["mindspore"] = package
    from mindspore import _c_expression

    context = _c_expression.MSContext.get_instance()
    context.set_param(_c_expression.ms_ctx_param.mode, _GRAPH_MODE)
    init_cluster: Callable[[], None] = _c_expression.init_cluster
    return init_cluster
