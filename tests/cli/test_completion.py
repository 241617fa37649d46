"""What the shell completes, verbs that are called otherwise elsewhere, and help in all its spellings."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mslaunch.cli import OTHER_WORDS, VERBS
from mslaunch.cli.parsing.completion import NAMES_A_RUN, SCRIPTS
from tests.conftest import Bench


def completed(bench: Bench, *words: str) -> list[str]:
    return bench.mslaunch("--complete", *words).stdout.splitlines()


def test_verbs_options_and_commands_are_completed(bench: Bench) -> None:
    """Each where it may stand; the script's arguments are its own."""
    assert completed(bench, "st") == ["status", "stop", "stacks", "strategy"]
    assert completed(bench, "help", "at") == ["attach"]
    assert completed(bench, "train", "--max") == ["--max-restarts"]
    assert completed(bench, "ckpt", "re") == ["reshard"]
    assert completed(bench, "ckpt", "reshard", "--o") == ["--output"]
    assert completed(bench, "train", "--", "--max") == []
    assert completed(bench, "nonsense", "--max") == []


def test_runs_are_completed_the_newest_first(bench: Bench) -> None:
    """Those of the folder that --runs-dir names, else of the usual one."""
    bench.write("train.py", "print(1)\n")
    for name in ("a1", "a2"):
        bench.mslaunch("train", "-n", "1", "--run-id", name)
    bench.mslaunch("train", "-n", "1", "--run-id", "a3", "--runs-dir", "other")
    assert completed(bench, "status", "a") == ["a2", "a1"]
    assert completed(bench, "logs", "--runs-dir", "other", "") == ["a3"]
    assert completed(bench, "stop", "b") == []


def test_completing_verbs_and_runs_loads_nothing_heavy() -> None:
    """A shell asks at every key."""
    for words in (["st"], ["status", "x"]):
        code = f"import sys; from mslaunch.cli import run; run(['--complete', *{words!r}]); print(*sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert not {"typer", "click", "rich", "pydantic", "yaml", "mslaunch.store"} & set(done.stdout.split())


def test_bash_completes_with_the_script_that_is_shown(bench: Bench) -> None:
    """As a shell would after the key."""
    script = bench.mslaunch("--show-completion", "bash").stdout
    ask = 'COMP_WORDS=(mslaunch sta); COMP_CWORD=1; _mslaunch; printf "%s\\n" "${COMPREPLY[@]}"'
    path = f"{Path(sys.executable).parent}:{bench.env['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script + ask], capture_output=True, text=True, env={**bench.env, "PATH": path}, check=True
    )
    assert done.stdout.splitlines() == ["status", "stacks"]


@pytest.mark.parametrize("shell", SCRIPTS)
def test_a_completion_is_installed_where_the_shell_looks(bench: Bench, tmp_path: Path, shell: str) -> None:
    """Below the home, and that place is named; the script is one that the shell can read."""
    home = {"HOME": str(tmp_path), "XDG_DATA_HOME": "", "XDG_CONFIG_HOME": "", "ZDOTDIR": ""}
    done = bench.mslaunch("--install-completion", shell, **home)
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.partition(" written.")[0])
    assert path.is_relative_to(tmp_path)
    assert path.read_text() == SCRIPTS[shell]
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(path)], check=True)


def test_an_unknown_shell_is_refused(bench: Bench) -> None:
    """With those that there are."""
    done = bench.mslaunch("--install-completion", "csh")
    assert (done.returncode, done.stderr) == (
        2,
        "mslaunch: no completion for the shell 'csh'. Name one of bash, zsh, fish.\n",
    )


@pytest.mark.parametrize(("word", "verb"), [*OTHER_WORDS.items(), ("t.py", "train t.py"), ("trian", "train")])
def test_a_verb_that_is_called_otherwise_is_answered_with_the_right_one(bench: Bench, word: str, verb: str) -> None:
    """Whatever other programs call it, and if it is misspelt."""
    done = bench.mslaunch(word)
    assert done.returncode == 2
    assert done.stderr == f"mslaunch: no verb {word!r}; did you mean {verb!r}? `mslaunch --help` lists them.\n"


def test_a_word_that_is_like_no_verb_is_answered_too(bench: Bench) -> None:
    """In a whole sentence."""
    assert bench.mslaunch("xyzzy").stderr == "mslaunch: no verb 'xyzzy'. `mslaunch --help` lists them.\n"


@pytest.mark.parametrize("word", ["prun", "stopp", "tune"])
def test_no_verb_that_ends_or_deletes_is_guessed(bench: Bench, word: str) -> None:
    """A word that only looks like prune or stop may mean anything."""
    answer = bench.mslaunch(word).stderr
    assert answer.startswith(f"mslaunch: no verb {word!r}")
    assert "'prune'" not in answer
    assert "'stop'" not in answer


def test_every_verb_has_help_in_three_spellings(bench: Bench) -> None:
    """--help, -h and `mslaunch help VERB` print the same."""
    for verb in ("train", "ps", "ckpt"):
        texts = {bench.mslaunch(*words).stdout for words in ((verb, "--help"), (verb, "-h"), ("help", verb))}
        assert len(texts) == 1
        assert texts.pop().startswith(f"Usage: mslaunch {verb}")
    assert bench.mslaunch("help", "ckpt", "show").stdout.startswith("Usage: mslaunch ckpt show")
    assert bench.mslaunch("-h").stdout == bench.mslaunch("help").stdout == bench.mslaunch("--help").stdout
    assert bench.mslaunch("help", "xyzzy").returncode == 2


def test_what_names_a_run_is_a_verb() -> None:
    """And what other words stand for, too."""
    assert set(NAMES_A_RUN) | {words.split()[0] for words in OTHER_WORDS.values()} <= set(VERBS)
    assert not set(OTHER_WORDS) & set(VERBS)


def test_the_dry_run_shows_what_was_given_and_the_defaults_when_asked(bench: Bench) -> None:
    """Forty defaults would hide the two settings that were typed."""
    bench.write("train.py", "print(1)\n")
    shown = bench.mslaunch("train", "-n", "2", "--dry-run").stdout
    settings = shown.partition("settings that were given")[2].partition("\n\n")[0].splitlines()[1:]
    assert [line.split()[0] for line in settings] == ["workers"]
    assert "  exit_skew        300.0 (default)\n" in bench.mslaunch("train", "-n", "2", "--dry-run", "-v").stdout


def test_a_launch_inside_a_rank_does_not_complain_of_what_the_rank_was_told(bench: Bench) -> None:
    """And a misspelt variable is told of, once."""
    bench.write("inner.py", "print(1)\n")
    bench.write(
        "train.py",
        "import subprocess, sys\n"
        f"print(subprocess.run([{bench.program!r}, 'train', '-n', '1', '--dry-run', 'inner.py'],\n"
        "    capture_output=True, text=True).stdout)\n",
    )
    done = bench.mslaunch("train", "-n", "1", MSLAUNCH_WORKRES="3")
    assert done.stdout.count("MSLAUNCH_WORKRES is ignored: there is no such setting; did you mean") == 1
    assert "is ignored" not in bench.log(0)
    assert "run      " in bench.log(0)
