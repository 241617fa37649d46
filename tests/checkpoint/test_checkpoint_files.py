"""Which checkpoints are whole, and which one a restart resumes from."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from mslaunch.checkpoint.formats.table import read_shard
from mslaunch.checkpoint.sharding.resuming import Resume, find_for_ranks
from mslaunch.checkpoint.sharding.saved_files import step_of
from mslaunch.errors import MslaunchError, RequestError
from tests.beds.other_user import ROOT, needs_root, run_as
from tests.beds.sharded import Content, shard_bytes, write_anew


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


def resume(folders: Mapping[int, Path], prefix: str | None = None, starts: Sequence[float] = (0.0,)) -> Resume:
    return find_for_ranks(folders, "saved", prefix, starts)


def newest(folders: Mapping[int, Path], prefix: str | None = None) -> dict[int, str]:
    """The name of the file that each rank resumes from, in its own folder."""
    return {rank: str(Path(path).relative_to(folders[rank])) for rank, path in resume(folders, prefix).files.items()}


def two_ranks(tmp_path: Path) -> dict[int, Path]:
    return {rank: tmp_path / f"rank_{rank}" / "saved" for rank in range(2)}


def test_steps_are_numbers() -> None:
    """10 comes after 9; files of other names are none."""
    assert step_of(Path("net-9_10.ckpt")) == (9, 10)
    assert step_of(Path("net_1-10_5.safetensors")) == (10, 5)
    for name in ("net-graph.meta", "best.ckpt", "net-01_5.ckpt"):
        assert step_of(Path(name)) is None


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
    """Step 10 is newer than 9; one that is missing or cut on any rank does not count, and the note says so."""
    folders = two_ranks(tmp_path)
    for rank, steps in ((0, (8, 9, 10, 11)), (1, (8, 9, 10))):
        for step in steps:
            write_ckpt(folders[rank] / f"net-1_{step}.ckpt")
    assert newest(folders) == {0: "net-1_10.ckpt", 1: "net-1_10.ckpt"}
    assert resume(folders).words == "resuming from net-1_10.ckpt (net-1_11.ckpt on rank 1: missing)"
    (folders[1] / "net-1_10.ckpt").write_bytes(b"\x0a\xac\x02")
    assert newest(folders) == {0: "net-1_9.ckpt", 1: "net-1_9.ckpt"}


def test_nothing_complete_is_a_start_from_step_0(tmp_path: Path) -> None:
    """No folder, no files, no common step: the note says where was looked."""
    assert resume({0: tmp_path / "none", 1: tmp_path}) == Resume(
        {}, "no checkpoint found in saved, starting from step 0"
    )
    write_ckpt(tmp_path / "a" / "n-1_1.ckpt")
    write_ckpt(tmp_path / "b" / "n-1_2.ckpt")
    words = "no complete checkpoint found in saved (n-1_2.ckpt on rank 0: missing), starting from step 0"
    assert resume({0: tmp_path / "a", 1: tmp_path / "b"}) == Resume({}, words)


def test_two_networks_are_not_mixed(tmp_path: Path) -> None:
    """Which one a restart resumes is not guessed: the note has both names and the setting that chooses."""
    folders = two_ranks(tmp_path)
    for folder in folders.values():
        for name in ("net_1", "net_2"):
            write_ckpt(folder / f"{name}-3_120.ckpt")
    found = resume(folders)
    assert found.files == {}
    assert "holds several networks (net_1, net_2). Name one: launch.checkpoint_prefix: 'net_1'" in found.words
    assert newest(folders, "net_2") == {0: "net_2-3_120.ckpt", 1: "net_2-3_120.ckpt"}


def test_mindformers_layout_is_found_a_level_down(tmp_path: Path) -> None:
    """checkpoint/rank_R/PREFIX_rank_R-E_S, below each rank's own folder or in one that all ranks share."""
    own = {rank: tmp_path / f"run/rank_{rank}/checkpoint" for rank in range(2)}
    shared = dict.fromkeys(range(2), tmp_path / "shared")
    flat = dict.fromkeys(range(2), tmp_path / "flat")
    for rank in range(2):
        for place in (own[rank] / f"rank_{rank}", shared[rank] / f"rank_{rank}", flat[rank]):
            write_ckpt(place / f"llama_rank_{rank}-1_10.ckpt")
    for folders in (own, shared):
        assert newest(folders) == {rank: f"rank_{rank}/llama_rank_{rank}-1_10.ckpt" for rank in range(2)}
    assert newest(flat) == {rank: f"llama_rank_{rank}-1_10.ckpt" for rank in range(2)}


def test_files_of_two_levels_are_not_put_together(tmp_path: Path) -> None:
    """A file that is left in rank 0's folder is not of the same training as rank 1's a level down."""
    folders = two_ranks(tmp_path)
    for rank, folder in folders.items():
        write_ckpt(folder / f"rank_{rank}" / "net-1_10.ckpt")
    assert newest(folders, "net") == {rank: f"rank_{rank}/net-1_10.ckpt" for rank in folders}
    write_ckpt(folders[0] / "net-1_10.ckpt")
    assert "holds several networks (net, rank_*/net)" in resume(folders).words


