"""Sources of checkpoints that change between their headers and their values, or that cannot be read."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from mslaunch.checkpoint.formats.table import read_shard
from mslaunch.checkpoint.moving.file_io import SourceChanged
from mslaunch.checkpoint.sharding.reshard import plan_convert
from mslaunch.checkpoint.sharding.sets import find_set
from mslaunch.errors import ShardUnreadable
from mslaunch.weights.diff import compare
from mslaunch.weights.opening import open_weights
from mslaunch.weights.transfer import export_weights, import_weights
from tests.beds.sharded import write_shard
from tests.beds.torch_files import save_state
from tests.conftest import Bench

CHANGED = r"src\.\w+ changed while it was read; nothing was written\. Run it again\."


def write(path: Path, *names: str) -> Path:
    return write_shard(path, {name: ("Float32", (4, 4), os.urandom(64)) for name in names})


def replace(path: Path) -> None:
    """Put a newer checkpoint in its place, as a training does: of another layout."""
    write(path.with_name(f"newer{path.suffix}"), "long.name.of.a.parameter", "w").replace(path)


@pytest.mark.parametrize("change", [import_weights, export_weights], ids=["import", "export"])
def test_a_source_that_was_replaced_is_not_written(tmp_path: Path, change: type) -> None:
    """Its header says where the values of the old file were."""
    source = write(tmp_path / "src.safetensors", "w")
    planned = change(str(source), str(tmp_path / "out.safetensors"))
    replace(source)
    with pytest.raises(SourceChanged, match=CHANGED):
        planned.write()
    assert not (tmp_path / "out.safetensors").exists()


def test_a_converted_source_that_was_replaced_is_not_written(tmp_path: Path) -> None:
    """Convert reads headers and values apart too."""
    source = write(tmp_path / "src.ckpt", "w")
    planned = plan_convert(find_set(source), {0: read_shard(source)}, ".safetensors")
    replace(source)
    with pytest.raises(SourceChanged, match=CHANGED):
        planned.write_file(tmp_path / "out.safetensors")


def test_a_source_that_is_replaced_and_planned_again_is_known_by_both(tmp_path: Path) -> None:
    """The plan of the old file is refused, the plan of the new one is written."""
    source = write(tmp_path / "src.safetensors", "w")
    old = import_weights(str(source), str(tmp_path / "old.safetensors"))
    replace(source)
    new = import_weights(str(source), str(tmp_path / "new.safetensors"))
    with pytest.raises(SourceChanged, match=CHANGED):
        old.write()
    new.write()
    assert (tmp_path / "new.safetensors").exists()


@pytest.mark.parametrize("is_put_back", [False, True], ids=["new time", "old time"])
def test_a_source_that_changes_while_it_is_written_is_not_kept(tmp_path: Path, is_put_back: bool) -> None:
    """It is looked at again after the last block; a time that was put back hides nothing."""
    source = write(tmp_path / "src.safetensors", "w")
    before = source.stat()
    planned = import_weights(str(source), str(tmp_path / "out.safetensors"))

    def overwrite(_: int) -> None:
        time.sleep(0.02)  # the clock of file systems ticks every few milliseconds
        with source.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"x")
        if is_put_back:
            os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))

    with pytest.raises(SourceChanged, match=CHANGED):
        planned.write(overwrite)
    assert [path.name for path in tmp_path.iterdir()] == ["src.safetensors"]


def test_a_source_that_is_replaced_while_it_is_written_does_not_matter(tmp_path: Path) -> None:
    """The old file is read to its end."""
    source = write(tmp_path / "src.safetensors", "w")
    values = source.read_bytes()[-64:]
    import_weights(str(source), str(tmp_path / "out.ckpt")).write(lambda _: replace(source))
    assert (tmp_path / "out.ckpt").read_bytes()[-64:] == values


def test_compared_weights_that_were_replaced_are_told(tmp_path: Path) -> None:
    """No difference is made up of a file that has another layout by now."""
    first, second = (open_weights(write(tmp_path / f"{name}.safetensors", "w")) for name in ("src", "b"))
    replace(tmp_path / "src.safetensors")
    with pytest.raises(SourceChanged, match=CHANGED):
        list(compare(first, second))


def test_a_file_of_pytorch_that_was_replaced_is_not_written(tmp_path: Path) -> None:
    """Its header says where the values of the old file were, too."""
    source, newer = (
        save_state(tmp_path / f"{name}.pth", {"w": ("Float32", (4, 4), os.urandom(64))}) for name in ("src", "b")
    )
    planned = import_weights(str(source), str(tmp_path / "out.ckpt"))
    newer.replace(source)
    with pytest.raises(SourceChanged, match=CHANGED):
        planned.write()


def test_a_source_that_is_gone_is_named(tmp_path: Path) -> None:
    """It is the source that failed, not the target."""
    source = write(tmp_path / "src.safetensors", "w")
    planned = import_weights(str(source), str(tmp_path / "out.ckpt"))
    source.unlink()
    with pytest.raises(ShardUnreadable, match=r"src\.safetensors: no such file\. "):
        planned.write()


def test_a_pipe_is_no_checkpoint(bench: Bench) -> None:
    """It is not empty, and copying it again would not help."""
    os.mkfifo(bench.folder / "a.safetensors")
    done = bench.mslaunch("ckpt", "import", "a.safetensors", "--to", "out.ckpt")
    assert (done.returncode, done.stderr) == (2, "mslaunch: a.safetensors: it is no regular file. Name a file.\n")
