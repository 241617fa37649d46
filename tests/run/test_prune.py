"""`mslaunch prune`: what may go goes, what may not stays, and nothing outside of runs is touched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from mslaunch.errors import RequestError
from mslaunch.metrics.rows import Row, Source
from mslaunch.run.disk_usage import measure
from mslaunch.run.metrics_file import MetricsWriter
from mslaunch.run.paths import SweepFolder
from mslaunch.run.prune import Candidate, Criteria, choose, find_links, prune_chosen
from mslaunch.run.sweep_record import locked
from tests.beds.other_user import NOBODY, needs_root
from tests.beds.past_runs import DAY, make_run, make_sweep, write_plan
from tests.beds.sharded import ckpt_tensor, ckpt_value
from tests.conftest import MSLAUNCH, Bench, wait_for

ALL = Criteria(keep=0)
FIRST = ckpt_value(b"w", ckpt_tensor((2,), data=bytes(8)))
SECOND = ckpt_value(b"v", ckpt_tensor((2,), data=bytes(8)))
WHOLE = FIRST + SECOND


def names(runs_dir: Path) -> set[str]:
    return {path.name for path in runs_dir.iterdir()}


def removed(runs_dir: Path, criteria: Criteria) -> set[str]:
    return {one.name for one in prune_chosen(runs_dir, criteria).removed}


def candidates(*rows: tuple[str, str, float]) -> list[Candidate]:
    return [Candidate(name, state, ended) for name, state, ended in rows]


@pytest.mark.parametrize(
    ("criteria", "chosen"),
    [
        (Criteria(keep=1), "abc"),
        (Criteria(keep=9), ""),
        (Criteria(states=("failed",)), "bd"),
        (Criteria(ended_before=25.0), "ab"),
        (Criteria(keep=1, states=("failed",), ended_before=99.0), "b"),
    ],
)
def test_a_run_is_chosen_where_it_fits_all_that_is_given(criteria: Criteria, chosen: str) -> None:
    """Age, state and the number of newer runs."""
    runs = candidates(("a", "succeeded", 10), ("b", "failed", 20), ("c", "succeeded", 30), ("d", "failed", 40))
    assert choose(runs, criteria, {}).chosen == tuple(chosen)


def test_a_run_that_a_kept_run_refers_to_stays_and_so_does_what_that_one_refers_to() -> None:
    """A run that stays holds all that it was made from."""
    runs = candidates(("a", "failed", 1), ("b", "failed", 2), ("c", "failed", 3), ("d", "succeeded", 4))
    choice = choose(runs, Criteria(states=("failed",)), {"d": {"b"}, "b": {"a"}})
    assert choice.chosen == ("c",)
    assert choice.kept == {"b": "run d refers to it", "a": "run b refers to it"}


def test_runs_that_refer_to_each_other_and_all_fit_go_together() -> None:
    """A link from a run that goes holds nothing."""
    runs = candidates(("a", "failed", 1), ("b", "failed", 2))
    assert choose(runs, Criteria(states=("failed",)), {"b": {"a"}}).chosen == ("a", "b")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('"--resume=/data/runs/one/rank_0/x.ckpt"', {"one"}),
        ("mslaunch-runs/one", {"one"}),
        ("/elsewhere/sweep/2/rank_0", {"sweep/2"}),
        ("runs/latest/rank_0", {"newest"}),
        ("/usr/local/Ascend/ascend-toolkit/latest/bin", set()),
        ("one twofold/ne /oneself/ phone/x", set()),
        ("/runs/me/rank_0", set()),
    ],
)
def test_a_path_into_a_run_is_a_link_to_it(text: str, found: set[str]) -> None:
    """Whatever stands before it; a word that is no part of a path is none."""
    known = ["one", "two", "me", "sweep/1", "sweep/2", "newest"]
    assert find_links(text, "me", known, {"runs/latest": "newest"}) == found


def test_pruned_runs_are_gone_and_what_they_link_to_is_not(tmp_path: Path) -> None:
    """A link is removed, never its target; the bytes that were freed are told."""
    runs = tmp_path / "runs"
    outside = tmp_path / "data"
    outside.mkdir()
    (outside / "x").write_text("kept")
    old = make_run(runs, "old", days=40)
    (old.rank(0) / "data").symlink_to(outside)
    make_run(runs, "new", days=2)
    found = prune_chosen(runs, Criteria(ended_before=time.time() - 30 * DAY))
    assert [one.name for one in found.removed] == ["old"]
    assert found.bytes >= 16_000
    assert names(runs) == {"new"}
    assert (outside / "x").read_text() == "kept"


def test_a_criterion_is_needed(bench: Bench) -> None:
    """Nobody loses all runs by typing the verb alone."""
    make_run(bench.runs, "one")
    done = bench.mslaunch("prune")
    assert done.returncode == 2
    assert "say which runs" in done.stderr
    assert names(bench.runs) == {"one"}
    with pytest.raises(RequestError, match="keep-best or drop"):
        prune_chosen(bench.runs, ALL, "some")


def test_a_dry_run_says_what_would_go_and_removes_nothing(bench: Bench) -> None:
    """In words and as JSON."""
    for number in range(3):
        make_run(bench.runs, f"run{number}", "failed" if number else "succeeded", days=9 - number)
    done = bench.mslaunch("prune", "--state", "failed", "--dry-run")
    assert "Would remove 2 runs" in done.stdout
    told = json.loads(bench.mslaunch("prune", "--keep", "1", "--dry-run", "--json").stdout)
    assert [one["name"] for one in told["removed"]] == ["run0", "run1"]
    assert told["bytes"] == sum(one["bytes"] for one in told["removed"]) > 0
    assert names(bench.runs) == {"run0", "run1", "run2"}
    assert "Removed 2 runs" in bench.mslaunch("prune", "--keep", "1").stdout
    assert names(bench.runs) == {"run2"}


def test_a_running_job_stays(bench: Bench) -> None:
    """Whatever is asked for."""
    bench.write("train.py", "import time\ntime.sleep(600)\n")
    bench.start("train", "-n", "1", "--run-id", "alive", "--tail", "none")
    wait_for(
        lambda: (bench.runs / "alive" / "run.json").is_file() and bench.record("alive")["state"] == "running", "it"
    )
    done = bench.mslaunch("prune", "--keep", "0")
    assert "alive stays: it is running" in done.stdout
    assert (bench.runs / "alive" / "plan.json").is_file()
    assert bench.mslaunch("stop", "alive").returncode == 0


def test_a_queued_run_and_one_whose_launcher_is_elsewhere_stay(tmp_path: Path) -> None:
    """What cannot be known from here counts as alive."""
    make_run(tmp_path, "queued", "queued")
    far = make_run(tmp_path, "far", "running")
    raw = json.loads(far.record.read_text())
    raw["launcher"]["host"] = "another-host"
    far.record.write_text(json.dumps(raw))
    assert removed(tmp_path, ALL) == set()


def test_a_lost_run_with_processes_stays(tmp_path: Path) -> None:
    """Its launcher is gone, and something of it goes on."""
    lost = make_run(tmp_path, "lost", "running")
    raw = json.loads(lost.record.read_text())
    raw["launcher"]["pid"] = 4_000_000
    lost.record.write_text(json.dumps(raw))
    left = subprocess.Popen(["sleep", "600"], env={**os.environ, "MSLAUNCH_RUN_DIR": str(lost.path)})
    try:
        kept = prune_chosen(tmp_path, ALL).kept
        assert "processes of it are left" in kept["lost"]
    finally:
        left.kill()
        left.wait()
    assert removed(tmp_path, ALL) == {"lost"}


@needs_root
@pytest.mark.parametrize("mount", ["--bind data", "-t tmpfs tmpfs"])
def test_a_run_in_which_something_is_mounted_stays(tmp_path: Path, mount: str) -> None:
    """Deleting it would empty what is mounted: nothing is renamed, neither by --checkpoints nor as a leftover."""
    runs = tmp_path / "runs"
    (make_run(runs, "old", days=40).rank(0) / "data").mkdir()
    make_run(runs, ".pruned-left", days=40)
    (tmp_path / "data").mkdir()
    script = f"""
        mount {mount} runs/old/rank_0/data
        mount --bind data runs/.pruned-left
        touch runs/old/rank_0/data/x-1_1.ckpt runs/.pruned-left/y
        for more in --dry-run "--checkpoints drop" ""; do {MSLAUNCH} prune --keep 0 --runs-dir runs $more; done
        ls runs/old/rank_0/data runs/.pruned-left
    """
    argv = ["unshare", "--mount", "sh", "-ec", script]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    stays = f"old stays: something is mounted at {runs}/old/rank_0/data; unmount it first\n"
    assert done.stdout.count(stays) == 3
    assert {"x-1_1.ckpt", "y"} <= set(done.stdout.split())
    assert names(runs) == {"old", ".pruned-left"}


@needs_root
def test_another_users_run_stays(shared_folder: Path) -> None:
    """Also for root."""
    theirs = make_run(shared_folder, "theirs")
    for path in (theirs.path, *theirs.path.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    assert prune_chosen(shared_folder, ALL).kept == {"theirs": "it is another user's"}


def test_an_unreadable_record_protects_its_run(tmp_path: Path) -> None:
    """It may be a newer mslaunch's, or anything."""
    make_run(tmp_path, "odd").record.write_text('{"schema_version": "99.0"}')
    assert prune_chosen(tmp_path, ALL).kept == {"odd": "its record cannot be read"}


