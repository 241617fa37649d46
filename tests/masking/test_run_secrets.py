"""Secrets of a run's configuration, arguments and environment: in no report, page, comparison or bundle of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.beds.ui_bed import Ui, shared_bench, start_ui
from tests.conftest import Bench
from tests.diagnose.test_bundle import contents
from tests.masking.test_masked_documents import HARMLESS

CONFIG = """\
ssh_private_key: |
  line-one-secret-AAAA
  line-two-secret-BBBB
tokens:
  - listsecret-CCCC
credentials: {user: bob, value: nestedsecret-DDDD}
"""
OF_THE_CONFIG = ("line-one-secret-AAAA", "line-two-secret-BBBB", "listsecret-CCCC", "nestedsecret-DDDD")
OF_THE_SHELL, ARGUMENT = "shellsecret-EEEE", "argsecretvalue"
SECRETS = (*OF_THE_CONFIG, OF_THE_SHELL, ARGUMENT)
KEPT = {name: value for name, value in HARMLESS.items() if name != "tokens"}
SCRIPT = """
import json, os, sys
config, token = json.load(open(os.environ["MSLAUNCH_CONFIG"])), os.environ["HF_TOKEN"]
key, *_ = config["ssh_private_key"].splitlines()[1:]
print("said", *sys.argv[1:], token, "and", config["credentials"]["value"], "as it is")
raise RuntimeError(f"refused: {config['tokens'][0]}, {key}, {sys.argv[-1]}{token}")
"""


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A folder with two runs that had secrets and told them when they failed."""
    with shared_bench(tmp_path_factory.mktemp("secrets")) as made:
        made.env["HF_TOKEN"] = OF_THE_SHELL
        made.write("train.py", SCRIPT)
        for run, more in (("x", ""), ("y", "-of-y")):
            config = CONFIG.replace("secret-", f"secret{more}-") + yaml.safe_dump(KEPT, sort_keys=False)
            made.write("cfg.yaml", config)
            done = made.mslaunch("train", "-c", "cfg.yaml", "--run-id", run, "--", "--api-key", ARGUMENT + more)
            assert done.returncode == 1, done.stderr
        yield made


@pytest.fixture(scope="module")
def ui(failed: Bench) -> Ui:
    """A server of that folder."""
    return start_ui(failed)


def told(text: str) -> list[str]:
    """The secrets that a text has."""
    return [secret for secret in (*SECRETS, "secret-of-y", "argsecret") if secret in text]


