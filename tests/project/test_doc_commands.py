"""Every command that the documentation shows: its options exist, and it runs where it can run here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mslaunch.cli import VERBS
from tests.beds import forked
from tests.beds.doc_commands import PAGES, commands, inline_commands, options_of, parse
from tests.beds.sharded import checkpoints, content_of, strategy_file, write_shard
from tests.beds.torch_files import save_state
from tests.beds.traced import Tensor, record
from tests.conftest import MSLAUNCH, ROOT, Bench

STARTING = ("train", "sweep", "infer", "msrun", "torchrun")
CONFIG = """seed: 1
lr: 0.1
batch_size: 32
device_target: CPU
launch:
  script: train.py
"""
CLUSTER = """hosts:
  - address: 10.0.0.1
    super_pod: 0
    devices:
      0: {device_ip: 192.168.100.1, super_device_id: 0}
      1: {device_ip: 192.168.101.1, super_device_id: 65536}
"""
SCRIPT = """import os, sys
print(sys.argv[1:])
with open(os.path.join("output", f"rank_{os.environ['RANK_ID']}.txt"), "w") as file:
    file.write("written")
"""
PROGRAM = {"train.py", "run_mindformer.py"}
NOT_RUN = {
    "agent --join": "needs a launcher; tests/transports/test_join.py has some",
    "check --hosts": "needs hosts; tests/transports/test_ssh.py has some",
    "check --transport netns": "needs the plug-in of docs/transports.md; tests/transports/test_netns.py installs it",
    "train --transport netns": "needs the plug-in of docs/transports.md; tests/transports/test_netns.py installs it",
    "rank-table probe": "needs Ascend hosts; tests/ranktable/test_ranktable_sources.py has stand-ins",
    "rank-table generate --hccn": "needs /etc/hccn.conf of an Ascend host",
    "collect": "needs a run that has lost a host; tests/agent/test_collection.py has one",
    "watch": "needs a terminal; tests/cli/test_watch.py has one",
    "stacks": "needs a job that runs; tests/shared/test_silence.py has one",
    "compare": "needs two runs; tests/run/test_compare.py has some",
    "export": "needs a run with metrics; tests/run/test_export.py has one",
    "ui": "a server, which does not end by itself; tests/ui/test_browser_ui.py has one",
}
"""Beginnings of command lines that are parsed only, with the reason."""

DIRS = {"ckpt": "ckpt", "strategy": "output/strategy", "diagnose": "output/msrun_log"}
"""What DIR means, by verb."""


def shown() -> list[list[str]]:
    """Every command of README and docs once; those of the examples are run by their own tests."""
    pages = [path for path in PAGES if path.parent.parent != ROOT / "examples"]
    return [list(words) for words in dict.fromkeys(tuple(words) for path in pages for words in commands(path))]


def can_run(words: list[str]) -> bool:
    return not any(" ".join(words).startswith(beginning) for beginning in NOT_RUN)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every file that the commands name, and a finished run of four ranks."""
    folder = tmp_path_factory.mktemp("doc") / "job"
    (folder / "output" / "msrun_log").mkdir(parents=True)
    for name in ("train.py", "infer.py", "run_mindformer.py", "pkg/train.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(SCRIPT)
    (folder / "cfg.yaml").write_text(CONFIG)
    (folder / "cluster.yaml").write_text(CLUSTER)
    (folder / "hosts.txt").write_text("10.0.0.1 slots=8\n10.0.0.2 slots=8\n")
    for name in ("table", "old", "new", "both"):
        shutil.copy(ROOT / "rank_tables" / "v1.0_2x8.json", folder / f"{name}.json")
    table = (ROOT / "rank_tables" / "v1.0_1x8.json").read_text()
    (folder / "host1.json").write_text(table)
    (folder / "host2.json").write_text(re.sub(r'("\d+\.\d+\.\d+\.)', r"\g<1>9", table))
    for name in ("S1", "s.ckpt", "F", "strategy.ckpt", "train_strategy.ckpt"):
        shutil.copy(strategy_file("tp2"), folder / name)
    for name in ("S2", "predict_strategy.ckpt"):
        shutil.copy(strategy_file("dp2tp2opt"), folder / name)
    shutil.copytree(checkpoints("tp2"), folder / "ckpt")
    shutil.copytree(checkpoints("tp2"), folder / "output" / "checkpoint")
    shutil.copy(checkpoints("full") / "rank_0" / "net.ckpt", folder / "net.ckpt")
    _write_weights(folder)
    shutil.copytree(strategy_file("pp2tp2").parent / "pp2tp2", folder / "output" / "strategy")
    shutil.copytree(
        ROOT / "tests" / "fixtures" / "msrun_logs" / "raise", folder / "output" / "msrun_log", dirs_exist_ok=True
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith("MSLAUNCH_")}
    subprocess.run(
        [MSLAUNCH, "train", "--workers", "4", "train.py"], cwd=folder, env=env, check=True, capture_output=True
    )
    bundle = [MSLAUNCH, "diagnose", "--bundle", "evidence.zip"]
    subprocess.run(bundle, cwd=folder, env=env, check=True, capture_output=True)
    return folder


def _write_weights(folder: Path) -> None:
    """The same network as PyTorch's files, and a file of rules."""
    whole = content_of(folder / "net.ckpt")
    weights = {name: value for name, value in whole.items() if value[0] == "Float32"}
    write_shard(folder / "net.ckpt", weights)
    write_shard(folder / "net_init.ckpt", weights)
    write_shard(folder / "model.safetensors", weights)
    write_shard(folder / "hf" / "model.safetensors", weights)
    save_state(folder / "model.pth", weights)
    (folder / "rules.yaml").write_text("rules: [{drop: '.*inv_freq'}]")
    for name in ("torch_trace", "ms_trace"):
        record(folder / name, fc=Tensor([1.0]))


@pytest.fixture
def folder(prepared: Path, bench: Bench) -> Bench:
    """A copy of it."""
    shutil.copytree(prepared, bench.folder, dirs_exist_ok=True, symlinks=True)
    return bench


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_of_a_page_is_understood(path: Path) -> None:
    """Verb, options and the number of arguments of each line in a code block are those of the command."""
    for words in commands(path):
        try:
            parse(words)
        except Exception as error:
            raise AssertionError(f"{path.name}: mslaunch {' '.join(words)}") from error


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_in_the_text_of_a_page_exists(path: Path) -> None:
    """A verb in code markup is one, and so are its options."""
    for verb, *rest in inline_commands(path):
        if verb.startswith("-") or verb == "VERB":
            continue
        assert verb in VERBS, f"{path.name}: mslaunch {verb}"
        typed = {word.partition("=")[0].rstrip(",") for word in rest if re.match(r"--?[a-zA-Z]", word)}
        assert typed <= options_of(verb) | {"--help"}, f"{path.name}: mslaunch {verb} {' '.join(rest)}"


def test_a_wrong_option_is_found() -> None:
    """The parser of these tests is the one of the command."""
    with pytest.raises(Exception, match="No such option: --wrokers"):
        parse(["train", "--wrokers", "8"])
    with pytest.raises(Exception, match="No such command 'validat'"):
        parse(["rank-table", "validat", "table.json"])


def test_every_reason_not_to_run_a_command_is_needed() -> None:
    """The table names no command that the documentation no longer shows."""
    lines = [" ".join(words) for words in shown()]
    assert [beginning for beginning in NOT_RUN if not any(line.startswith(beginning) for line in lines)] == []


@pytest.mark.parametrize("words", [w for w in shown() if w[0] in STARTING and can_run(w)], ids=" ".join)
def test_a_launch_of_the_documentation_can_be_planned(prepared: Path, bench: Bench, words: list[str]) -> None:
    """With --dry-run, which contacts no host and no queue, and writes nothing."""
    bench.folder = prepared
    done = forked.run(bench, words[0], "--dry-run", *words[1:])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", [w for w in shown() if w[0] not in STARTING and can_run(w)], ids=" ".join)
def test_a_command_of_the_documentation_runs(folder: Bench, words: list[str]) -> None:
    """In a folder that has the files that it names, and a run that has ended."""
    typed = [DIRS[words[0]] if word == "DIR" else word for word in words]
    for at, word in enumerate(typed):
        if word in ("-o", "--output", "--bundle") or (word == "--to" and typed[1] in ("import", "export")):
            _remove(folder.folder / typed[at + 1])
    done = forked.run(folder, *typed)
    assert done.returncode == 0, done.stderr or done.stdout


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


@pytest.mark.parametrize(
    "words",
    [w for w in commands(ROOT / "docs" / "recipes.md") if PROGRAM & set(w) and not {"--hosts", "--transport"} & set(w)],
    ids=" ".join,
)
def test_a_recipe_passes_all_arguments_on(folder: Bench, words: list[str]) -> None:
    """With a stand-in for the script, which prints its arguments and writes into output/."""
    (program,) = PROGRAM & set(words)
    done = folder.mslaunch(*words)
    assert done.returncode == 0, done.stderr
    assert folder.log(0).strip() == str(words[words.index(program) + 1 :])
    shared = (folder.folder / "output" / "rank_1.txt").exists()
    assert shared == ("--shared" in words)


@pytest.mark.mindspore
def test_the_quick_start_runs_as_it_is_typed(bench: Bench) -> None:
    """All lines of its first code block but the installation."""
    pytest.importorskip("mindspore")
    text = (ROOT / "docs" / "quick-start.md").read_text()
    block = re.search(r"^(    .*\n|\n)+(?=\S)", text[text.index("    ") :], re.MULTILINE)
    assert block
    lines = [line.removeprefix("    ") for line in block[0].splitlines() if "pip install" not in line]
    env = {**bench.env, "PATH": f"{Path(sys.executable).parent}:{bench.env['PATH']}"}
    done = subprocess.run(["bash", "-ec", "\n".join(lines)], cwd=bench.folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 2: [3.]" in done.stdout


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_make_target_of_a_page_exists(path: Path) -> None:
    """`make demo` and the like are targets of the Makefile."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^    |`)make ([a-z-]+)", path.read_text(), re.MULTILINE)) <= targets
