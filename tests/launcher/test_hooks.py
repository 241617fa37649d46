"""`launch.on_end` and `launch.webhook`: told of every end, and never the reason for another one."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import mslaunch
from mslaunch.launcher import hooks
from mslaunch.launcher.read import CARRIED
from mslaunch.plan.model import to_json
from mslaunch.settings.yaml_config import without_secrets
from tests.beds.launch_bed import planned
from tests.conftest import Bench, wait_for

ON_END = 'cat > ended.json; echo "$MSLAUNCH_ENDED_RUN $MSLAUNCH_ENDED_STATE $MSLAUNCH_ENDED_CODE" >> ends.txt'


@dataclass
class Server:
    """A web server that answers with these codes, the last one for ever, and keeps what it was sent."""

    url: str
    codes: list[int]
    bodies: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)


@contextmanager
def serving(*codes: int) -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.bodies.append(json.loads(body))
            found.paths.append(self.path)
            code = found.codes.pop(0) if len(found.codes) > 1 else found.codes[0]
            self.send_response(code)
            if code in (301, 302):
                self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Server(f"http://127.0.0.1:{server.server_port}/T0/s3cr3t-path", list(codes))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def config(bench: Bench, **settings: str) -> None:
    lines = "".join(f"  {name}: {json.dumps(value)}\n" for name, value in settings.items())
    bench.write("cfg.yaml", f"launch:\n  script: train.py\n  workers: 2\n{lines}")


def ends(bench: Bench) -> list[str]:
    path = bench.folder / "ends.txt"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize(
    ("script", "said"), [("print(1)\n", "succeeded 0"), ("raise SystemExit(4)\n", "failed 4")], ids=["good", "bad"]
)
def test_the_command_is_told_how_a_run_ended(bench: Bench, script: str, said: str) -> None:
    """By variables, and by the record on its standard input; where the job was launched."""
    bench.write("train.py", script)
    config(bench, on_end=ON_END)
    done = bench.mslaunch("train", "--config", "cfg.yaml", "--run-id", "one")
    assert ends(bench) == [f"one {said}"]
    told = json.loads((bench.folder / "ended.json").read_text())
    assert told["run_dir"] == str(bench.runs / "one")
    assert (told["state"], told["exit_code"], len(told["ranks"])) == (*bench_end(bench), 2)
    assert done.returncode == told["exit_code"]


def bench_end(bench: Bench) -> tuple[str, int]:
    found = bench.record("one")
    return found["state"], found["exit_code"]


def test_the_command_is_told_of_a_stop(bench: Bench) -> None:
    """Ctrl-C ends the job, not what is to be done then."""
    bench.write("train.py", "import time\nprint('up')\ntime.sleep(600)\n")
    config(bench, on_end=ON_END)
    run = bench.start("train", "--config", "cfg.yaml", "--run-id", "one", "--tail", "none")
    wait_for(lambda: (bench.runs / "one" / "rank_1" / "log.txt").exists() and bench.log(1), "rank 1")
    run.send_signal(signal.SIGINT)
    assert run.wait(120) == 130
    assert ends(bench) == ["one stopped 130"]


def test_the_command_is_told_of_the_end_of_a_detached_run(bench: Bench) -> None:
    """Whoever started it has gone."""
    bench.write("train.py", "print(1)\n")
    config(bench, on_end=ON_END)
    bench.mslaunch("train", "--config", "cfg.yaml", "--run-id", "one", "--detach")
    wait_for(lambda: ends(bench), "the command")
    assert ends(bench) == ["one succeeded 0"]


def test_the_command_is_told_of_a_run_of_a_program(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """run() returns when it has been."""
    monkeypatch.chdir(bench.folder)
    script = bench.write("train.py", "print(1)\n")
    mslaunch.Job(script, workers=1, run_id="one", on_end=ON_END).run()
    assert ends(bench) == ["one succeeded 0"]


def test_a_command_that_fails_changes_nothing_and_is_told(bench: Bench) -> None:
    """The exit code and the state are the run's; one note says what happened, and a file has the output."""
    bench.write("train.py", "print(1)\n")
    config(bench, on_end="echo no such thing; exit 7")
    done = bench.mslaunch("train", "--config", "cfg.yaml", "--run-id", "one")
    assert done.returncode == 0
    assert bench_end(bench) == ("succeeded", 0)
    (note,) = [note for note in bench.record("one")["notes"] if "on_end" in note]
    assert "ended with code 7" in note
    assert note in done.stdout
    assert (bench.runs / "one" / "on_end.log").read_text() == "no such thing\n"


