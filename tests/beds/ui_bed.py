"""A real `mslaunch ui`, and a client that asks it as a browser or as anybody else would."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from tests.conftest import Bench, wait_for


@dataclass(frozen=True)
class Reply:
    """What a server answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Ui:
    """A server that runs."""

    process: subprocess.Popen[str]
    url: str

    @property
    def port(self) -> int:
        return int(urlsplit(self.url).port or 0)

    @property
    def token(self) -> str:
        return parse_qs(urlsplit(self.url).query)["token"][0]

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, path: str, method: str = "GET", **headers: str) -> Reply:
        """Ask as anybody could."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        found = Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        connection.close()
        return found

    def get(self, path: str, **query: str | int) -> Reply:
        """Ask with the token."""
        return self.ask(f"{path}?{urlencode(query)}", Authorization=f"Bearer {self.token}")

    def post(self, path: str, **query: str | int) -> Reply:
        """Act as the page does."""
        allowed = {"Authorization": f"Bearer {self.token}", "X_Mslaunch": "1", "Origin": self.origin}
        return self.ask(f"{path}?{urlencode(query)}", "POST", **allowed)


def start_ui(bench: Bench, *options: str) -> Ui:
    """Start the server on a free port; it ends with the test."""
    process = bench.start("ui", "--port", "0", *options)
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line.startswith("http://"), line + process.stdout.read()
    return Ui(process, line)


def end_ui(ui: Ui) -> str:
    """End the server and return what it has printed since its address."""
    ui.process.terminate()
    rest = ui.process.stdout.read() if ui.process.stdout else ""
    wait_for(lambda: ui.process.poll() is not None, "the server to end")
    return rest


@contextmanager
def shared_bench(folder: Path) -> Iterator[Bench]:
    """A folder to launch from that many tests share; what was started in it is ended."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MSLAUNCH_", "PYTEST_"))}
    made = Bench(folder, {**env, "XDG_STATE_HOME": str(folder / "state")})
    yield made
    for process in made.started:
        process.terminate()
        process.wait(timeout=60)
        if process.stdout:
            process.stdout.close()
    assert made.leftovers() == []
