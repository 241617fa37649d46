"""Which checkpoints are whole, and which step all ranks have."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from mslaunch.checkpoint.files import newest_complete, step_of
from mslaunch.checkpoint.shard import read_shard
from mslaunch.errors import MslaunchError
from tests.other_user import ROOT, needs_root, run_as
from tests.sharded import Content, shard_bytes, write_anew


def is_whole(path: Path) -> bool:
    """Tell whether a checkpoint file ends where its own lengths say; only those are read."""
    try:
        read_shard(path)
    except MslaunchError:
        return False
    return True


def write_ckpt(path: Path, values: int = 3, trailer: bytes = b"") -> Path:
    """A checkpoint of so many parameters, each of 303 bytes in the file."""
    content: Content = {f"w{index}": ("Int8", (281,), bytes(281)) for index in range(values)}
    return write_anew(path, shard_bytes(path, content) + trailer)


def test_steps_are_numbers() -> None:
    """10 comes after 9; files of other names are none."""
    assert step_of(Path("net-9_10.ckpt")) == (9, 10, "net")
    assert step_of(Path("net_1-10_5.safetensors")) == (10, 5, "net")
    assert step_of(Path("net-graph.meta")) is None
    assert step_of(Path("best.ckpt")) is None


def test_a_truncated_file_is_not_whole(tmp_path: Path) -> None:
    """Every cut inside a record is seen; a checksum at the end is allowed."""
    path = write_ckpt(tmp_path / "a-1_1.ckpt")
    assert is_whole(path)
    assert is_whole(write_ckpt(tmp_path / "b-1_1.ckpt", trailer=b"crc_num" + bytes(10)))
    whole = path.read_bytes()
    cuts = [size for size in range(len(whole)) if size % 303]
    for size in cuts[::37]:
        path.write_bytes(whole[:size])
        assert not is_whole(path), size
    path.write_bytes(b"")
    assert not is_whole(path)


def test_safetensors_end_where_their_header_says(tmp_path: Path) -> None:
    """A file that is shorter or longer than its header says is not whole."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    path = tmp_path / "a-1_1.safetensors"
    for data, whole in ((8, True), (7, False), (9, False)):
        path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(data))
        assert is_whole(path) is whole
    path.write_bytes(b"\xff" * 20)
    assert not is_whole(path)


def test_the_newest_step_that_is_whole_on_all_ranks_is_taken(tmp_path: Path) -> None:
    """Step 10 is newer than 9; one that is missing or cut on any rank does not count."""
    folders = {rank: tmp_path / f"rank_{rank}" for rank in range(2)}
    for rank, steps in ((0, (8, 9, 10, 11)), (1, (8, 9, 10))):
        for step in steps:
            write_ckpt(folders[rank] / f"net-1_{step}.ckpt")
    assert newest_complete(folders) == {rank: folders[rank] / "net-1_10.ckpt" for rank in folders}
    (folders[1] / "net-1_10.ckpt").write_bytes(b"\x0a\xac\x02")
    assert newest_complete(folders) == {rank: folders[rank] / "net-1_9.ckpt" for rank in folders}


def test_nothing_complete_is_nothing(tmp_path: Path) -> None:
    """No folder, no files, no common step: the job starts from the beginning."""
    assert newest_complete({0: tmp_path / "none", 1: tmp_path}) == {}
    write_ckpt(tmp_path / "a" / "n-1_1.ckpt")
    write_ckpt(tmp_path / "b" / "n-1_2.ckpt")
    assert newest_complete({0: tmp_path / "a", 1: tmp_path / "b"}) == {}


def test_two_networks_in_one_folder_are_told_apart(tmp_path: Path) -> None:
    """All ranks resume the same one."""
    folders = {rank: tmp_path / f"rank_{rank}" for rank in range(2)}
    for folder in folders.values():
        write_ckpt(folder / "generator-3_120.ckpt")
        write_ckpt(folder / "discriminator-3_120.ckpt")
    assert len({path.name for path in newest_complete(folders).values()}) == 1


def test_checkpoints_of_an_earlier_job_do_not_count(tmp_path: Path) -> None:
    """A shared folder may hold last week's, with a higher step."""
    old, new = write_ckpt(tmp_path / "net-9_9.ckpt"), write_ckpt(tmp_path / "net-1_1.ckpt")
    os.utime(old, (1000, 1000))
    assert newest_complete({0: tmp_path}, since=new.stat().st_mtime - 60) == {0: new}


def test_what_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    """A dangling link, a link to itself, a folder and a cut file of newer steps leave the newest whole step."""
    whole = write_ckpt(tmp_path / "net-1_1.ckpt")
    (tmp_path / "net-1_2.ckpt").symlink_to("nowhere")
    (tmp_path / "net-1_3.ckpt").symlink_to("net-1_3.ckpt")
    (tmp_path / "net-1_4.ckpt").mkdir()
    assert newest_complete({0: tmp_path}) == {0: whole}


NEWEST = """
import sys
from pathlib import Path
from mslaunch.checkpoint.files import newest_complete
print(*newest_complete({0: Path(sys.argv[1])}).values())
"""


@needs_root
def test_unreadable_files_and_folders_are_passed_over(shared_folder: Path) -> None:
    """What another user may not read or enter counts as missing."""
    for name in ("open/net-1_1.ckpt", "open/net-1_2.ckpt", "closed/net-1_1.ckpt"):
        write_ckpt(shared_folder / name).chmod(0o644)
    (shared_folder / "open/net-1_2.ckpt").chmod(0o600)
    (shared_folder / "closed").chmod(0o700)
    for folder, newest in (("open", f"{shared_folder}/open/net-1_1.ckpt\n"), ("closed", "\n"), ("closed/below", "\n")):
        done = run_as([sys.executable, "-c", NEWEST, str(shared_folder / folder)], ROOT)
        assert (done.stdout, done.stderr) == (newest, "")