def test_a_run_whose_checkpoints_another_uses_stays(tmp_path: Path) -> None:
    """By an argument, by checkpoints.json, or by a link in a rank's folder."""
    for name, days in (("first", 9.0), ("second", 8.0), ("third", 7.0), ("unused", 6.0)):
        make_run(tmp_path, name, "failed", days)
    user = make_run(tmp_path, "user", days=1)
    write_plan(user, json.dumps({"argv": ["train.py", f"--from={tmp_path}/first/rank_0/x.ckpt"]}))
    (user.path / "checkpoints.json").write_text(json.dumps({"files": [f"{tmp_path}/second/rank_0/x.ckpt"]}))
    (user.rank(1) / "warm.ckpt").symlink_to("../../third/rank_1/x.ckpt")
    found = prune_chosen(tmp_path, Criteria(states=("failed",)))
    assert [one.name for one in found.removed] == ["unused"]
    assert set(found.kept.values()) == {"run user refers to it"}


def test_the_runs_of_a_sweep_go_together(tmp_path: Path) -> None:
    """A resumed sweep would start a missing one again; the sweep's folder goes with its last run."""
    make_sweep(tmp_path, "half", "1", "2", days=40)
    raw = json.loads((tmp_path / "half" / "2" / "run.json").read_text())
    (tmp_path / "half" / "2" / "run.json").write_text(json.dumps({**raw, "state": "failed"}))
    assert prune_chosen(tmp_path, Criteria(states=("failed",))).kept == {"half/2": "half/1 of sweep half stays"}
    assert removed(tmp_path, Criteria(ended_before=time.time())) == {"half/1", "half/2"}
    assert names(tmp_path) == set()