def test_a_command_has_a_limit_of_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended with all that it has started."""
    monkeypatch.setattr(hooks, "COMMAND_SECONDS", 0.2)
    bench_script = tmp_path / "train.py"
    bench_script.write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    command = "echo $$ > pid; sleep 600 & wait"
    result = mslaunch.Job(bench_script, workers=1, runs_dir=tmp_path / "runs", on_end=command).run()
    assert result.succeeded
    (note,) = json.loads((result.path / "run.json").read_text())["notes"]
    assert "launch.on_end was ended after" in note
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


def test_a_signal_ends_the_wait_for_a_command(bench: Bench) -> None:
    """Nobody has to wait for a hook that hangs; the run is what it was."""
    bench.write("train.py", "print(1)\n")
    config(bench, on_end="touch begun; sleep 600")
    run = bench.start("train", "--config", "cfg.yaml", "--run-id", "one")
    wait_for((bench.folder / "begun").exists, "the command")
    run.send_signal(signal.SIGINT)
    assert run.wait(120) == 0
    assert bench_end(bench) == ("succeeded", 0)
    assert any("ended by a signal" in note for note in bench.record("one")["notes"])


def test_a_message_is_posted_again_until_it_is_taken(bench: Bench) -> None:
    """A server that fails twice gets it a third time; then nothing is said of it."""
    bench.write("train.py", "raise ValueError('boom')\n")
    with serving(500, 503, 200) as server:
        config(bench, webhook=server.url)
        done = bench.mslaunch("train", "--config", "cfg.yaml", "--run-id", "one")
    assert done.returncode == 1
    assert len(server.bodies) == 3
    told = server.bodies[-1]
    assert told["text"].startswith("mslaunch run one failed: rank ")
    assert "boom" in told["text"]
    assert (told["state"], told["exit_code"], told["run_id"]) == ("failed", 1, "one")
    assert "ranks" not in told
    assert not any("webhook" in note for note in bench.record("one")["notes"])


@pytest.mark.parametrize(("code", "tries"), [(404, 1), (302, 1), (500, 1 + len(hooks.PAUSES))])
def test_a_message_that_is_not_taken_is_told_in_one_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, tries: int
) -> None:
    """What another try cannot mend is not tried again; the URL, which may be a secret, is not in the note."""
    monkeypatch.setattr(hooks, "PAUSES", (0.01,) * len(hooks.PAUSES))
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    with serving(code) as server:
        result = mslaunch.Job(script, workers=1, runs_dir=tmp_path / "runs", webhook=server.url).run()
    assert result.succeeded
    assert len(server.bodies) == tries
    (note,) = json.loads((result.path / "run.json").read_text())["notes"]
    assert f"HTTP status {code}" in note
    assert "s3cr3t" not in note


def test_a_server_that_is_not_there_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told what the system said."""
    monkeypatch.setattr(hooks, "PAUSES", (0.01,))
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    result = mslaunch.Job(script, workers=1, runs_dir=tmp_path / "runs", webhook="http://127.0.0.1:9/x").run()
    assert result.succeeded
    assert "Connection refused" in json.loads((result.path / "run.json").read_text())["notes"][0]


def test_secrets_leave_the_run_in_no_message(bench: Bench) -> None:
    """A value that the script itself has printed into its exception is masked, and so is a login in a URL."""
    bench.write("train.py", "import os\nraise ValueError(os.environ['HF_TOKEN'] + ' https://me:pw12@host/x')\n")
    with serving(200) as server:
        config(bench, webhook=server.url, on_end="cat > ended.json")
        bench.mslaunch("train", "--config", "cfg.yaml", "--env", "HF_TOKEN", HF_TOKEN="hf_s3cr3tvalue")
    sent = json.dumps(server.bodies) + (bench.folder / "ended.json").read_text()
    assert "ValueError" in sent
    assert "hf_s3cr3tvalue" not in sent
    assert "pw12" not in sent


