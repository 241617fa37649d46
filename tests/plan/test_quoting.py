"""Rendered scripts with hostile values in every field: each value stays one word, and nothing of it is executed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mslaunch.errors import ConfigError, RequestError
from mslaunch.hosts import Host
from mslaunch.launcher.folder import write_files
from mslaunch.plan.make import make_plan
from mslaunch.plan.model import HostFacts
from mslaunch.plan.program import Program
from mslaunch.plan.render import render
from mslaunch.settings.yaml_config import write_scalar
from mslaunch.transports.base import Command
from mslaunch.transports.slurm.batch_script import JOB, array_script, job_files
from tests.plan.test_make import facts_of, spec_of

HOSTILE = "a b'\"$(touch pwned)`touch pwned`\\\n;touch pwned;#&|*~{x,y}$HOME"
STUB = f"""#!{sys.executable}
import json, os, sys
with open(os.environ["TOLD"], "a") as file:
    file.write(json.dumps({{"argv": sys.argv, "env": dict(os.environ)}}) + "\\n")
"""


def write_stub(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(STUB)
    path.chmod(0o755)
    return path


def run(script: Path, folder: Path, **env: str) -> list[dict[str, Any]]:
    """Run a script with stubs; return what each of them was given. Nothing may have been touched."""
    told = folder / "told"
    told.unlink(missing_ok=True)
    variables = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "TOLD": str(told), "HOME": "/", **env}
    done = subprocess.run(["bash", str(script)], cwd=folder, env=variables, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(folder.rglob("pwned"))
    return [json.loads(line) for line in told.read_text().splitlines()]


@pytest.mark.parametrize("method", ["msrun", "mpirun", "rank-table"])
def test_scripts_of_methods_execute_no_value(tmp_path: Path, method: str) -> None:
    """Variables, tunables, arguments, paths, host, address and Python, as one word each."""
    run_dir = tmp_path / f"run{HOSTILE}"
    python = write_stub(tmp_path / f"python{HOSTILE}" / "python")
    for program in ("msrun", "mpirun"):
        write_stub(tmp_path / "bin" / program)
    host = Host(HOSTILE, HOSTILE, (0,))
    facts = replace(
        facts_of((host,), device_target="Ascend"),
        run_dir=str(run_dir),
        submit_dir=HOSTILE,
        program=Program("script", f"{HOSTILE}.py", (HOSTILE, "--x", HOSTILE)),
        hosts={HOSTILE: HostFacts(str(python), (0,))},
    )
    env = {"A": HOSTILE, "MS_TOPO_TIMEOUT": HOSTILE, "TOKEN": None}
    plan = make_plan(spec_of(workers=1, method=method, env=env), (host,), facts)
    write_files(run_dir, plan.files)
    script = next(run_dir.glob("scripts/*.sh"))
    (told,) = run(script, tmp_path, TOKEN="t")
    assert told["argv"][-4:] == [f"{run_dir}/code/{HOSTILE}.py", HOSTILE, "--x", HOSTILE]
    assert {told["env"][name] for name in ("A", "MS_TOPO_TIMEOUT", "MSLAUNCH_SUBMIT_DIR")} == {HOSTILE}
    if method == "msrun":
        assert f"--master_addr={HOSTILE}" in told["argv"]
        (told,) = run(run_dir / "scripts/bin/python", tmp_path)
        assert told["argv"] == [str(python)]


def test_scripts_for_slurm_execute_no_value(tmp_path: Path) -> None:
    """What was typed, the folder, the run, variables and the script's arguments."""
    cwd, runs_dir = tmp_path / f"cwd{HOSTILE}", tmp_path / f"runs{HOSTILE}"
    cwd.mkdir()
    program = write_stub(tmp_path / f"program{HOSTILE}")
    line = HOSTILE.replace("\n", " ")
    flags: dict[str, Any] = {
        "transport": "slurm",
        "account": line,
        "python": HOSTILE,
        "env": {"A": HOSTILE},
        "workers": 1,
    }
    command = Command((str(program),), "train", (), flags, (f"k={HOSTILE}",), None, (HOSTILE,), HOSTILE, (HOSTILE,))
    run_dir = f"{runs_dir}/{HOSTILE}"
    (file,) = job_files(spec_of(**flags).launch, (Host("n", "n", (0,)),), run_dir, command, str(cwd))
    write_files(Path(run_dir), (file,))
    (told,) = run(Path(run_dir) / JOB, tmp_path, SLURM_JOB_ID="1")
    assert told["env"]["MSLAUNCH_ENV_A"] == HOSTILE
    options = [
        f"--rank-table={HOSTILE}",
        f"--set=launch.python={write_scalar(HOSTILE)}",
        "--env=A",
        f"--set=k={HOSTILE}",
    ]
    assert set(options) <= set(told["argv"])
    assert told["argv"][-5:] == [f"--runs-dir={runs_dir}", f"--run-id={HOSTILE}", HOSTILE, "--", HOSTILE]
    array = tmp_path / "array"
    array.write_text(array_script(str(runs_dir), {0: Path(run_dir) / JOB}, [file.content], None))
    (told,) = run(array, tmp_path, SLURM_JOB_ID="1", SLURM_ARRAY_TASK_ID="0")
    assert told["argv"][-1] == HOSTILE


def test_directives_and_comments_end_with_their_line() -> None:
    """A line break in what a comment names would start a command."""
    text = render("array.sbatch", {"directives": ["--job-name=a\ntouch pwned"], "scripts": {}})
    assert "#SBATCH --job-name=a touch pwned\n" in text


@pytest.mark.parametrize("name", ["A-B", "1A", "A B", "$(x)", "é", "", "A;B"])
def test_names_of_variables_are_checked_where_they_enter(name: str) -> None:
    """In launch.env and in a host's env, with the line; a shell could not even say them."""
    quoted = json.dumps(name)
    for text, where in (
        (f"launch:\n  env:\n    {quoted}: x\n", "cfg.yaml:2"),
        (f"launch:\n  hosts:\n  - address: n1\n    env: {{{quoted}: x}}\n", "cfg.yaml:2"),
    ):
        with pytest.raises(ConfigError, match=f"(?m)^{where}: .*is not the name of a variable"):
            spec_of(text)
    with pytest.raises(RequestError, match="is not the name of a variable"):
        spec_of(env={name: "x"})
