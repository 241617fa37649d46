"""NPUs and GPUs are one run's at a time: who is refused, who is told, and when a device is free again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mslaunch.errors import HostsNotReady
from mslaunch.hosts import Host
from mslaunch.launcher.check import Checked, Report, check_devices
from mslaunch.shared import device_locks
from mslaunch.shared.device_locks import DeviceLocks, holders
from tests.beds.other_user import needs_root, run_as
from tests.conftest import MSLAUNCH, ROOT, Bench
from tests.launcher.test_run_state import STOP, event, run_state_of, tell
from tests.sweeps.test_sweep import FAKE_DEVICES

HOLD = """
import sys, time
from mslaunch.shared import device_locks
device_locks.FOLDER, device_locks.DEVICES = sys.argv[1:3]
locks = device_locks.DeviceLocks()
print(locks.take("davinci", [0, 1], {}, "first"), flush=True)
time.sleep(60)
"""


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with four NPUs and no locks yet."""
    place = tmp_path / "dev"
    place.mkdir()
    for number in range(4):
        (place / f"davinci{number}").touch()
        (place / f"nvidia{number}").touch()
    monkeypatch.setattr(device_locks, "FOLDER", str(tmp_path / "locks"))
    monkeypatch.setattr(device_locks, "DEVICES", str(place))
    monkeypatch.setattr(device_locks, "PAUSE", 0.001)
    return place


def test_a_device_is_free_again_when_its_holder_has_died(devices: Path) -> None:
    """However it died: the file that it leaves is no lock."""
    held = subprocess.Popen(
        [sys.executable, "-c", HOLD, device_locks.FOLDER, str(devices)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert held.stdout is not None
    with held:
        assert held.stdout.readline() == "{}\n"
        refused = DeviceLocks().take("davinci", [1, 2], {}, "second")
        assert list(refused) == [1]
        assert refused[1].startswith(f"run first (pid {held.pid}, user ")
        assert list(holders("davinci", range(4), {})) == [0, 1, 2]
        held.send_signal(signal.SIGKILL)
        held.wait()
    assert holders("davinci", [0, 1], {}) == {}
    assert DeviceLocks().take("davinci", [0, 1], {}, "third") == {}


def test_a_run_does_not_refuse_itself(devices: Path) -> None:
    """A restart takes the same devices again."""
    del devices
    locks = DeviceLocks()
    assert locks.take("davinci", [0], {}, "run") == locks.take("davinci", [0], {}, "run") == {}


@pytest.mark.parametrize(
    ("first", "second", "refused"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "2,3"}, []),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, {"CUDA_VISIBLE_DEVICES": "3,1"}, [0]),
        (
            {"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_GPUS": "0,1"},
            {"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_GPUS": "2,3"},
            [],
        ),
        ({}, {}, [0, 1]),
    ],
)
def test_devices_are_told_apart_by_what_they_are(
    devices: Path, first: dict[str, str], second: dict[str, str], refused: list[int]
) -> None:
    """Not by the numbers that a process sees, which CUDA_VISIBLE_DEVICES and Slurm change."""
    del devices
    one = DeviceLocks()
    assert one.take("nvidia", [0, 1], first, "first") == {}
    assert list(DeviceLocks().take("nvidia", [0, 1], second, "second")) == refused


@pytest.mark.parametrize(
    "content", [b"", b"\xff\0", b"[]", b'{"run": "a\\u001b[2J", "pid": 1, "user": "u", "since": 1}']
)
def test_what_stands_in_a_lock_s_file_is_not_trusted(devices: Path, content: bytes) -> None:
    """Any user can write it."""
    del devices
    locks = DeviceLocks()
    locks.take("davinci", [0], {}, "run")
    (path,) = Path(device_locks.FOLDER).iterdir()
    path.write_bytes(content)
    assert holders("davinci", [0], {}) == {0: "another run"}


def test_a_file_that_was_linked_into_the_folder_is_left_alone(devices: Path, tmp_path: Path) -> None:
    """It may be any file of the user who takes the lock."""
    del devices
    locks = DeviceLocks()
    locks.take("davinci", [0], {}, "run")
    (path,) = Path(device_locks.FOLDER).iterdir()
    path.unlink()
    (tmp_path / "own.txt").write_text("own")
    path.hardlink_to(tmp_path / "own.txt")
    second = DeviceLocks()
    assert second.take("davinci", [0], {}, "second") == {}
    assert second.problem == f"{path}: not a file of its own"
    assert holders("davinci", [0], {}) == {}
    assert (tmp_path / "own.txt").read_text() == "own"


