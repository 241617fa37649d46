"""`mslaunch infer`: a sharded checkpoint on as many ranks as are asked for. MindSpore wrote the shards."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from mslaunch.checkpoint.formats.table import read_shard
from mslaunch.checkpoint.sharding.strategy import read_strategy, write_strategy
from mslaunch.launcher.inference import choose_files, kept_folder, place_set, read_set
from mslaunch.launcher.read import CheckpointRequest
from tests.conftest import Bench

FIXTURES = Path(__file__).parents[1] / "fixtures"
SCRIPT = """
import json, os
from mslaunch.runtime import checkpoint_file, checkpoint_files
print(json.dumps([checkpoint_file(), checkpoint_files()]))
"""


@pytest.fixture
def served(bench: Bench) -> Bench:
    """A folder with infer.py and a set of four shards, steps 9 and 10, with their strategy beside them."""
    bench.write("infer.py", SCRIPT)
    for rank in range(4):
        source = FIXTURES / f"checkpoints/tp4/rank_{rank}/net{rank}.ckpt"
        folder = bench.folder / f"ckpt/rank_{rank}"
        folder.mkdir(parents=True)
        for step in (9, 10):
            shutil.copy(source, folder / f"net-1_{step}.ckpt")
    shutil.copy(FIXTURES / "strategies/tp4/strategy_0.json", bench.folder / "ckpt/strategy.json")
    return bench


def told(bench: Bench, rank: int) -> Any:
    """What a rank was told: its own file, and the whole list."""
    return json.loads(bench.log(rank))


def shapes(path: str) -> dict[str, tuple[int, ...]]:
    return {name: tensor.shape for name, tensor in read_shard(Path(path)).tensors.items()}


def test_as_many_ranks_as_trained_get_their_own_files(served: Bench) -> None:
    """Without --workers the strategy says how many; the newest step is taken, 10 after 9; nothing is copied."""
    done = served.mslaunch("infer", "--strategy", "ckpt/strategy.json")
    assert done.returncode == 0, done.stderr
    files = [str(served.folder / f"ckpt/rank_{rank}/net-1_10.ckpt") for rank in range(4)]
    assert [told(served, rank) for rank in range(4)] == [[files[rank], files] for rank in range(4)]
    assert not (served.latest / "checkpoints").exists()
    assert "epoch 1, step 10" in done.stdout


def test_a_step_can_be_asked_for(served: Bench) -> None:
    """--step takes an earlier one; one that is not there is named with those that are."""
    assert served.mslaunch("infer", "--strategy", "ckpt/strategy.json", "--step", "1_9").returncode == 0
    assert told(served, 2)[0].endswith("rank_2/net-1_9.ckpt")
    done = served.mslaunch("infer", "--strategy", "ckpt/strategy.json", "--step", "1_11")
    assert done.returncode == 2
    assert "1_9, 1_10" in done.stderr


def test_fewer_ranks_get_a_resharded_set_that_is_kept(served: Bench) -> None:
    """The set is cut anew into the run's folder, once; the next run uses it again, without another copy."""
    files = []
    for _ in range(2):
        done = served.mslaunch("infer", "--strategy", "ckpt/strategy.json", "--workers", "2")
        assert done.returncode == 0, done.stderr
        assert "resharded from 4 ranks to 2" in done.stdout
        own, listed = told(served, 1)
        assert own == listed[1] == str(served.latest / "checkpoints/rank_1/net-1_10.ckpt")
        files.append(Path(own))
    expected = shapes(str(FIXTURES / "checkpoints/tp2/rank_1/net1.ckpt"))
    assert shapes(str(files[0])) == expected
    assert files[0] != files[1]
    assert files[0].samefile(files[1])
    assert len(list(kept_folder(served.runs).iterdir())) == 1


def change_a_value(path: Path) -> None:
    """Change one value of a file, and put its times back."""
    before, mode = path.stat(), path.stat().st_mode
    data = bytearray(path.read_bytes())
    data[40] ^= 1  # of net.blocks.0.bias, which is cut
    path.chmod(0o600)
    path.write_bytes(data)
    path.chmod(mode)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_kept_set_is_used_for_the_same_bytes_only(served: Bench) -> None:
    """A model of the same names, shapes and times, or the same file with one other value, is resharded again."""
    shutil.copytree(served.folder / "ckpt", served.folder / "other")
    for path in (served.folder / "other").glob("rank_3/*"):
        change_a_value(path)
    files = []
    for model in ("ckpt", "other", "ckpt", "other"):
        assert served.mslaunch("infer", "--ckpt", model, "--workers", "2").returncode == 0
        files.append(Path(told(served, 1)[0]))
    assert files[0].read_bytes() != files[1].read_bytes()
    assert [files[0].samefile(file) for file in files] == [True, False, True, False]
    assert files[1].samefile(files[3])