def document(bench: Bench) -> Any:
    done = bench.mslaunch("report", "x", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_report_holds_no_secret_of_the_run(failed: Bench, tmp_path: Path) -> None:
    """Neither in its configuration nor in the command, the traceback, the events and the logs."""
    target = tmp_path / "r.html"
    assert failed.mslaunch("report", "x", "-o", str(target)).returncode == 0
    assert told(target.read_text()) == []


def test_a_report_still_tells_what_happened(failed: Bench) -> None:
    """What was masked is marked, and what stands around it is there."""
    shown = document(failed)
    assert shown["plan"]["command"].endswith("train.py --api-key '***'")
    assert shown["record"]["verdict"]["summary"] == "RuntimeError: refused: ***, ***, ******"
    assert "said --api-key *** *** and *** as it is" in shown["logs"][0]["lines"]
    assert shown["plan"]["settings"]["secret_file"] == "not set, from default"


def test_a_report_shows_harmless_values_and_the_order_of_the_configuration(failed: Bench) -> None:
    """Counts and names of tokens are what somebody looks for."""
    config = yaml.safe_load(document(failed)["config"])
    assert {name: config[name] for name in KEPT} == KEPT
    assert list(config)[: 3 + len(KEPT)] == ["ssh_private_key", "tokens", "credentials", *KEPT]
    assert (config["tokens"], config["credentials"]) == (["***"], {"user": "***", "value": "***"})


@pytest.mark.parametrize(
    "ask",
    [
        lambda ui: ui.get("/api/runs"),
        lambda ui: ui.get("/api/run", name="x"),
        lambda ui: ui.get("/api/log", name="x", rank=0),
        lambda ui: ui.get("/api/log", name="x", rank=0, before=10_000),
        lambda ui: ui.get("/api/search", name="x", rank=0, find="refused"),
        lambda ui: ui.ask("/api/compare?name=x&name=y", Authorization=f"Bearer {ui.token}"),
    ],
    ids=["list", "document", "log", "older lines", "search", "comparison"],
)
def test_the_page_holds_no_secret_of_the_run(ui: Ui, ask: Callable[[Ui], Any]) -> None:
    """Whatever it asks its server for."""
    reply = ask(ui)
    assert reply.status == 200
    assert told(reply.body.decode()) == []
    assert "***" in reply.body.decode()


def test_a_bundle_holds_no_secret_of_the_run(failed: Bench, tmp_path: Path) -> None:
    """In none of its files, whatever each of them is."""
    target = tmp_path / "b.zip"
    done = failed.mslaunch("diagnose", "x", "--bundle", str(target))
    assert "secrets masked" in done.stderr
    found = contents(target)
    assert {name: told(data.decode()) for name, data in found.items() if told(data.decode())} == {}
    config = yaml.safe_load(found["logs/config.yaml"])
    assert {name: config[name] for name in KEPT} == KEPT
    assert json.loads(found["logs/config.json"]) == config
    (copy,) = (file for file in json.loads(found["logs/plan.json"])["files"] if file["path"] == "config.yaml")
    assert yaml.safe_load(copy["content"]) == config


@pytest.mark.parametrize("how", [(), ("--json",)])
def test_a_comparison_tells_that_secrets_differ_and_not_which_they_are(failed: Bench, how: tuple[str, ...]) -> None:
    """Configuration, arguments, the reason of a failure, and the lines of a file that was copied."""
    done = failed.mslaunch("compare", "x", "y", *how)
    assert done.returncode == 0, done.stderr
    assert told(done.stdout) == []
    assert "credentials.value" in done.stdout


def test_the_folder_of_the_run_keeps_its_configuration(failed: Bench) -> None:
    """It is the owner's alone, and the script reads it."""
    config = json.loads((failed.runs / "x" / "config.json").read_text())
    assert config["credentials"]["value"] == "nestedsecret-DDDD"


def test_a_secret_at_the_cut_of_a_long_text_is_masked_before_it_is_cut(bench: Bench) -> None:
    """Half a secret is not known any more: in a line of a log, in a command and in a note."""
    bench.write("cfg.yaml", f"password: {'k9' * 200}\n")
    bench.write("train.py", "import sys\nsys.exit('x' * 1900 + 'k9' * 200)\n")
    note = "y" * 1000 + "k9" * 200 + "z" * 200
    bench.mslaunch("train", "-c", "cfg.yaml", "--run-id", "x", "--", "--note", note)
    bench.mslaunch("note", "x", note)
    shown = document(bench)
    assert "zzz" in shown["plan"]["command"]
    assert shown["labels"]["notes"][0][1].endswith("zzz")
    assert "k9k9k9" not in json.dumps(shown)


def test_a_secret_at_the_cut_of_a_long_line_is_not_in_a_bundle(bench: Bench) -> None:
    """A line of a log is masked before it is cut."""
    bench.write("cfg.yaml", f"password: {'k9' * 200}\n")
    bench.write("train.py", "print('x' * 8000 + 'k9' * 200)\nraise SystemExit(1)\n")
    bench.mslaunch("train", "-c", "cfg.yaml", "--run-id", "x")
    bench.mslaunch("diagnose", "x", "--bundle", "b.zip")
    log = contents(bench.folder / "b.zip")["logs/rank_0/log.txt"]
    assert b"xxx" in log
    assert b"k9k9" not in log
