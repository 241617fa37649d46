"""Real jobs for tests: a folder to launch from, the command as a subprocess, and proof that nothing is left."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from mslaunch.run.paths import RunFolder
from mslaunch.shared.guard import processes_with
from tests.beds import slurm_bed, ssh_bed

if TYPE_CHECKING:
    from tests.beds.kubernetes_bed import ControlPlane

ROOT = Path(__file__).parent.parent
MSLAUNCH = str(Path(sys.executable).with_name("mslaunch"))
TIMEOUT = 180.0

os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="mslaunch-state-")  # runs of tests are not the user's
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)
settings.register_profile("no-deadline", deadline=None)  # a busy machine is no reason to fail
settings.load_profile("no-deadline")
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup pytest` must not protect what is tested


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    """Wait until something is true and return it; say what was waited for where it never is."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited {seconds:.0f} s for {what}")


@dataclass
class Bench:
    """A folder to launch jobs from, as a user would."""

    folder: Path
    env: dict[str, str]
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    program: str = MSLAUNCH

    @property
    def runs(self) -> Path:
        return self.folder / "mslaunch-runs"

    @property
    def latest(self) -> Path:
        return (self.runs / "latest").resolve()

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def mslaunch(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run one command to its end."""
        return subprocess.run(
            [self.program, *args],
            cwd=self.folder,
            env={**self.env, **env},
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            stdin=subprocess.DEVNULL,
        )

    def start(self, *args: str, **env: str) -> subprocess.Popen[str]:
        """Start one command and go on."""
        process = subprocess.Popen(
            [self.program, *args],
            cwd=self.folder,
            env={**self.env, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        self.started.append(process)
        return process

    def record(self, run: str = "latest") -> Any:
        return json.loads((self.runs / run / "run.json").read_text())

    def plan(self) -> Any:
        return json.loads((self.latest / "plan.json").read_text())

    def log(self, rank: int) -> str:
        path = self.latest / f"rank_{rank}" / "log.txt"
        return path.read_text() if path.exists() else ""

    def work(self, rank: int) -> Path:
        """What a rank has written."""
        return RunFolder(self.latest).work(rank)

    def environment(self, rank: int) -> dict[str, str]:
        lines = (self.latest / f"rank_{rank}" / "env.log").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def leftovers(self) -> list[int]:
        """Every process of any run that was launched from here, wherever its runs lie."""
        walked = os.walk(self.folder.parent)  # passes over folders that vanish meanwhile
        runs = [folder for folder, _, files in walked if "run.json" in files]
        return [pid for run in runs for pid in processes_with(f"MSLAUNCH_RUN_DIR={run}")]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A fresh folder; at the end of the test no process of its runs may be left."""
    folder = tmp_path / "job"
    folder.mkdir()
    not_ours = ("MSLAUNCH_", "PYTEST_", "COLUMNS", "LINES")
    env = {name: value for name, value in os.environ.items() if not name.startswith(not_ours)}
    result = Bench(folder, {**env, "GLOG_v": "3", "XDG_CONFIG_HOME": str(tmp_path / "config")})
    result.env["XDG_STATE_HOME"] = str(tmp_path / "state")
    yield result
    for process in result.started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
        if process.stdout:
            process.stdout.close()
    left = result.leftovers()
    for pid in left:  # a test that fails must not leave what it found
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert left == []


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """A control group with 200 MB of memory, where this machine lets us make one."""
    root = Path("/sys/fs/cgroup")
    old = root / "memory" / "memory.limit_in_bytes"
    group = (old.parent if old.exists() else root) / f"mslaunch-test-{os.getpid()}"
    limit = group / ("memory.limit_in_bytes" if old.exists() else "memory.max")
    try:
        group.mkdir()
        if not limit.exists():
            raise OSError("it has no memory controller")
        limit.write_text("200M")
    except OSError as error:
        if group.exists():
            group.rmdir()
        pytest.skip(f"no control group with a memory limit can be made here: {error}")
    yield group
    wait_for(lambda: not (group / "cgroup.procs").read_text().strip(), "the group to empty")
    group.rmdir()


@pytest.fixture
def needs_mpirun() -> None:
    if not shutil.which("mpirun"):
        pytest.skip("mpirun is not installed (Debian: openmpi-bin)")


@pytest.fixture(scope="session")
def python_3_9() -> str:
    """A Python 3.9, the oldest that hosts may have: from PATH or from pyenv."""
    on_path = [f"{folder}/python3.9" for folder in os.get_exec_path()]
    for path in (*on_path, *map(str, Path.home().glob(".pyenv/versions/3.9*/bin/python"))):
        # pyenv puts a python3.9 on PATH that only works if that version is selected.
        if Path(path).exists() and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
            return path
    pytest.skip("no Python 3.9 on this machine; tests/project/test_oldest_python.py checks the sources without one")


@pytest.fixture(scope="session")
def slurm() -> Iterator[slurm_bed.Slurm]:
    """A Slurm of our own, started once."""
    slurm_bed.needs_slurm()
    with slurm_bed.slurm() as made:
        yield made


@pytest.fixture
def site(bench: Bench, slurm: slurm_bed.Slurm) -> Iterator[Bench]:
    """A folder to launch from, where Slurm's commands find their cluster; its jobs are gone in the end."""
    bench.env |= slurm.env
    bench.write("train.py", ssh_bed.HELLO)
    yield bench
    slurm.run("scancel", "-u", "root")
    wait_for(lambda: not slurm.run("squeue", "-h").stdout, "Slurm's queue to be empty")


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    """A Kubernetes control plane of our own, started once."""
    from tests.beds.kubernetes_bed import control_plane

    with control_plane() as made:
        yield made


@pytest.fixture
def submitter(bench: Bench, plane: ControlPlane) -> Iterator[Bench]:
    """A folder to submit to Kubernetes from; nothing of any job may be left after the test."""
    bench.env["KUBECONFIG"] = str(plane.kubeconfig)
    yield bench
    try:
        wait_for(lambda: not plane.left(), f"all objects to be deleted; at first {plane.left()}", 60)
        wait_for(lambda: not plane.kubelet.running(), "all pods to end", 60)
    finally:
        plane.batch.delete_collection_namespaced_job("default", propagation_policy="Background")


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ssh_bed.Bed]:
    ssh_bed.needs_sshd()
    with ssh_bed.bed(tmp_path_factory.mktemp("ssh")) as made:
        yield made


@pytest.fixture
def far(bench: Bench, hosts: ssh_bed.Bed) -> Bench:
    """A folder to launch from, with a home whose ~/.ssh knows the hosts."""
    bench.env["HOME"] = str(hosts.home)
    bench.write("train.py", ssh_bed.HELLO)
    return bench


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that everybody may write to, as /tmp is."""
    path = Path(tempfile.mkdtemp(prefix="mslaunch-shared-"))
    path.chmod(0o1777)
    yield path
    shutil.rmtree(path)