def test_a_resharded_set_is_resharded_again(served: Bench) -> None:
    """The files of a run, which are kept too, serve as the checkpoint of another."""
    assert served.mslaunch("infer", "--ckpt", "ckpt", "--workers", "2").returncode == 0
    made = served.latest.resolve() / "checkpoints"
    done = served.mslaunch("infer", "--ckpt", str(made), "--workers", "1")
    assert done.returncode == 0, done.stderr
    assert shapes(told(served, 0)[0]) == shapes(str(FIXTURES / "checkpoints/full/rank_0/net.ckpt"))


def test_a_kept_set_that_was_changed_is_not_used_again(served: Bench) -> None:
    """What is kept is read-only; a process of root may change it all the same, and puts the times back."""
    expected = FIXTURES / "checkpoints/tp2/rank_0/net0.ckpt"
    for change in (change_a_value, lambda path: os.truncate(path, 0)):
        assert served.mslaunch("infer", "--ckpt", "ckpt", "--workers", "2").returncode == 0
        kept = Path(told(served, 0)[0])
        assert kept.stat().st_mode & 0o777 == 0o400
        assert kept.read_bytes() == expected.read_bytes()
        change(kept)


def test_kept_sets_go_with_their_last_run(served: Bench) -> None:
    """A set that no run links to any more is removed by the next infer."""
    assert served.mslaunch("infer", "--strategy", "ckpt/strategy.json", "--workers", "2").returncode == 0
    shutil.rmtree(served.latest)
    assert served.mslaunch("infer", "--strategy", "ckpt/strategy.json", "--workers", "1").returncode == 0
    assert len(list(kept_folder(served.runs).iterdir())) == 1


