"""Starting the server: its token, its address, and what a person is told about them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

from mslaunch.errors import NotReadyError, RequestError
from mslaunch.runs.history import list_runs
from mslaunch.ui.access import Access
from mslaunch.ui.library import Library
from mslaunch.ui.server import listen, make_app, names_of, new_token, serve
from mslaunch.words import plain

SHORTEST_TOKEN = 20
LONGEST_TOKEN = 500
EVERYWHERE = ("0.0.0.0", "::")


def serve_runs(
    runs_dir: str, host: str, port: int | None, token_file: str | None, may_stop: bool, tell: Callable[[str], None]
) -> None:
    """Show the runs of a folder until a signal ends the program."""
    list_runs(Path(runs_dir))  # a folder that cannot be read is told now
    token = kept_token(Path(token_file)) if token_file else new_token()
    listening = listen(host, port)
    bound = listening.getsockname()[1]
    access = Access(token, f"mslaunch_{bound}", names_of(host))
    name = socket.gethostname() if host in EVERYWHERE else host
    shown = f"[{name}]" if ":" in name else name
    tell(f"http://{shown}:{bound}/?token={token}")
    if names_of(host):
        tell("note: others can reach this server, and nothing is encrypted on the way; an SSH tunnel would be safer")
    tell(f"Shows the runs in {plain(str(Path(runs_dir).absolute()))}. Ctrl-C ends it.")
    serve(listening, make_app(Library(runs_dir, may_stop), access, may_stop))


def kept_token(path: Path) -> str:
    """Return the token of a file, which is made where it is not there; others must not be able to read it."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _read_token(path)
    except OSError as error:
        raise NotReadyError(f"{path}: cannot write a token ({error.strerror}). Name another --token-file.") from None
    token = new_token()
    with os.fdopen(file, "w") as written:
        written.write(f"{token}\n")
    return token


def _read_token(path: Path) -> str:
    try:
        if path.stat().st_mode & 0o077:
            raise RequestError(
                f"{path}: others can read the token. Run chmod 600 {path}, or name another --token-file."
            )
        token = path.read_text(errors="replace")[: LONGEST_TOKEN + 1].strip()
    except OSError as error:
        raise NotReadyError(f"{path}: cannot read a token ({error.strerror}). Name another --token-file.") from None
    is_plain = token.isascii() and token.replace("-", "").replace("_", "").isalnum()
    if not is_plain or not SHORTEST_TOKEN <= len(token) <= LONGEST_TOKEN:
        raise RequestError(
            f"{path}: a token of {SHORTEST_TOKEN} letters and digits or more is wanted. Remove it: a new one is made."
        )
    return token
