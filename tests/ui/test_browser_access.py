"""Who may ask `mslaunch ui` for what: a real server, asked by hand."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mslaunch.ui.access import HEADERS, PageAccess
from tests.beds.ui_bed import Ui, end_ui, shared_bench, start_ui
from tests.conftest import Bench, wait_for

WAIT = "import time\nprint('begun', flush=True)\ntime.sleep(600)\n"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A folder with one finished run."""
    with shared_bench(tmp_path_factory.mktemp("ui")) as made:
        made.write("train.py", "print('hello')")
        made.mslaunch("train", "--run-id", "first")
        yield made


@pytest.fixture(scope="module")
def ui(shown: Bench) -> Ui:
    """A server of that folder."""
    return start_ui(shown)


@pytest.mark.parametrize("path", ["/", "/script.js", "/api/runs", "/api/run?name=first", "/metrics", "/nothing"])
def test_nobody_is_answered_without_the_token(ui: Ui, path: str) -> None:
    """Not even whether something is there; nor with a wrong token."""
    assert ui.ask(path).status == 401
    assert ui.ask(path, Authorization="Bearer wrong").status == 401
    assert ui.ask(path, Cookie=f"mslaunch_{ui.port}=wrong").status == 401


def test_the_token_becomes_a_cookie_that_no_script_and_no_other_site_sees(ui: Ui) -> None:
    """And the address that is left has no token in it."""
    entered = ui.ask(f"/?token={ui.token}")
    cookie = entered.headers["set-cookie"]
    assert (entered.status, entered.headers["location"], entered.body) == (303, "/", b"")
    assert cookie.endswith("; Path=/; HttpOnly; SameSite=Strict")
    assert ui.ask("/api/runs", Cookie=cookie.partition(";")[0]).json[0]["name"] == "first"


@pytest.mark.parametrize("name", ["Cookie", "Authorization", "X-Other"])
def test_large_headers_are_refused_before_they_are_read(ui: Ui, name: str) -> None:
    """Anybody may send them; smaller ones are split at semicolons and cost as much as they are long."""
    for unit in ('"\\', "a=", ";", " "):
        assert ui.ask("/api/runs", **{name: f"x{unit * (29 << 10)}x"}).status == 431
        assert ui.ask("/api/runs", **{name: f"x{unit * (7 << 10)}x"}).status == 401
    assert ui.ask(f"/?token={'x' * (17 << 10)}").status == 431
    among = f'other="a b"; mslaunch_{ui.port}={ui.token} ;last'
    assert ui.ask("/api/runs", Cookie=among).status == 200


def test_the_token_is_in_no_command_line_and_no_later_output(shown: Bench) -> None:
    """Requests are logged nowhere, wrong ones included."""
    ui = start_ui(shown)
    ui.ask(f"/?token={ui.token}")
    ui.get("/api/run", name="nothing")
    ui.ask("/\\..", Authorization=f"Bearer {ui.token}")
    command = Path(f"/proc/{ui.process.pid}/cmdline").read_text()
    assert ui.token not in command + end_ui(ui)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil", ""])
def test_a_name_that_was_made_to_lead_here_is_refused(ui: Ui, host: str) -> None:
    """DNS rebinding: a foreign page's own name now has this machine's address."""
    assert ui.ask("/api/runs", Host=host, Authorization=f"Bearer {ui.token}").status == 421
    assert ui.ask(f"/?token={ui.token}", Host=host).status == 421


@pytest.mark.parametrize("host", ["localhost", "localhost:9000", "127.0.0.1:9000", "[::1]:9000"])
def test_addresses_and_localhost_are_answered_on_any_port(ui: Ui, host: str) -> None:
    """A tunnel has a port of its own."""
    assert ui.ask("/api/runs", Host=host, Authorization=f"Bearer {ui.token}").status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/api/run?name=../first",
        "/api/run?name=/etc",
        "/api/log?name=first/../first&rank=0",
        "/api/log?name=..%2ffirst&rank=0",
        "/api/log?name=first%00&rank=0",
        "/api/log?name=first&rank=../../0",
        "/api/log?name=first&rank=0&attempt=../../x",
        "/api/search?name=first&rank=0&find=x&at=-1",
    ],
)
def test_no_path_leads_out_of_the_folder(ui: Ui, path: str) -> None:
    """Names are looked up in the list of runs, and numbers are numbers."""
    found = ui.ask(path, Authorization=f"Bearer {ui.token}")
    assert found.status in (400, 404)
    assert b"root:" not in found.body


def test_a_run_of_another_folder_is_not_shown(ui: Ui, shown: Bench) -> None:
    """By its path, as the command line would find it."""
    shown.mslaunch("train", "--runs-dir", "elsewhere", "--run-id", "other")
    assert ui.get("/api/run", name=str(shown.folder / "elsewhere" / "other")).status == 404