def test_a_sweep_that_is_under_way_stays(tmp_path: Path) -> None:
    """It may start any of its runs."""
    make_sweep(tmp_path, "busy", "1")
    with locked(SweepFolder(tmp_path / "busy")):
        assert prune_chosen(tmp_path, ALL).kept == {"busy/1": "its sweep is under way"}


def test_a_run_that_starts_after_it_was_chosen_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue may start a run at any moment, even between the last look and the renaming."""
    run = make_run(tmp_path, "again")
    rename = Path.rename

    def start_first(self: Path, target: Path) -> Path:
        raw = json.loads((self / "run.json").read_text())
        (self / "run.json").write_text(json.dumps({**raw, "state": "running"}))
        monkeypatch.setattr(Path, "rename", rename)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", start_first)
    assert prune_chosen(tmp_path, ALL).kept == {"again": "it has been started meanwhile"}
    assert run.log(0).is_file()
    assert names(tmp_path) == {"again"}


KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from mslaunch.run import prune
def die(path, **_):
    (Path(path) / "rank_0" / "log.txt").unlink()
    os.kill(os.getpid(), signal.SIGKILL)
shutil.rmtree = die
prune.prune_chosen(Path(sys.argv[1]), prune.Criteria(keep=0))
"""


def test_a_prune_that_is_killed_leaves_no_half_run(bench: Bench) -> None:
    """No list shows what is left of it, and the next prune deletes that."""
    make_run(bench.runs, "one")
    done = subprocess.run([sys.executable, "-c", KILLED, str(bench.runs)])
    assert done.returncode == -signal.SIGKILL
    (left,) = names(bench.runs)
    assert left.startswith(".pruned-one-")
    assert "No runs here yet" in bench.mslaunch("ps").stderr
    bench.mslaunch("prune", "--keep", "5")
    assert names(bench.runs) == set()


