"""What is done when a run has ended: the command of `launch.on_end`, and the URL of `launch.webhook`.

Neither changes how the run ended. Both have a limit of time, and a signal ends the wait for them."""

from __future__ import annotations

import http.client
import json
import os
import select
import signal
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mslaunch.launcher.read import CARRIED, Hooks
from mslaunch.run.paths import RunFolder
from mslaunch.run.record import RunRecord
from mslaunch.settings.environment import RANKS_ONLY
from mslaunch.shared import layout
from mslaunch.shared.secret_names import MASK, looks_secret, without_credentials
from mslaunch.signals import ASKING, SignalSource
from mslaunch.text import first_line

ANSWER_SECONDS = 10.0
_WORTH_A_RETRY = (408, 425, 429)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST becomes a GET without a body: that is told, not followed."""

    def redirect_request(self, *_args: Any, **_more: Any) -> None:
        return None


def post(url: str, body: bytes) -> tuple[str, bool]:
    """Post once; return what went wrong, and whether another try may help."""
    head = {"Content-Type": "application/json", "User-Agent": "mslaunch"}
    try:
        request = urllib.request.Request(url, body, head, method="POST")
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=ANSWER_SECONDS):
            return "", False
    except urllib.error.HTTPError as error:
        error.close()
        return f"HTTP status {error.code}", error.code >= 500 or error.code in _WORTH_A_RETRY
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = getattr(error, "reason", None) or error
        return first_line(without_credentials(str(why).replace(url, "the URL"))), not isinstance(error, ValueError)


COMMAND_SECONDS = 60.0
WEBHOOK_SECONDS = 45.0
PAUSES = (1.0, 2.0, 4.0)
"""Seconds before each further try to post."""
KILL_AFTER = 2.0
TICK = 0.1
SHORTEST_SECRET = 6  # characters; a shorter value stands in many a word
_OF_LAUNCHER = (CARRIED, f"{RANKS_ONLY}{CARRIED}")
"""Variables that the command of launch.on_end does not get."""


def run_hooks(
    hooks: Hooks, folder: RunFolder, ended: RunRecord, environment: Mapping[str, str], signals: SignalSource | None
) -> list[str]:
    """Run both hooks at once, and return what went wrong in a sentence each."""
    record = without_secrets({**ended.to_dict(), "run_dir": str(folder.path)}, environment)
    post = _Post(hooks.webhook, _message(record)) if hooks.webhook else None
    command = _Command(hooks, folder, record, environment) if hooks.on_end else None
    waiting: list[_Post | _Command] = [hook for hook in (command, post) if hook is not None]
    while waiting and not _is_asked_to_end(signals):
        waiting = [hook for hook in waiting if not hook.is_over()]
    for hook in waiting:
        hook.give_up("ended by a signal")
    return [hook.problem for hook in (command, post) if hook is not None and hook.problem]


def _is_asked_to_end(signals: SignalSource | None) -> bool:
    """Wait a moment; tell whether a signal has come that asks for the end."""
    if signals is None:
        time.sleep(TICK)
        return False
    select.select([signals.fileno()], [], [], TICK)
    return any(number not in ASKING for number in signals.read())


def without_secrets(record: dict[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """The record as it may leave the run's folder: a traceback may quote the value of a secret variable."""
    values = {value for name, value in environment.items() if looks_secret(name) and len(value) >= SHORTEST_SECRET}
    longest_first = sorted(values, key=len, reverse=True)

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            for secret in longest_first:
                value = value.replace(secret, MASK)
            return without_credentials(value)
        if isinstance(value, Mapping):
            return {name: clean(inner) for name, inner in value.items()}
        return [clean(inner) for inner in value] if isinstance(value, list | tuple) else value

    cleaned: dict[str, Any] = clean(record)
    return cleaned