def test_the_url_is_in_no_file_of_the_run(bench: Bench) -> None:
    """Chat services have their token in it, and a run's folder may be given away."""
    bench.write("train.py", "print(1)\n")
    with serving(200) as server:
        done = bench.mslaunch("train", "-n", "1", "--run-id", "one", MSLAUNCH_WEBHOOK=server.url)
        assert "s3cr3t" not in done.stdout + done.stderr
    assert server.paths == ["/T0/s3cr3t-path"]
    files = [path for path in (bench.runs / "one").rglob("*") if path.is_file()]
    assert [path for path in files if b"s3cr3t" in path.read_bytes()] == []


def holding_url(folder: Path) -> list[str]:
    """The files below a folder that hold the URL's secret part, but for the user's own config."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "cfg.yaml"]
    return [str(path) for path in files if b"s3cr3t" in path.read_bytes()]


@pytest.mark.parametrize("given", ["--set", "Job", "Job values"])
def test_the_url_is_in_no_file_however_it_is_given(bench: Bench, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    """By an option, as a setting of a program, or among a program's values."""
    bench.write("train.py", "print(1)\n")
    monkeypatch.chdir(bench.folder)
    with serving(200) as server:
        if given == "--set":
            bench.mslaunch("train", "-n", "1", "--set", f"launch.webhook={server.url}")
        else:
            settings: dict[str, Any] = (
                {"webhook": server.url} if given == "Job" else {"values": {"launch.webhook": server.url}}
            )
            mslaunch.Job("train.py", workers=1, **settings).run()
    assert len(server.bodies) == 1
    assert holding_url(bench.runs) == []


URL = "https://chat.example.com/s3cr3t-path"


@pytest.mark.parametrize("transport", ["slurm", "kubernetes"])
@pytest.mark.parametrize("given", [{"webhook": URL}, {"values": {"launch.webhook": URL}}], ids=["setting", "value"])
def test_the_url_goes_with_a_queues_job_and_is_not_in_its_files(
    transport: str, given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is among the secrets, which the queue carries another way."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print(1)\n")
    settings: dict[str, Any] = {"transport": transport, "nodes": 1} | (
        {"image": "i"} if transport == "kubernetes" else {}
    )
    job = planned(mslaunch.Job("train.py", workers=1, **settings, **given).request)
    assert job.site.secrets == {CARRIED: URL}
    assert [file.path for file in job.plan.files if "s3cr3t" in file.content] == []
    assert "s3cr3t" not in to_json(job.plan)


def test_a_queues_job_is_told_that_there_is_no_webhook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its environment may have a variable that --set launch.webhook=null outweighs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MSLAUNCH_WEBHOOK", URL)
    Path("train.py").write_text("print(1)\n")
    job = mslaunch.Job("train.py", workers=1, transport="slurm", nodes=1, values={"launch.webhook": None})
    (script,) = [file.content for file in job.plan().files if file.path.endswith("job.sbatch")]
    assert "--set=launch.webhook=null" in script
    assert "s3cr3t" not in script