def test_two_prunes_at_once_remove_each_run_once(bench: Bench) -> None:
    """Neither fails, and nothing is left."""
    for number in range(40):
        make_run(bench.runs, f"run{number}")
    both = [bench.start("prune", "--keep", "0", "--json") for _ in range(2)]
    told = [json.loads(one.communicate(timeout=120)[0]) for one in both]
    assert [one.returncode for one in both] == [0, 0]
    gone = [run["name"] for one in told for run in one["removed"]]
    assert sorted(gone) == sorted(f"run{number}" for number in range(40))
    assert names(bench.runs) == set()


def test_latest_points_to_the_newest_run_that_is_left(tmp_path: Path) -> None:
    """And is gone with the last one."""
    make_run(tmp_path, "old", "succeeded", 5)
    make_run(tmp_path, "new", "failed", 1)
    (tmp_path / "latest").symlink_to("new")
    prune_chosen(tmp_path, Criteria(states=("failed",)))
    assert (tmp_path / "latest").readlink() == Path("old")
    prune_chosen(tmp_path, ALL)
    assert names(tmp_path) == set()


def test_files_with_a_name_elsewhere_are_not_counted(tmp_path: Path) -> None:
    """Deleting one of two names frees nothing."""
    run = make_run(tmp_path / "runs", "one")
    big = run.rank(0) / "big"
    big.write_bytes(b"x" * 1_000_000)
    (tmp_path / "other").hardlink_to(big)
    assert measure(run.path, only_freed=True) < 500_000
    (tmp_path / "other").unlink()
    assert measure(run.path, only_freed=True) > 1_000_000


def save(run: Path, epoch: int, at: float, ranks: Iterable[int] = (0, 1), name: str = "net") -> None:
    for rank in ranks:
        path = run / f"rank_{rank}" / "work" / "ckpt" / f"{name}-{epoch}_10.ckpt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(WHOLE)
        os.utime(path, (at, at))


def checkpoints(run: Path) -> list[str]:
    return sorted(str(path.relative_to(run)) for path in run.rglob("*.ckpt"))