def summary_of(record: Mapping[str, Any]) -> str:
    """Say in one line how a run ended, for a chat or the subject of a mail."""
    verdict = record["verdict"] or {}
    rank = verdict.get("rank")
    who = "" if rank is None else f"rank {rank}: "
    why = f": {who}{first_line(verdict['summary'])}" if verdict.get("summary") else ""
    return f"mslaunch run {record['run_id']} {record['state']}{why}"


def _message(record: Mapping[str, Any]) -> dict[str, Any]:
    """What is posted: the record, without a row for each rank, and `text`, which chat services show."""
    return {"text": summary_of(record), **{name: value for name, value in record.items() if name != "ranks"}}


def variables(record: Mapping[str, Any]) -> dict[str, str]:
    """What the command is told. Not MSLAUNCH_RUN_DIR: whatever has that in its environment is ended with the run."""
    code = record["exit_code"]
    return {
        "MSLAUNCH_ENDED_RUN": record["run_id"],
        "MSLAUNCH_ENDED_DIR": record["run_dir"],
        "MSLAUNCH_ENDED_STATE": record["state"],
        "MSLAUNCH_ENDED_CODE": "" if code is None else str(code),
        "MSLAUNCH_ENDED_TEXT": summary_of(record).replace("\0", ""),
    }


class _Command:
    """The command of launch.on_end, in a session of its own; what it prints goes to a file of the run."""

    def __init__(
        self, hooks: Hooks, folder: RunFolder, record: Mapping[str, Any], environment: Mapping[str, str]
    ) -> None:
        self.problem = ""
        self._log = folder.path / layout.ON_END_LOG
        self._until = time.monotonic() + COMMAND_SECONDS
        self._process: subprocess.Popen[bytes] | None = None
        env = {name: value for name, value in environment.items() if name not in _OF_LAUNCHER}
        try:
            with tempfile.TemporaryFile() as told, self._log.open("ab") as log:
                told.write(json.dumps(record, indent=1).encode())
                told.seek(0)
                self._process = subprocess.Popen(
                    ["/bin/sh", "-c", str(hooks.on_end)],
                    stdin=told,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=hooks.submit_dir if Path(hooks.submit_dir).is_dir() else None,
                    env={**env, **variables(record)},
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:
            self.problem = f"launch.on_end could not be started: {error}"

    def is_over(self) -> bool:
        if self._process is None:
            return True
        code = self._process.poll()
        if code is None and time.monotonic() > self._until:
            self.give_up(f"ended after {COMMAND_SECONDS:.0f} s")
            return True
        if code:
            self.problem = f"launch.on_end ended with code {code}; see {self._log}"
        return code is not None

    def give_up(self, why: str) -> None:
        """End the command with all that it has started in its session."""
        self.problem = f"launch.on_end was {why}; see {self._log}"
        if self._process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(KILL_AFTER)


class _Post(threading.Thread):
    """Posts a message to launch.webhook, several times where that may help. A thread: an answer may never end."""

    def __init__(self, url: str, message: dict[str, Any]) -> None:
        super().__init__(name="mslaunch webhook", daemon=True)
        parts = urlsplit(url)
        self._host = f"{parts.scheme}://{parts.hostname}"
        self._url, self._body = url, json.dumps(message).encode()
        self._until = time.monotonic() + WEBHOOK_SECONDS
        self._last = "no answer"
        self._given_up = threading.Event()
        self.problem = ""
        self.start()

    def run(self) -> None:

        for pause in (*PAUSES, None):
            error, retry = post(self._url, self._body)
            if not error or self._given_up.is_set():
                return
            self._last = error
            if pause is None or not retry:
                self.problem = f"launch.webhook: {self._host} did not take the message: {error}"
                return
            if self._given_up.wait(pause):
                return

    def is_over(self) -> bool:
        if self.is_alive() and time.monotonic() > self._until:
            self.give_up(f"ended after {WEBHOOK_SECONDS:.0f} s")
            return True
        return not self.is_alive()

    def give_up(self, why: str) -> None:
        self._given_up.set()
        self.problem = f"launch.webhook: {self._host}: {why}; the last answer was: {self._last}"