def test_runs_keep_their_sets_where_there_are_no_hard_links(served: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run has a set of its own, and nothing is kept."""

    def refused(source: Path, target: Path, **_: bool) -> None:
        raise OSError(errno.EPERM, "Operation not permitted", str(source), None, str(target))

    monkeypatch.setattr(os, "link", refused)
    given = []
    for workers in (2, 1):
        run = served.runs / f"with-{workers}"
        run.mkdir(parents=True)
        chosen = choose_files(read_set(CheckpointRequest(served.folder / "ckpt")), workers, str(run))
        given.append(chosen.checkpoints.files[0])
        assert chosen.reshard is not None
        place_set(chosen.reshard, run, lambda nbytes: lambda done: None, print)
    assert shapes(given[0]) == shapes(str(FIXTURES / "checkpoints/tp2/rank_0/net0.ckpt"))


def test_one_rank_gets_the_whole_model(served: Bench) -> None:
    """Single-card inference merges the slices."""
    assert served.mslaunch("infer", "--strategy", "ckpt/strategy.json", "--workers", "1").returncode == 0
    assert shapes(told(served, 0)[0]) == shapes(str(FIXTURES / "checkpoints/full/rank_0/net.ckpt"))


def test_a_predict_strategy_says_layout_and_number(served: Bench) -> None:
    """Its ranks are started, its layout is cut; another --workers disagrees with it."""
    predict = str(FIXTURES / "strategies/tp2/strategy_0.ckpt")
    asked = ("infer", "--strategy", "ckpt/strategy.json", "--predict-strategy", predict)
    assert served.mslaunch(*asked).returncode == 0
    assert shapes(told(served, 0)[0]) == shapes(str(FIXTURES / "checkpoints/tp2/rank_0/net0.ckpt"))
    done = served.mslaunch(*asked, "--workers", "4")
    assert done.returncode == 2
    assert "--workers says 4" in done.stderr


def test_a_data_parallel_checkpoint_serves_any_number_of_ranks(served: Bench) -> None:
    """Where the strategy cuts nothing, every rank is given the whole model."""
    ckpt, strategy = FIXTURES / "checkpoints/dp4", FIXTURES / "strategies/dp4/strategy_0.ckpt"
    done = served.mslaunch("infer", "--strategy", str(strategy), "--ckpt", str(ckpt), "--workers", "3")
    assert done.returncode == 0, done.stderr
    assert len({told(served, rank)[0] for rank in range(3)}) == 1


def test_a_strategy_of_one_rank_still_says_where_to_cut(served: Bench) -> None:
    """Trained on one rank, inferred on two: the dimensions that the strategy names are the ones that are cut."""
    strategy = json.loads((served.folder / "ckpt/strategy.json").read_text())
    for item in strategy["parallel_layout_item"].values():
        item["dev_matrix"] = [1]
    served.write("one/strategy.json", json.dumps(strategy))
    (served.folder / "one/rank_0").mkdir()
    shutil.copy(FIXTURES / "checkpoints/full/rank_0/net.ckpt", served.folder / "one/rank_0/net.ckpt")
    done = served.mslaunch("infer", "--strategy", "one/strategy.json", "--workers", "2")
    assert done.returncode == 0, done.stderr
    assert shapes(told(served, 1)[0]) == shapes(str(FIXTURES / "checkpoints/tp2/rank_1/net1.ckpt"))


def test_without_a_strategy_every_rank_gets_the_same_file(served: Bench) -> None:
    """Plain data-parallel inference; that rank 0's is taken of several that are the same is said."""
    one = str(FIXTURES / "checkpoints/full/rank_0/net.ckpt")
    assert served.mslaunch("infer", "--ckpt", one, "--workers", "2").returncode == 0
    assert told(served, 1) == [one, [one, one]]
    done = served.mslaunch("infer", "--ckpt", str(FIXTURES / "checkpoints/dp4"), "--workers", "2")
    assert "every rank is given rank 0's" in done.stdout
    assert told(served, 1)[0].endswith("rank_0/net0.ckpt")


@pytest.mark.parametrize("name", ["strategy.json", "strategy.ckpt", "train_strategy.ckpt"])
def test_the_strategy_beside_the_shards_counts_where_none_is_named(served: Bench, name: str) -> None:
    """Its ranks are started, each gets its own shard, and which file says so is told."""
    written = (served.folder / "ckpt/strategy.json").rename(served.folder / "ckpt" / name)
    if name.endswith(".ckpt"):
        read = read_strategy(FIXTURES / "strategies/tp4/strategy_0.json")
        written.write_bytes(write_strategy(sorted(read.stages[0].items())))
    done = served.mslaunch("infer", "--ckpt", "ckpt")
    assert done.returncode == 0, done.stderr
    assert [Path(told(served, rank)[0]).parent.name for rank in range(4)] == [f"rank_{rank}" for rank in range(4)]
    assert f"cut as ckpt/{name} says" in done.stdout


def test_two_strategies_beside_the_shards_are_refused(served: Bench) -> None:
    """Which one belongs to the shards is for the user to say."""
    shutil.copy(served.folder / "ckpt/strategy.json", served.folder / "ckpt/train_strategy.ckpt")
    done = served.mslaunch("infer", "--ckpt", "ckpt")
    assert (done.returncode, done.stderr) == (
        2,
        "mslaunch: ckpt: has strategy.json and train_strategy.ckpt. "
        "Say with --strategy FILE which one belongs to the shards.\n",
    )


def test_a_strategy_in_a_folder_without_shards_is_left_alone(served: Bench) -> None:
    """A folder with one whole model is no set of shards, whatever else it holds."""
    served.write("plain/strategy.json", (served.folder / "ckpt/strategy.json").read_text())
    shutil.copy(FIXTURES / "checkpoints/full/rank_0/net.ckpt", served.folder / "plain/net.ckpt")
    assert served.mslaunch("infer", "--ckpt", "plain", "--workers", "2").returncode == 0
    assert told(served, 1)[0] == str(served.folder / "plain/net.ckpt")


def test_shards_that_differ_are_refused_without_a_strategy(served: Bench) -> None:
    """Rank 0's slices for all ranks would give wrong answers, so nothing is started."""
    (served.folder / "ckpt/strategy.json").unlink()
    done = served.mslaunch("infer", "--ckpt", "ckpt", "--workers", "2")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "ckpt: shards of 4 ranks, and no --strategy; they are not the same" in done.stderr
    assert not served.runs.exists()


@pytest.mark.parametrize("named", ["script: train.py", "module: train", "command: [python, train.py]"])
def test_infer_does_not_run_what_the_config_names_for_training(served: Bench, named: str) -> None:
    """infer.py beside the config counts more than the config's program, and that is told."""
    served.write("train.py", "raise SystemExit('trained')")
    served.write("cfg.yaml", f"launch:\n  {named}\n")
    done = served.mslaunch("infer", "--ckpt", "ckpt", "--config", "cfg.yaml")
    assert done.returncode == 0, done.stdout
    setting = named.partition(":")[0]
    assert f"infer.py is run, not what cfg.yaml:2 (launch.{setting}) names; --script FILE runs another" in done.stdout


@pytest.mark.parametrize(
    "typed", [("--script", "serve.py"), ("--set", "launch.script=serve.py"), ("serve.py",)], ids=lambda typed: typed[0]
)
def test_a_script_that_is_typed_counts_more_than_infer_py(served: Bench, typed: tuple[str, ...]) -> None:
    """Only what the config names counts less."""
    served.write("serve.py", "print('served')")
    served.write("cfg.yaml", "launch:\n  script: train.py\n")
    done = served.mslaunch("infer", "--ckpt", "ckpt", "--config", "cfg.yaml", *typed)
    assert (done.returncode, served.log(0)) == (0, "served\n"), done.stderr


def test_the_script_of_the_config_is_run_where_there_is_no_infer_py(served: Bench) -> None:
    """A config that is written for inference names its script."""
    (served.folder / "infer.py").rename(served.folder / "serve.py")
    served.write("cfg.yaml", "launch:\n  script: serve.py\n")
    assert served.mslaunch("infer", "--ckpt", "ckpt", "--config", "cfg.yaml").returncode == 0
    assert told(served, 1)[0].endswith("rank_1/net-1_10.ckpt")


def test_a_config_that_names_an_infer_py_elsewhere_is_followed(served: Bench) -> None:
    """It names the script for inference itself, so there is nothing to tell."""
    served.write("serving/infer.py", "print('served')")
    served.write("cfg.yaml", "launch:\n  script: serving/infer.py\n")
    done = served.mslaunch("infer", "--ckpt", "ckpt", "--config", "cfg.yaml")
    assert (done.returncode, served.log(0), "is run, not" in done.stdout) == (0, "served\n", False)


def test_a_set_that_is_not_complete_starts_nothing(served: Bench) -> None:
    """All findings are told, exit code 2, and no run is made."""
    for step in (9, 10):
        (served.folder / f"ckpt/rank_2/net-1_{step}.ckpt").unlink()
        os.truncate(served.folder / f"ckpt/rank_3/net-1_{step}.ckpt", 3000)
    done = served.mslaunch("infer", "--strategy", "ckpt/strategy.json")
    assert done.returncode == 2
    assert "rank 2: no checkpoint" in done.stderr
    assert "rank 3, rank_3/net-1_10.ckpt: not a whole checkpoint: truncated" in done.stderr
    assert not served.runs.exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "which checkpoint?"),
        (("--strategy", "ckpt/rank_0/net-1_9.ckpt", "--ckpt", "ckpt"), "looks like a checkpoint"),
        (("--strategy", "none.json", "--ckpt", "ckpt"), "none.json: no such strategy file"),
        (("--ckpt", "nowhere"), "nowhere: no such checkpoint"),
        (("--strategy", "ckpt/strategy.json", "--workers", "3"), "cannot be cut into 3 equal parts"),
        (("--ckpt", "ckpt/rank_0", "--predict-strategy", "ckpt/strategy.json"), "--predict-strategy needs --strategy"),
        (("--strategy", "ckpt/strategy.json", "--script", "other.py"), "other.py: no such script"),
    ],
)
def test_wrong_requests_are_one_sentence(served: Bench, args: tuple[str, ...], words: str) -> None:
    """Exit code 2, no traceback, nothing started."""
    done = served.mslaunch("infer", *args)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not served.runs.exists()


def test_the_dry_run_shows_what_would_be_done(served: Bench) -> None:
    """Nothing is resharded or written, and the plan says which step and how."""
    done = served.mslaunch("infer", "--strategy", "ckpt/strategy.json", "--workers", "2", "--dry-run")
    assert "epoch 1, step 10, resharded from 4 ranks to 2" in done.stdout
    assert not served.runs.exists()


def test_a_script_without_a_checkpoint_is_told_so(bench: Bench) -> None:
    """Under train there is no checkpoint to load."""
    bench.write("train.py", SCRIPT)
    assert bench.mslaunch("train").returncode == 1
    assert "Start it with `mslaunch infer --ckpt DIR`" in bench.log(0)