def test_a_folder_that_cannot_be_made_means_no_locks(devices: Path) -> None:
    """A launch does not fail for it, and reports it."""
    Path(device_locks.FOLDER).write_text("")
    locks = DeviceLocks()
    assert locks.take("davinci", [0], {}, "run") == {}
    assert (locks.problem or "").endswith(": Not a directory")
    assert holders("davinci", [0], {}) == {}
    assert devices.is_dir()


TAKE = """
import sys
from mslaunch.shared import device_locks
device_locks.FOLDER, device_locks.DEVICES = sys.argv[1:3]
locks = device_locks.DeviceLocks()
print(locks.take("davinci", [0], {}, "run"), locks.problem)
"""


@needs_root
@pytest.mark.parametrize("closed", ["folder", "file"])
def test_locks_that_another_user_has_closed_are_reported(
    devices: Path, shared_folder: Path, monkeypatch: pytest.MonkeyPatch, closed: str
) -> None:
    """Whoever made the folder, or a lock's file, may have kept others out: the run goes on, and says so."""
    folder = shared_folder / "locks"
    monkeypatch.setattr(device_locks, "FOLDER", str(folder))
    DeviceLocks().take("davinci", [0], {}, "root's")
    (file,) = folder.iterdir()
    place = folder if closed == "folder" else file
    place.chmod(0o700)
    shutil.copytree(devices, shared_folder / "dev", copy_function=os.link)
    argv = [sys.executable, "-c", TAKE, str(folder), str(shared_folder / "dev")]
    done = run_as(argv, shared_folder, {"PYTHONPATH": str(ROOT)})
    assert done.stdout == f"{{}} {file}: Permission denied ({folder} was made by root)\n", done.stderr


def test_devices_that_were_taken_in_the_last_moment_end_the_run() -> None:
    """With exit code 3, as if it had been seen before."""
    run_state = run_state_of(2)
    assert tell(run_state, event("devices-held", 1.0, held={"0": "run x", "1": "run x"})) == STOP
    failure = run_state.ending.failures[0]
    assert (failure.exit_code, failure.cause) == (3, "devices")
    assert "device 0-1 is used by run x. Wait" in failure.summary


COMMANDS = """
{train} -n 2 --detach --run-id first wait.py >first.txt 2>&1
{train} -n 2 --run-id refused go.py >refused.txt 2>&1; echo "refused $?"
{train} -n 2 --devices 2,3 --run-id beside go.py >beside.txt 2>&1; echo "beside $?"
{train} -n 2 --share-devices --run-id shared go.py >shared.txt 2>&1; echo "shared $?"
{train} -n 2 --run-id planned --dry-run go.py >planned.txt 2>&1; echo "planned $?"
{mslaunch} stop first >stop.txt 2>&1
{train} -n 2 --run-id after go.py >after.txt 2>&1; echo "after $?"
"""


def test_two_runs_do_not_use_one_device(bench: Bench, tmp_path: Path) -> None:
    """The second is refused with the name of the first, unless it uses others, shares them, or comes later."""
    bench.write("wait.py", "import time\ntime.sleep(60)\n")
    bench.write("go.py", "print('went')\n")
    place = tmp_path / "dev"
    place.mkdir()
    script = COMMANDS.format(train=f"{MSLAUNCH} train", mslaunch=MSLAUNCH)
    words = ["unshare", "--mount", "sh", "-c", FAKE_DEVICES.format(place=place), "sh", "sh", "-c", script]
    done = subprocess.run(words, cwd=bench.folder, env=bench.env, capture_output=True, text=True)
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip("a /dev of one's own needs root")
    texts = {path.stem: path.read_text() for path in bench.folder.glob("*.txt")}
    assert done.stdout.splitlines() == ["refused 3", "beside 0", "shared 0", "planned 0", "after 0"], texts
    assert "mslaunch: device 0-1 is used by run first (pid " in texts["refused"]
    assert texts["refused"].rstrip().endswith("Wait, name others with --devices or --hosts, or give --share-devices.")
    assert not (bench.runs / "refused").exists()
    assert json.loads((bench.runs / "shared" / "plan.json").read_text())["share_devices"] is True


@pytest.mark.parametrize(("share", "refused"), [(False, True), (True, False)])
def test_other_hosts_tell_which_of_their_devices_are_held(share: bool, refused: bool) -> None:
    """What train and `mslaunch check` ask first."""
    host = Host("n1", "10.0.0.1", (0, 1))
    facts = {"devices": {"Ascend": [0, 1]}, "held": {"davinci1": "run x (pid 1, user u)"}, "busy": {}}
    checked = Checked({"n1": Report(host, facts, 0.0)}, 1)
    if not refused:
        check_devices((host,), checked, "Ascend", share)
        return
    with pytest.raises(HostsNotReady, match=r"n1: device 1 is used by run x \(pid 1, user u\)\. Wait"):
        check_devices((host,), checked, "Ascend", share)