@pytest.mark.parametrize("path", ["/", "/api/runs", "/api/run?name=first", "/api/run?name=nothing", "/nothing"])
def test_every_answer_has_strict_headers(ui: Ui, path: str) -> None:
    """Refusals included."""
    for headers in ({}, {"Authorization": f"Bearer {ui.token}"}):
        found = ui.ask(path, **headers).headers
        assert {name: found.get(name.lower()) for name in HEADERS} == HEADERS


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Mslaunch": "1", "Origin": "https://evil.example"},
        {"X-Mslaunch": "1", "Origin": "null"},
        {"X-Mslaunch": "1", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://127.0.0.1:1"},
    ],
)
def test_another_page_cannot_act(ui: Ui, headers: dict[str, str]) -> None:
    """Even with the cookie, a POST needs a header that only the own page can send, and its origin."""
    for path in ("/api/stop?name=first", "/api/stacks?name=first"):
        assert ui.ask(path, "POST", Cookie=f"mslaunch_{ui.port}={ui.token}", **headers).status == 403
    assert ui.get("/api/stop", name="first").status == 405


def test_a_run_is_not_stopped_unless_that_was_allowed(bench: Bench) -> None:
    """`--allow-stop` allows it."""
    bench.write("train.py", WAIT)
    bench.start("train", "--run-id", "long")
    wait_for(lambda: "begun" in bench.log(0), "the rank to begin")
    refused = start_ui(bench).post("/api/stop", name="long")
    assert (refused.status, refused.json["error"]) == (400, "Stopping is off. Start `mslaunch ui` with --allow-stop.")
    assert bench.record("long")["state"] == "running"
    assert start_ui(bench, "--allow-stop").post("/api/stop", name="long").json == {"state": "stopped"}
    assert bench.record("long")["state"] == "stopped"


def test_others_do_not_reach_it_unless_told(ui: Ui, shown: Bench) -> None:
    """It listens on 127.0.0.1 alone; with --host it says that nothing is encrypted."""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", ui.port), timeout=10)
    wide = start_ui(shown, "--host", "0.0.0.0")
    socket.create_connection(("127.0.0.2", wide.port), timeout=10).close()
    assert wide.process.stdout is not None
    assert "nothing is encrypted on the way" in wide.process.stdout.readline()
    assert wide.ask("/api/runs", Host=f"{socket.gethostname()}:1", Authorization=f"Bearer {wide.token}").status == 200


def test_a_token_is_kept_in_a_file_that_others_cannot_read(shown: Bench) -> None:
    """It is made once, and one that others can read is refused."""
    first, second = (start_ui(shown, "--token-file", "token") for _ in range(2))
    path = shown.folder / "token"
    assert first.token == second.token == path.read_text().strip()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    refused = shown.mslaunch("ui", "--token-file", "token")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "others can read the token. Run chmod 600 token" in refused.stderr


def test_a_busy_port_is_told_in_one_sentence(ui: Ui, shown: Bench) -> None:
    """And where none is named, another one is chosen."""
    refused = shown.mslaunch("ui", "--port", str(ui.port))
    assert refused.returncode == 3
    assert refused.stderr == (
        f"mslaunch: 127.0.0.1:{ui.port}: cannot listen there (Address already in use). "
        "Give another --port, or leave it out and a free one is chosen.\n"
    )


@pytest.mark.parametrize("missing", ["starlette", "uvicorn", "prometheus_client"])
def test_what_is_not_installed_is_told_with_the_command_that_installs_it(missing: str) -> None:
    """The extra is for this verb alone."""
    code = f"import sys; sys.modules[{missing!r}] = None; from mslaunch.cli import run; sys.exit(run(['ui']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 3
    assert done.stderr.endswith("and `mslaunch ui` needs it. Run pip install '.[ui]' in the clone of mslaunch.\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [["--help"], ["train", "--dry-run", "train.py"], ["ps"], ["status", "--help"]])
def test_other_verbs_load_nothing_of_it(shown: Bench, words: list[str]) -> None:
    """`mslaunch --help` and `train` are as quick as before."""
    code = f"import sys; from mslaunch.cli import run; run({words!r}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=shown.folder, capture_output=True, text=True, check=True)
    loaded = {
        name for name in done.stdout.split() if name.startswith(("mslaunch.ui", "starlette", "uvicorn", "prometheus"))
    }
    assert loaded == set()


def test_a_host_name_counts_where_others_may_reach_the_server() -> None:
    """Only the machine's own."""
    access = PageAccess("t" * 30, "c", frozenset({"node1"}))
    headers = {"authorization": f"Bearer {'t' * 30}"}
    assert access.judge("GET", {**headers, "host": "node1:8390"}) is None
    assert access.judge("GET", {**headers, "host": "node2:8390"}) is not None
    assert access.judge("GET", {**headers, "host": "[::1"}) is not None
    assert access.judge("DELETE", {**headers, "host": "node1"}) is not None


def test_a_folder_that_is_not_there_is_refused(bench: Bench) -> None:
    """A page without runs would hide the slip of the pen."""
    done = bench.mslaunch("ui", "--runs-dir", "nosuch")
    assert (done.returncode, done.stderr) == (
        2,
        "mslaunch: --runs-dir nosuch: no such folder. Name one that holds runs.\n",
    )


def test_the_folder_and_the_way_to_end_are_told(bench: Bench) -> None:
    """In one line below the address."""
    output = start_ui(bench).process.stdout
    assert output is not None
    assert output.readline() == f"Shows the runs in {bench.runs}. Ctrl-C ends it.\n"
