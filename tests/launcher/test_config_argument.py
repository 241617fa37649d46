"""--config and scripts of all kinds: the argument goes to those that take it, and to no other."""

from __future__ import annotations

import pytest

from mslaunch.launcher.program import takes_config
from tests.conftest import Bench

STRICT = (
    "import argparse, os\np = argparse.ArgumentParser()\np.add_argument('--lr', default='0')\n"
    "print('lr', p.parse_args().lr, os.path.basename(os.environ['MSLAUNCH_CONFIG']))\n"
)


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("parser.add_argument('--config_path', default=None)", True),
        ('parser.add_argument("-c", "--config_path")', True),
        ("@click.option('--config_path')", True),
        ("flags.DEFINE_string('config_path', None, 'YAML')", True),
        ("args, rest = parser.parse_known_args()", True),
        ("from mslaunch.runtime import init_env, load_config", True),
        ("import fire\ndef main(config_path): pass\nfire.Fire(main)", True),
        ("parser.add_argument('--config-path')", False),
        ("parser.add_argument('--config')", False),
        ("@hydra.main(config_path='conf')\ndef main(cfg): pass\nparse_known_args", False),
        ("config_path = 'x.yaml'", False),
        ("", False),
    ],
)
def test_what_a_text_shows(text: str, taken: bool) -> None:
    """Where it is unsure, the argument is not given."""
    assert takes_config([text]) is taken


def test_a_strict_script_is_not_given_the_argument(bench: Bench) -> None:
    """It runs, has MSLAUNCH_CONFIG, and the dry run says what was left out."""
    bench.write("train.py", STRICT)
    bench.write("cfg.yaml", "lr: 0.1\n")
    done = bench.mslaunch("train", "-n", "1", "--config", "cfg.yaml", "train.py", "--lr", "3")
    assert "[rank 0] lr 3 config.json" in done.stdout, done.stdout
    shown = bench.mslaunch("train", "-n", "1", "--config", "cfg.yaml", "--dry-run").stdout
    assert "not given: train.py does not seem to take it" in shown


@pytest.mark.parametrize("statement", ["from src.config import config", "from src import config", "import src.config"])
def test_a_module_of_the_job_that_takes_the_argument_counts(bench: Bench, statement: str) -> None:
    """MindSpore's model scaffolding parses its arguments in a module."""
    bench.write("train.py", f"{statement}\nimport sys\nprint(sys.argv[1:])\n")
    bench.write("src/__init__.py", "")
    bench.write(
        "src/config.py",
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--config_path')\nconfig = p.parse_args()\n",
    )
    bench.write("cfg.yaml", "lr: 0.1\n")
    assert bench.mslaunch("train", "-n", "1", "-c", "cfg.yaml").returncode == 0
    assert f"--config_path={bench.latest}/config.yaml" in bench.log(0)


def test_a_module_that_is_run_is_looked_at_too(bench: Bench) -> None:
    """With relative imports."""
    bench.write("pkg/__init__.py", "")
    bench.write("pkg/config.py", "OPTION = '--config_path'\n")
    bench.write("pkg/train.py", "import sys\nfrom .config import OPTION\nprint(sys.argv[1:])\n")
    bench.write("cfg.yaml", "launch:\n  module: pkg.train\n")
    assert bench.mslaunch("train", "-n", "1", "-c", "cfg.yaml").returncode == 0
    assert "--config_path=" in bench.log(0)


def test_an_argument_that_was_asked_for_is_given_and_its_refusal_explained(bench: Bench) -> None:
    """launch.config_arg is obeyed; where the script ends at it, the verdict says how to leave it out."""
    bench.write("train.py", STRICT)
    bench.write("cfg.yaml", "lr: 0.1\nlaunch:\n  config_arg: --settings\n")
    done = bench.mslaunch("train", "-n", "1", "--config", "cfg.yaml")
    assert done.returncode == 2
    assert "advice: The script does not take the argument --settings" in done.stdout
    assert "Write launch.config_arg: null in the YAML" in done.stdout
    assert done.stderr == ""


def test_the_default_script_is_beside_the_config_or_here(bench: Bench) -> None:
    """`-c configs/c.yaml` finds ./train.py; where both exist, the one beside the config, with a word."""
    bench.write("configs/c.yaml", "lr: 0.1\n")
    bench.write("train.py", "print('here')\n")
    assert "[rank 0] here" in bench.mslaunch("train", "-n", "1", "-c", "configs/c.yaml").stdout
    bench.write("configs/train.py", "print('beside')\n")
    done = bench.mslaunch("train", "-n", "1", "-c", "configs/c.yaml")
    assert "[rank 0] beside" in done.stdout
    assert "train.py is there twice; the one beside the config is taken" in done.stdout
