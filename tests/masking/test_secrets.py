"""Secrets: what counts as one, that it is shown masked, and that its value reaches the ranks and no file."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psutil
import pytest
import yaml

from mslaunch.settings.yaml_config import without_secrets
from mslaunch.shared.secret_names import looks_secret, masked, without_credentials
from tests.conftest import Bench, wait_for


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN", "GITHUB_TOKENS", "APP_SECRET", "PGPASSWORD", "DB_PASSWD", "GPG_PASSPHRASE", "MYSQL_PWD", "DB_PASS",
        "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "SSH_PRIVATE_KEY", "OPENAI_APIKEY", "GOOGLE_CREDENTIALS",
        "DOCKER_AUTH", "SSH_AUTH_SOCK", "my_token", "MS_TOKEN",
    ],
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    """A part of the name ends in a word for secrets, or its last part is KEY, PASS or PWD."""
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "PWD", "OLDPWD", "TOKENIZERS_PARALLELISM", "GIT_AUTHOR_NAME", "XAUTHORITY", "MONKEY", "KEYBOARD", "MS_DEV_PASS",
        "MS_CACHE_KEY", "SSH_PUBLIC_KEY", "COMPASS", "PATH", "MSLAUNCH_SECRETS", "ASCEND_KEY", "HOME",
    ],
)  # fmt: skip
def test_names_that_only_look_similar(name: str) -> None:
    """What a reader of env.log wants to see is not masked."""
    assert not looks_secret(name)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("https://user:pass@host/x", "https://***@host/x"),
        ("http://p:q@proxy:3128", "http://***@proxy:3128"),
        ("https://ghp_token@github.com/a", "https://***@github.com/a"),
        ("a=https://u:p@ss@h/, b=ftp://u:p@g", "a=https://***@h/, b=ftp://***@g"),
        ("https://h/x?token=abc&y=1&sig=q", "https://h/x?token=***&y=1&sig=***"),
        ("https://h/a@b?mail=c@d", "https://h/a@b?mail=c@d"),
        ("https://host/x", "https://host/x"),
        ("user@host:path", "user@host:path"),
        ("://", "://"),
        ("", ""),
    ],
)
def test_credentials_in_urls_are_masked(value: str, shown: str) -> None:
    """Who logs in, and secrets in a query; the rest of the value stays."""
    assert without_credentials(value) == shown
    assert masked("PROXY", value) == shown


YAML = """\
launch:
  env:
    DB_PASSWORD: "tell-no-1"   # a comment
    PLAIN: plain
    INDEX: https://me:tell-no-2@host/simple
"""
SCRIPT = """
import os, time
print(*(os.environ[name] for name in ("WANDB_API_KEY", "DB_PASSWORD", "INDEX", "PLAIN")))
while not os.path.exists(os.environ["MSLAUNCH_SUBMIT_DIR"] + "/go"): time.sleep(0.05)
"""
VALUES = ("tell-no-0", "tell-no-1", "https://me:tell-no-2@host/simple", "plain")


def holding(folder: Path) -> list[str]:
    """The files below a folder that hold a secret, but for rank 0's output and the user's own config."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in ("log.txt", "cfg.yaml"))
    return [str(path) for path in files if b"tell-no-" in path.read_bytes()]


@pytest.mark.parametrize("method", ["dynamic", "rank-table"])
def test_secrets_that_are_given_reach_the_ranks_and_no_file(bench: Bench, method: str) -> None:
    """--env K=V and launch.env, whose names or values are secret: no file of the run, no process's command line."""
    bench.write("train.py", SCRIPT)
    bench.write("cfg.yaml", YAML)
    args = ("-n", "2", "-c", "cfg.yaml", "--method", method, "--env", "WANDB_API_KEY=tell-no-0")
    bench.env |= {"DB_PASSWORD": "of the shell"}
    launcher = bench.start("train", *args)
    try:
        wait_for(lambda: (bench.runs / "latest").exists() and bench.log(1), "the ranks")
        lines = [
            process.info["cmdline"]
            for process in psutil.process_iter(["pid", "cmdline"])
            if process.pid != launcher.pid
        ]
        assert "tell-no-" not in str(lines)
    finally:
        (bench.folder / "go").touch()
        launcher.communicate(timeout=60)
    assert launcher.returncode == 0
    assert bench.log(1).split() == list(VALUES)
    assert holding(bench.folder) == []
    shown = bench.environment(1)
    assert (shown["WANDB_API_KEY"], shown["DB_PASSWORD"], shown["INDEX"], shown["PLAIN"]) == ("***",) * 3 + ("plain",)


def test_set_up_commands_have_secrets_too(bench: Bench) -> None:
    """A login, say, before the ranks start."""
    bench.write("train.py", "import os\nprint(os.environ['SEEN'])\n")
    bench.write("cfg.yaml", "launch:\n  config_arg: null\n  setup: export SEEN=${#K_TOKEN}\n")
    done = bench.mslaunch("train", "-n", "1", "-c", "cfg.yaml", "--env", "K_TOKEN=tell-no-0")
    assert "[rank 0] 9\n" in done.stdout
    assert holding(bench.runs) == []