@pytest.mark.parametrize("given", ["--set", "config", "variable", "api"])
def test_a_sweep_has_the_url_in_no_file(bench: Bench, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    """All its runs post to it; whoever resumes it is asked for the URL, or says that there is none."""
    bench.write("train.py", "import os, sys\nsys.exit(os.path.exists(os.environ['MSLAUNCH_SUBMIT_DIR'] + '/fail'))\n")
    bench.write("fail", "")
    monkeypatch.chdir(bench.folder)
    with serving(200) as server:
        webhook = f"  webhook: {server.url}\n" if given == "config" else ""
        bench.write("cfg.yaml", f"seed: 1\nlaunch:\n  config_arg: null\n{webhook}")
        args = ("sweep", "-n", "1", "-c", "cfg.yaml", "--run-id", "s", "--set", "seed=1,2")
        if given == "api":
            job = mslaunch.Job("train.py", config="cfg.yaml", workers=1, run_id="s", webhook=server.url)
            mslaunch.sweep(job, {"seed": [1, 2]})
        else:
            also = ("--set", f"launch.webhook={server.url}") if given == "--set" else ()
            environment = {"MSLAUNCH_WEBHOOK": server.url} if given == "variable" else {}
            shown = bench.mslaunch(*args, *also, **environment)
            assert "s3cr3t" not in shown.stdout + shown.stderr
        assert len(server.bodies) == 2
        assert holding_url(bench.runs) == []
        (bench.folder / "fail").unlink()
        refused = bench.mslaunch("sweep", "--resume", "s")
        assert refused.returncode == 2
        assert "s was started with a webhook, whose URL is in no file. Export it as MSLAUNCH_WEBHOOK" in refused.stderr
        again = bench.mslaunch("sweep", "--resume", "s", "--set", f"launch.webhook={server.url}")
        assert again.returncode == 0, again.stdout + again.stderr
        assert len(server.bodies) == 4
    assert holding_url(bench.runs) == []


def test_a_sweep_goes_on_without_its_webhook(bench: Bench) -> None:
    """Where that is said."""
    bench.write("train.py", "import os, sys\nsys.exit(os.path.exists(os.environ['MSLAUNCH_SUBMIT_DIR'] + '/fail'))\n")
    bench.write("fail", "")
    args = ("sweep", "-n", "1", "--run-id", "s", "--set", "launch.grace=1,2")
    with serving(200) as server:
        bench.mslaunch(*args, MSLAUNCH_WEBHOOK=server.url)
        (bench.folder / "fail").unlink()
        done = bench.mslaunch("sweep", "--resume", "s", "--set", "launch.webhook=null")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(server.bodies) == 2


def test_runs_of_a_sweep_have_one_webhook(bench: Bench) -> None:
    """Several would be values of the table."""
    bench.write("train.py", "print(1)\n")
    done = bench.mslaunch("sweep", "-n", "1", "--set", f"launch.webhook={URL},{URL}2")
    assert done.returncode == 2
    assert "--set launch.webhook: it holds a secret, which is the same for all runs of a sweep" in done.stderr


def test_a_copy_of_the_config_has_no_url() -> None:
    """As a queue's job and a sweep keep it; an alias is left where it stands."""
    assert without_secrets("launch:\n  webhook: http://h/t\n  workers: 2\n") == (
        "launch:\n  webhook: null\n  workers: 2\n"
    )


@pytest.mark.parametrize("url", ["chat.example.com/x", "ftp://host/x", "https://", "http://a b/", "file:///etc/passwd"])
def test_what_is_no_url_is_refused(bench: Bench, url: str) -> None:
    """Before anything is started, with its place."""
    bench.write("train.py", "print(1)\n")
    config(bench, webhook=url)
    done = bench.mslaunch("train", "--config", "cfg.yaml")
    assert done.returncode == 2
    assert "cfg.yaml:4: webhook: write the whole address" in done.stderr


@pytest.mark.parametrize("verb", ["train", "sweep"])
def test_a_queues_job_posts_to_the_url_of_an_option(site: Bench, verb: str) -> None:
    """It outweighs the variable, which the job inherits, in the job as well; the command of on_end has neither."""
    several = ("--set", "launch.grace=1,2") if verb == "sweep" else ()
    several = (*several, "--set", "launch.on_end=env > ended.env")
    args = (verb, "--transport", "slurm", "--workers", "1", "--run-id", "one", *several)
    with serving(200) as server, serving(200) as other:
        done = site.mslaunch(*args, "--set", f"launch.webhook={server.url}", MSLAUNCH_WEBHOOK=other.url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(server.bodies) == (2 if verb == "sweep" else 1)
    assert other.bodies == []
    assert "s3cr3t" not in (site.folder / "ended.env").read_text()
    assert holding_url(site.runs) == []


def test_a_job_that_a_queue_runs_has_the_url(site: Bench) -> None:
    """It travels with the job's environment, not in its script."""
    with serving(200) as server:
        config(site, webhook=server.url, transport="slurm", on_end=ON_END)
        done = site.mslaunch("train", "--config", "cfg.yaml", "--run-id", "one", "--tag", "q")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [body["state"] for body in server.bodies] == ["succeeded"]
    assert ends(site) == ["one succeeded 0"]
    files = [path for path in (site.runs / "one").rglob("*") if path.is_file() and path.name != "cfg.yaml"]  # as it is
    assert [path for path in files if b"s3cr3t" in path.read_bytes()] == []
    assert json.loads((site.runs / "one" / "labels.json").read_text())["tags"] == ["q"]