def test_a_second_run_counts_for_all_ranks_alike(tmp_path: Path) -> None:
    """MindSpore calls its files net_1; one that a rank lacks is not put together with the first run's."""
    folders = two_ranks(tmp_path)
    for folder in folders.values():
        write_ckpt(folder / "net-1_30.ckpt")
        write_ckpt(folder / "net_1-1_10.ckpt")
    assert newest(folders) == {0: "net_1-1_10.ckpt", 1: "net_1-1_10.ckpt"}
    (folders[1] / "net_1-1_10.ckpt").unlink()
    assert newest(folders) == {0: "net-1_30.ckpt", 1: "net-1_30.ckpt"}


def test_a_file_that_lacks_a_parameter_is_not_whole(tmp_path: Path) -> None:
    """Cut between two parameters, it can be read; the step before, or another rank, has more."""
    folders = two_ranks(tmp_path)
    for rank, folder in folders.items():
        write_ckpt(folder / "net-1_1.ckpt")
        write_ckpt(folder / "net-1_2.ckpt", values=3 - rank)
    assert newest(folders) == {0: "net-1_1.ckpt", 1: "net-1_1.ckpt"}
    assert "net-1_2.ckpt on rank 1: lacks w2, which net-1_1.ckpt has" in resume(folders).words
    for folder in folders.values():
        (folder / "net-1_1.ckpt").unlink()
    assert "net-1_2.ckpt on rank 1: lacks w2, which rank 0's file has" in resume(folders).words
    for folder in folders.values():
        (folder / "net-1_1.ckpt").write_bytes((folder / "net-1_2.ckpt").read_bytes())
    assert newest(folders)[1] == "net-1_2.ckpt"  # as the step before: rank 1 has these parameters only


def test_a_file_with_a_wrong_checksum_is_not_whole(tmp_path: Path) -> None:
    """The step before is taken."""
    write_ckpt(tmp_path / "net-1_1.ckpt")
    write_ckpt(tmp_path / "net-1_2.ckpt", trailer=b"crc_num" + (5).to_bytes(10, "big"))
    assert newest({0: tmp_path}) == {0: "net-1_1.ckpt"}


def test_steps_with_different_shapes_are_not_guessed_between(tmp_path: Path) -> None:
    """They are of two networks, or of other numbers of ranks."""
    whole = write_ckpt(tmp_path / "net-1_1.ckpt")
    write_anew(tmp_path / "net-1_2.ckpt", shard_bytes(whole, {"w0": ("Int8", (2,), bytes(2))}))
    found = resume({0: tmp_path})
    assert found.files == {}
    assert "net-1_2.ckpt: has w0 as Int8 2, and net-1_1.ckpt has it as Int8 281" in found.words


def test_a_step_of_two_attempts_is_not_complete(tmp_path: Path) -> None:
    """Rank 1's file is left from the attempt before: it belongs to other values than rank 0's."""
    folders = two_ranks(tmp_path)
    for rank, folder in folders.items():
        for step in (1, 2):
            time = 200 if (rank, step) == (0, 2) else 100
            os.utime(write_ckpt(folder / f"net-1_{step}.ckpt"), (time, time))
    found = resume(folders, starts=(50.0, 150.0))
    assert {Path(path).name for path in found.files.values()} == {"net-1_1.ckpt"}


def test_fewer_ranks_resume_only_what_all_ranks_have(tmp_path: Path) -> None:
    """Where the ranks' files differ, a shrunk job would lack slices, and is refused."""
    folders = two_ranks(tmp_path)
    for folder in folders.values():
        write_ckpt(folder / "net-1_1.ckpt")
    found = resume(folders)
    assert found.for_world(2) is found
    assert found.for_world(1).files == {0: found.files[0]}
    content: Content = {f"w{index}": ("Int8", (281,), bytes([index]) * 281) for index in range(3)}
    write_anew(folders[1] / "net-1_1.ckpt", shard_bytes(folders[1] / "net-1_1.ckpt", content))
    with pytest.raises(RequestError, match=r"1 ranks cannot resume what 2 ranks saved.*w1 of rank 1 is not rank 0's"):
        resume(folders).for_world(1)


def test_checkpoints_of_an_earlier_job_do_not_count(tmp_path: Path) -> None:
    """A shared folder may hold last week's, with a higher step, or as the first run of the same name."""
    old, new = write_ckpt(tmp_path / "net-9_9.ckpt"), write_ckpt(tmp_path / "net-1_1.ckpt")
    os.utime(old, (1000, 1000))
    starts = (new.stat().st_mtime - 60,)
    assert resume({0: tmp_path}, starts=starts).files == {0: str(new)}
    new.unlink()
    for name in ("net_1-1_1.ckpt", "net_2-1_1.ckpt"):
        write_ckpt(tmp_path / name)
    assert resume({0: tmp_path}, starts=starts).files == {0: str(tmp_path / "net_2-1_1.ckpt")}


def test_what_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    """A dangling link, a link to itself, a folder and a cut file of newer steps leave the newest whole step."""
    write_ckpt(tmp_path / "net-1_1.ckpt")
    (tmp_path / "net-1_2.ckpt").symlink_to("nowhere")
    (tmp_path / "net-1_3.ckpt").symlink_to("net-1_3.ckpt")
    (tmp_path / "net-1_4.ckpt").mkdir()
    assert newest({0: tmp_path}) == {0: "net-1_1.ckpt"}


NEWEST = """
import sys
from pathlib import Path
from mslaunch.checkpoint.sharding.resuming import find_for_ranks
print(*find_for_ranks({0: Path(sys.argv[1])}, "", None, (0.0,)).files.values())
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
