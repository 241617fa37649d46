"""mslaunch.launch(): the rank's side. Calls a function that came as a pickle, and keeps what it returns."""

from __future__ import annotations

import os
import sys

from mslaunch.shared import layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class OtherPython(RuntimeError):
    """The ranks run another version of Python than the caller, and a pickled function needs the same one."""


def main() -> None:
    import base64
    import pickle

    if os.path.exists(_result_path()):  # of an earlier attempt
        os.unlink(_result_path())
    with open(os.path.join(os.environ["MSLAUNCH_RUN_DIR"], layout.CALL), "rb") as file:
        version, _, packed = file.read().partition(b"\n")
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if version.decode() != here:
        raise OtherPython(
            f"this rank runs Python {here}, and the caller Python {version.decode()}: a function can only be sent "
            f"between equal versions. Name a Python {version.decode()} with the setting python."
        )
    try:
        function, args, kwargs = pickle.loads(base64.b64decode(packed))
        result: Any = function(*args, **kwargs)
    except SystemExit as end:
        if not end.code:  # sys.exit() ends a rank well
            keep(("returned", None))
        raise
    except BaseException as error:
        keep(("raised", error))
        raise
    keep(("returned", result))


def keep(outcome: tuple[str, object]) -> None:
    """Write what the function returned or raised into the rank's folder."""
    path = _result_path()
    try:
        import cloudpickle

        data = cloudpickle.dumps(outcome)
    except Exception as error:
        import pickle

        data = pickle.dumps(("unpicklable", f"{type(error).__name__}: {error}"))
    with open(path + ".part", "wb") as file:
        file.write(data)
    os.replace(path + ".part", path)


def _result_path() -> str:
    return os.path.join(os.environ["MSLAUNCH_RUN_DIR"], layout.rank_folder(int(os.environ["RANK_ID"])), layout.RESULT)