def test_the_checkpoint_with_the_least_loss_is_kept(tmp_path: Path) -> None:
    """By the loss that was told last before each was saved; everything else of the run stays."""
    run = make_run(tmp_path, "one")
    writer = MetricsWriter(run.metrics)
    writer.write(Row(1000.0 * epoch, Source(0, 0), {"loss": loss}) for epoch, loss in ((1, 3.0), (2, 0.5), (3, 0.9)))
    writer.close()
    for epoch in (1, 2, 3):
        save(run.path, epoch, 1000.0 * epoch + 5)
    found = prune_chosen(tmp_path, ALL, "keep-best")
    assert checkpoints(run.path) == ["rank_0/work/ckpt/net-2_10.ckpt", "rank_1/work/ckpt/net-2_10.ckpt"]
    assert len(found.removed[0].files) == 4
    assert run.log(0).is_file()


def test_without_a_loss_the_newest_whole_checkpoint_is_kept(tmp_path: Path) -> None:
    """One that is cut, also between two parameters, that a rank lacks, or whose checksum is wrong, is not it."""
    run = make_run(tmp_path, "one")
    for epoch in (1, 2):
        save(run.path, epoch, 1000.0 * epoch)
    save(run.path, 3, 3000.0)
    save(run.path, 4, 4000.0, ranks=(0,))
    save(run.path, 5, 5000.0)
    save(run.path, 6, 6000.0)
    whole = run.work(1) / "ckpt" / "net-3_10.ckpt"
    whole.write_bytes(whole.read_bytes()[:-5])
    (run.work(1) / "ckpt" / "net-5_10.ckpt").write_bytes(FIRST)
    (run.work(0) / "ckpt" / "net-6_10.ckpt").write_bytes(WHOLE + b"crc_num" + bytes(10))
    prune_chosen(tmp_path, ALL, "keep-best")
    assert checkpoints(run.path) == ["rank_0/work/ckpt/net-2_10.ckpt", "rank_1/work/ckpt/net-2_10.ckpt"]


def test_checkpoints_beside_the_script_are_kept_like_others(tmp_path: Path) -> None:
    """What the ranks saved in code/ by a path from `__file__`: the newest whole one stays."""
    run = make_run(tmp_path, "one")
    (run.code / "ckpt").mkdir(parents=True, exist_ok=True)
    run.snapshot.write_text('{"copies": {}, "links": []}')
    for epoch in (1, 2):
        (run.code / "ckpt" / f"net-{epoch}_10.ckpt").write_bytes(WHOLE)
    prune_chosen(tmp_path, ALL, "keep-best")
    assert checkpoints(run.path) == ["code/ckpt/net-2_10.ckpt"]


def test_where_steps_have_different_shapes_all_stay(tmp_path: Path) -> None:
    """Which of them is right is not known."""
    run = make_run(tmp_path, "one")
    for epoch in (1, 2, 3):
        save(run.path, epoch, 1000.0 * epoch)
    (run.work(0) / "ckpt" / "net-2_10.ckpt").write_bytes(ckpt_value(b"w", ckpt_tensor((1,), data=bytes(4))) + SECOND)
    assert prune_chosen(tmp_path, ALL, "keep-best").removed == ()


def test_where_no_checkpoint_is_whole_all_stay(tmp_path: Path) -> None:
    """The best is not known."""
    run = make_run(tmp_path, "one")
    save(run.path, 1, 1000.0)
    for rank in (0, 1):
        (run.work(rank) / "ckpt" / "net-1_10.ckpt").write_bytes(b"half")
    assert prune_chosen(tmp_path, ALL, "keep-best").removed == ()
    assert len(checkpoints(run.path)) == 2


def test_the_best_of_each_network_is_kept(tmp_path: Path) -> None:
    """A script may save several: two on all ranks, one on rank 0 alone, one of which nothing is whole."""
    run = make_run(tmp_path, "one")
    for epoch in (1, 2):
        save(run.path, epoch, 1000.0 * epoch, name="generator")
        save(run.path, epoch, 1000.0 * epoch, name="critic")
        save(run.path, epoch, 1000.0 * epoch, ranks=(0,), name="average")
    (run.work(1) / "ckpt" / "critic-2_10.ckpt").write_bytes(b"half")
    (run.work(1) / "ckpt" / "torn-1_10.ckpt").write_bytes(b"half")
    prune_chosen(tmp_path, ALL, "keep-best")
    on_both = ["ckpt/critic-1_10.ckpt", "ckpt/generator-2_10.ckpt"]
    expected = ["rank_0/work/ckpt/average-2_10.ckpt", "rank_1/work/ckpt/torn-1_10.ckpt"]
    expected += [f"rank_{rank}/work/{name}" for rank in (0, 1) for name in on_both]
    assert checkpoints(run.path) == sorted(expected)