def test_a_dry_run_shows_no_secret(bench: Bench) -> None:
    """Neither for people nor as JSON."""
    bench.write("train.py", SCRIPT)
    bench.write("cfg.yaml", YAML)
    for also in ((), ("--json",)):
        done = bench.mslaunch("train", "-n", "1", "-c", "cfg.yaml", "--env", "K_TOKEN=tell-no-0", "--dry-run", *also)
        assert done.returncode == 0
        assert "K_TOKEN" in done.stdout
        assert "tell-no-" not in done.stdout + done.stderr


def test_a_rendered_script_asks_for_the_secret(bench: Bench) -> None:
    """It stands in no file that render writes; the script tells what to export."""
    bench.write("train.py", "")
    args = ("--method", "rank-table", "-n", "1", "--env", "K_TOKEN=tell-no-0", "-o", "out")
    assert bench.mslaunch("render", *args).returncode == 0
    assert holding(bench.folder / "out") == []
    script = bench.folder / "out" / "scripts" / "rank_table.sh"
    done = subprocess.run(["bash", str(script)], env=bench.env, capture_output=True, text=True)
    assert done.returncode != 0
    assert "export K_TOKEN first" in done.stderr


def test_a_sweep_keeps_no_secret_and_is_resumed_with_it(bench: Bench) -> None:
    """sweep.json has the names; whoever resumes gives the values again."""
    bench.write(
        "train.py", "import os\nassert os.environ['K_TOKEN'] == os.environ['DB_PASSWORD'] == 'tell' + '-no-0'\n"
    )
    bench.write("cfg.yaml", "lr: 1\nlaunch: {env: {DB_PASSWORD: tell-no-1}, config_arg: null}\n")
    args = ("sweep", "--run-id", "s", "-c", "cfg.yaml", "--set", "lr=1,2", "-n", "1", "--env", "K_TOKEN=tell-no-0")
    assert bench.mslaunch(*args).returncode == 1
    assert holding(bench.runs) == []
    done = bench.mslaunch("sweep", "--resume", "s")
    assert (done.returncode, done.stdout) == (2, "")
    assert "has no value here. Export it first" in done.stderr
    done = bench.mslaunch("sweep", "--resume", "s", K_TOKEN="tell-no-0", DB_PASSWORD="tell-no-0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert holding(bench.runs) == []


def test_a_secret_that_a_sweep_assigns_is_in_no_file(bench: Bench) -> None:
    """--set launch.env, the same for all runs: they have it, and sweep.json has the name."""
    bench.write("train.py", "import os\nassert os.environ['K_TOKEN'] == 'tell' + '-no-0' and os.environ['A'] == '1'\n")
    assigned = ("--set", "launch.env={A: 1, K_TOKEN: tell-no-0}", "--set", "launch.grace=1,2")
    done = bench.mslaunch("sweep", "--run-id", "s", "-n", "1", *assigned)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tell-no-0" not in done.stdout
    assert holding(bench.runs) == []


def test_a_secret_cannot_be_swept(bench: Bench) -> None:
    """The table and sweep.json would show it."""
    bench.write("train.py", "print(1)\n")
    done = bench.mslaunch("sweep", "-n", "1", "--set", "launch.env={A: 1},{K_TOKEN: tell-no-0}")
    assert done.returncode == 2
    assert "--set launch.env: it holds a secret, which is the same for all runs of a sweep" in done.stderr


@pytest.mark.parametrize(
    "env",
    [
        "{A_TOKEN: tell-no-0, B: x}",
        "{A_TOKEN: 'tell-no-0', B: x}",
        '\n    A_TOKEN: "tell-no-0"  # why\n    B: x',
        "\n    A_TOKEN: |\n      tell-no-0\n      more\n    B: x",
        "\n    A_TOKEN: >-\n      tell-no-0\n    B: x",
        "\n    ? A_TOKEN\n    : tell-no-0\n    B: x",
        "\n    A_TOKEN: tell-no-0\n      tell-no-1\n    B: x",
    ],
)
def test_a_copy_of_a_config_has_no_secret(env: str) -> None:
    """However YAML spells it; everything else stays as it is."""
    text = f"\ufeffa: é  # 漢\nlaunch:\n  workers: 1\n  env: {env}\n  method: msrun\n---\nhelp: me\n"
    first, second = yaml.safe_load_all(without_secrets(text))
    assert first == {"a": "é", "launch": {"workers": 1, "env": {"A_TOKEN": None, "B": "x"}, "method": "msrun"}}
    assert second == {"help": "me"}
    assert "tell-no-" not in without_secrets(text)


def test_what_is_no_secret_is_copied_as_it_stands() -> None:
    """No value, no env, no YAML: nothing is changed."""
    for text in ("launch: {env: {A_TOKEN: }}\n", "launch:\n  env:\n    A_TOKEN:\n", "a: 1\n", "", "launch: [", "- 1\n"):
        assert without_secrets(text) == text
