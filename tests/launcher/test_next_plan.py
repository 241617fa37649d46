"""The plan of another attempt takes the place of the one before, whole or not at all."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mslaunch.launcher.folder import write_next_plan
from mslaunch.launcher.restarts import ResumedRun
from mslaunch.plan.model import File, Plan, to_json
from mslaunch.run.paths import RunFolder
from tests.conftest import MSLAUNCH, Bench
from tests.plan.test_make import plan_of, spec_of


def write_by_restart(folder: RunFolder, before: Plan, plan: Plan) -> None:
    write_next_plan(folder, plan, plan.files, before.attempt)


def write_by_resuming(folder: RunFolder, before: Plan, plan: Plan) -> None:
    ResumedRun(folder, "", "", before).write_plan(plan)


WAYS = pytest.mark.parametrize("write", [write_by_restart, write_by_resuming])
Write = Callable[[RunFolder, Plan, Plan], None]


def two_plans(folder: RunFolder) -> tuple[Plan, Plan]:
    """The plan that is in the folder with its file, and the next one."""
    first = replace(plan_of(spec_of(workers=2)), files=(File("ranks.json", "old"),))
    folder.plan.write_text(to_json(first))
    (folder.path / "ranks.json").write_text("old")
    os.utime(folder.plan, (1000.0, 1000.0))
    return first, replace(first, attempt=1, files=(File("ranks.json", "new"),))


@WAYS
def test_the_plan_before_is_kept_with_its_time(tmp_path: Path, write: Write) -> None:
    """Checkpoints are told from those of other jobs by it."""
    folder = RunFolder(tmp_path)
    first, second = two_plans(folder)
    write(folder, first, second)
    assert (folder.plan.read_text(), folder.earlier_plan(0).read_text()) == (to_json(second), to_json(first))
    assert folder.earlier_plan(0).stat().st_mtime == 1000.0
    assert (tmp_path / "ranks.json").read_text() == "new"


def test_the_plan_before_is_copied_where_there_are_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems know none."""

    def no_links(_first: object, _second: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    folder = RunFolder(tmp_path)
    first, second = two_plans(folder)
    write_by_restart(folder, first, second)
    assert folder.earlier_plan(0).read_text() == to_json(first)
    assert folder.earlier_plan(0).stat().st_mtime == 1000.0


@WAYS
def test_a_plan_that_cannot_be_written_leaves_everything_as_it_was(tmp_path: Path, write: Write) -> None:
    """A limit on the size of files stands for a full disk."""
    folder = RunFolder(tmp_path)
    first, second = two_plans(folder)
    pid = os.fork()
    if not pid:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        try:
            write(folder, first, second)
        except OSError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert folder.plan.read_text() == to_json(first)
    assert (tmp_path / "ranks.json").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.json", "ranks.json"]


FILL = """import os
with open(os.environ["MSLAUNCH_RUN_DIR"] + "/filling", "wb", buffering=0) as file:
    try:
        while True:
            file.write(b"x" * 4096)
    except OSError:
        raise SystemExit(3)
"""
COMMANDS = """mount -t tmpfs -o size=6m none $1 || exit 99
cd $1
{mslaunch} train --runs-dir $1/runs --run-id full -n 1 --max-restarts 2 --set launch.backoff=0 {script} >&2
echo "train $?"
rm runs/full/filling
for verb in "stop full" "compare full full" "outputs full"; do
    {mslaunch} $verb --runs-dir $1/runs >&2; echo "$verb $?"
done
"""


def test_a_run_whose_restart_met_a_full_disk_is_still_a_run(bench: Bench, tmp_path: Path) -> None:
    """Once there is room again it can be stopped, compared and looked at."""
    script = bench.write("fill.py", FILL)
    (tmp_path / "small").mkdir()
    commands = COMMANDS.format(mslaunch=MSLAUNCH, script=script)
    words = ["unshare", "--mount", "sh", "-c", commands, "sh", str(tmp_path / "small")]
    done = subprocess.run(words, cwd=bench.folder, env=bench.env, capture_output=True, text=True)
    if done.returncode == 99 or "unshare" in done.stderr:
        pytest.skip("a small file system cannot be mounted here")
    assert "not a record" not in done.stderr
    assert done.stdout.splitlines() == ["train 3", "stop full 0", "compare full full 0", "outputs full 0"], done.stderr