def test_networks_with_numbers_and_in_folders_of_their_own_are_kept_apart(tmp_path: Path) -> None:
    """stage1 and stage2, or net in two folders, are different networks; the best of each stays."""
    run = make_run(tmp_path, "one")
    for epoch, name in ((1, "stage1"), (2, "stage1"), (1, "stage2"), (1, "../old/net"), (2, "net")):
        (run.work(0) / "old").mkdir(parents=True, exist_ok=True)
        save(run.path, epoch, 1000.0 * epoch, ranks=(0,), name=name)
    prune_chosen(tmp_path, ALL, "keep-best")
    names = ["ckpt/net-2_10.ckpt", "ckpt/stage1-2_10.ckpt", "ckpt/stage2-1_10.ckpt", "old/net-1_10.ckpt"]
    assert checkpoints(run.path) == [f"rank_0/work/{name}" for name in names]


def test_all_checkpoints_can_be_dropped_and_links_are_not_followed(tmp_path: Path) -> None:
    """What a link in a rank's folder leads to is not the run's."""
    run = make_run(tmp_path / "runs", "one")
    save(run.path, 1, 1000.0)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "net-1_10.ckpt").write_bytes(b"kept")
    (run.work(0) / "shared").symlink_to(outside)
    prune_chosen(tmp_path / "runs", ALL, "drop")
    assert [path for path in checkpoints(run.path) if "shared" not in path] == []
    assert (outside / "net-1_10.ckpt").read_bytes() == b"kept"


@pytest.mark.parametrize("text", ['{"tags": ["keep"]}', "no JSON"])
def test_a_run_with_the_tag_keep_stays(bench: Bench, text: str) -> None:
    """It is named, with the reason; tags that cannot be read protect their run too."""
    make_run(bench.runs, "one").labels.write_text(text)
    make_run(bench.runs, "two")
    pruned = prune_chosen(bench.runs, ALL)
    assert [one.name for one in pruned.removed] == ["two"]
    assert pruned.kept == {"one": "it has the tag keep" if "keep" in text else "its tags cannot be read"}


def test_a_run_with_tags_stays_unless_one_of_them_is_named(bench: Bench) -> None:
    """--tag names it, and is a criterion of its own; the tag keep protects whatever is named."""
    for name, tags in (("plain", []), ("base", ["baseline", "good"]), ("both", ["baseline", "keep"])):
        make_run(bench.runs, name).labels.write_text(json.dumps({"tags": tags}))
    done = bench.mslaunch("prune", "--keep", "0")
    assert "base stays: it has the tag baseline; --tag baseline includes such runs\n" in done.stdout
    assert names(bench.runs) == {"base", "both"}
    assert "Nothing is to be removed" in bench.mslaunch("prune", "--tag", "other").stdout
    assert "both stays: it has the tag keep\n" in bench.mslaunch("prune", "--tag", "good", "--tag", "baseline").stdout
    assert names(bench.runs) == {"both"}


def test_an_age_that_may_be_minutes_or_months_is_refused(bench: Bench) -> None:
    """Both spellings that are clear are in the message."""
    make_run(bench.runs, "one")
    done = bench.mslaunch("prune", "--older-than", "1m")
    assert done.returncode == 2
    assert done.stderr == "mslaunch: --older-than 1m: minutes or months? Write 1min, or 30d.\n"
    assert "Removed 1 run" in bench.mslaunch("prune", "--older-than", "1min").stdout
