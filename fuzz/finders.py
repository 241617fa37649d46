"""Drives `ckpt`, `infer`, `prune` and restarts over random folders of checkpoints: no value of another network or step.

python -m fuzz.finders                      # 2,000 folders, 50 real jobs of `infer`
python -m fuzz.finders --cases 200 --seed 7
python -m fuzz.finders --seed 7 --case 41   # one folder again, which is kept
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from fuzz.folders import (
    CODE,
    PER_RANK,
    Damage,
    Folder,
    Saved,
    make_folder,
    parameters,
    read_values,
    write_folder,
)
from mslaunch import cli
from mslaunch.shared import layout
from tests.beds.past_runs import make_run as past_run

CHAIN = 100
"""Folders that one job with restarts is given, one per attempt."""
NAMES_ONLY = ("lacking", "cut between", "shape")
"""Damages that only a comparison with another step or rank shows."""
PLACE_FILES = """\
record() { previous=$(sed -n "${MSLAUNCH_ATTEMPT}p" "$CASES")
  mkdir -p "$RESULTS/$previous"
  if [ -n "$MSLAUNCH_RESUME" ]; then cp "$MSLAUNCH_RESUME" "$RESULTS/$previous/$RANK_ID.${MSLAUNCH_RESUME##*.}"; fi
}
if [ "$MSLAUNCH_ATTEMPT" -gt 0 ]; then record; fi
rm -rf checkpoint
mkdir checkpoint
folder=$(sed -n "$((MSLAUNCH_ATTEMPT + 1))p" "$CASES")
if [ -n "$folder" ] && [ -d "$RESTARTS/$folder/$RANK_ID" ]; then cp -r "$RESTARTS/$folder/$RANK_ID/." checkpoint; fi
touch "$BARRIER/$MSLAUNCH_ATTEMPT.$RANK_ID"
while [ "$(ls "$BARRIER" | grep -c "^$MSLAUNCH_ATTEMPT\\.")" -lt "$RANK_SIZE" ]; do sleep 0.02; done
if [ -z "$folder" ]; then exit 0; fi
exit 5
"""
"""Each attempt keeps what it resumes from, puts the files of the next folder in place, and fails."""


@dataclass(frozen=True)
class Question:
    """What a command is asked for in a folder."""

    folder: Folder
    prefix: str | None = None
    step: tuple[int, int] | None = None

    @property
    def options(self) -> list[str]:
        typed = {"plain": "", "rank": "_rank_*", "number": "*"}[self.folder.style]
        prefix = ["--prefix", f"{self.prefix}{typed}"] if self.prefix else []
        return prefix + (["--step", f"{self.step[0]}_{self.step[1]}"] if self.step else [])


# The oracle


def judge(question: Question, files: Mapping[int, Mapping[str, list[float]]], ranks: Iterable[int]) -> str | None:
    """Say what is wrong with the values that ranks were given; None where they are of the newest whole step."""
    folder, ranks = question.folder, set(ranks)
    networks = folder.networks
    names = [question.prefix] if question.prefix else list(networks)
    codes = {int(value) // CODE for values in files.values() for data in values.values() for value in data}
    steps = [saved for name in names for saved in networks.get(name, ()) if codes == {saved.code}]
    if len(names) > 1:
        return f"one of several networks was taken: {', '.join(names)}"
    if set(files) != ranks:
        return f"values of ranks {sorted(files)}, of {sorted(ranks)} expected"
    if not steps:
        return f"values of several steps, or of another network: {sorted(codes)}"
    return _judge_values(folder, steps[0], files) or _judge_age(question, names[0], steps[0], ranks)


def _judge_values(folder: Folder, saved: Saved, files: Mapping[int, Mapping[str, list[float]]]) -> str | None:
    for rank, values in files.items():
        expected = parameters(saved.code, rank)
        if {name: values.get(name) for name in expected} != expected and not _is_hidden(folder, saved, rank):
            return f"rank {rank} has wrong or missing values of step {saved.step}"
    return None


def _judge_age(question: Question, network: str, taken: Saved, ranks: set[int]) -> str | None:
    if question.step not in (None, taken.step):
        return f"step {taken.step}, asked for {question.step}"
    steps = [saved for saved in question.folder.networks[network] if question.step in (None, saved.step)]
    whole = [saved for saved in steps if not any(saved.damages.get(rank) for rank in ranks)]
    newer = [saved for saved in whole if saved.order > taken.order]
    if newer:
        return f"step {taken.step} of run {taken.run} was taken, {newer[0].step} of run {newer[0].run} is newer"
    if any(saved.order == taken.order and saved.code != taken.code for saved in whole) and taken in whole:
        return f"one of two formats with different values was taken, step {taken.step}"
    return None


def _near(folder: Folder, saved: Saved, rank: int) -> list[Damage]:
    """The damages of the two readable steps before, or after where there are too few."""
    steps = [
        one for one in folder.networks[folder.network_of(saved)] if one.order != saved.order and one.is_readable(rank)
    ]
    older = [one for one in steps if one.order < saved.order]
    newer = [one for one in reversed(steps) if one.order > saved.order and one.run == saved.run]
    return [one.damages.get(rank, "") for one in (*older, *newer)][:2]


def _is_hidden(folder: Folder, saved: Saved, rank: int) -> bool:
    """Tell whether nothing shows that a file lacks a parameter: the steps beside it are damaged too, or not there."""
    return saved.damages.get(rank, "") in NAMES_ONLY and all(near in NAMES_ONLY for near in _near(folder, saved, rank))


def must_answer(question: Question) -> bool:
    """Tell whether a folder is so plain that a refusal is a fault."""
    steps = question.folder.saved
    plain = not any(saved.damages for saved in steps) and len({saved.run for saved in steps}) == 1
    doubled = len({(saved.network, saved.step) for saved in steps}) < len(steps)
    return plain and not doubled and (question.prefix is not None or len(question.folder.networks) == 1)


# What is asked


@dataclass
class Outcome:
    """What came of one command in one folder."""

    verb: str
    case: int
    finding: str | None
    refused: bool


def command(*argv: str) -> tuple[int, str, str]:
    """Run one command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.run(list(argv))
    return code, out.getvalue(), err.getvalue()


def ask(random: Random, folder: Folder) -> Question:
    """Ask for the newest step, one network or one step."""
    names = sorted(name for name in folder.networks if " run " not in name)
    name = random.choice(names) if names else None
    prefix = name if name and (len(folder.networks) > 1 or random.random() < 0.2) and random.random() < 0.7 else None
    steps = [saved.step for saved in folder.networks.get(prefix or name or "", ())]
    return Question(folder, prefix, random.choice(steps) if steps and random.random() < 0.3 else None)


def present(question: Question) -> set[int]:
    """The ranks that have any file of the network."""
    folder = question.folder
    names = [question.prefix] if question.prefix else list(folder.networks)
    steps = [saved for name in names for saved in folder.networks.get(name, ())]
    return {rank for rank in range(folder.world) for saved in steps if saved.damages.get(rank) != "missing"}


def try_reshard(question: Question, place: Path) -> tuple[int, str | None]:
    code, _, _ = command(
        "ckpt",
        "reshard",
        str(place / "set"),
        "--from",
        str(place / "s.json"),
        "-o",
        str(place / "whole"),
        *question.options,
    )
    if code:
        return code, None
    (path,) = (place / "whole").rglob("*-*_*.*")
    values = read_values(path)
    world = question.folder.world
    slices = {rank: {**values, "w": values["w"][rank * PER_RANK : (rank + 1) * PER_RANK]} for rank in range(world)}
    return code, judge(question, slices, range(world))


def try_convert(question: Question, place: Path) -> tuple[int, str | None]:
    code, _, _ = command("ckpt", "convert", str(place / "set"), "-o", str(place / "new"), *question.options)
    if code:
        return code, None
    files = {
        int(str(path).rpartition("rank_")[2].split("-")[0].split("_")[0].split("/")[0]): path
        for path in _checkpoints(place / "new")
    }
    return code, judge(question, {rank: read_values(path) for rank, path in files.items()}, present(question))


def try_infer(question: Question, place: Path) -> tuple[int, str | None]:
    code, out, _ = command(
        *("infer", "--ckpt", str(place / "set"), "--strategy", str(place / "s.json"), *question.options),
        *("--runs-dir", str(place / "runs"), "--dry-run", "--json", "sh", str(place / "job.sh")),
    )
    if code:
        return code, None
    (text,) = (file["content"] for file in json.loads(out)["files"] if file["path"] == "checkpoints.json")
    files = json.loads(text)["files"]
    return code, judge(question, {rank: read_values(Path(path)) for rank, path in enumerate(files)}, range(len(files)))


def try_infer_job(question: Question, place: Path) -> tuple[int, str | None]:
    """Run a real job, whose ranks copy the files that they are given."""
    argv = [sys.executable, "-m", "mslaunch", "infer", "--ckpt", "set", "--strategy", "s.json", *question.options]
    done = subprocess.run([*argv, "sh", "job.sh"], cwd=place, capture_output=True, check=False)
    if done.returncode:
        return done.returncode, None
    record = json.loads((place / "mslaunch-runs" / "latest" / "checkpoints.json").read_text())
    values = {rank: read_values(Path(path)) for rank, path in enumerate(record["files"])}
    return 0, judge(question, values, range(question.folder.world))


def try_prune(question: Question, place: Path) -> tuple[int, str | None]:
    """Keep the best of each network of a run; what was whole before must not be gone."""
    folder = question.folder
    run = make_run(place / "runs" / "one", folder, place / "set")
    code, _, err = command("prune", "--keep", "0", "--checkpoints", "keep-best", "--runs-dir", str(place / "runs"))
    if code:
        return code, f"prune failed: {err}"
    for name in folder.networks:
        if why := _judge_pruned(folder, name, run):
            return code, why
    return code, None


def _judge_pruned(folder: Folder, name: str, run: Path) -> str | None:
    ranks = present(Question(folder, name))
    steps = folder.networks[name]
    whole = [saved for saved in steps if not any(saved.damages.get(rank) for rank in ranks)]
    left = [saved for saved in whole if all(in_run(run, folder.path(saved, rank)).is_file() for rank in ranks)]
    if whole and not left:
        return f"the last whole step of {name} was removed"
    if left and left[0].order < whole[0].order:
        return f"{left[0].order} of {name} was kept, {whole[0].order} is newer"
    return None


def make_run(run: Path, folder: Folder, source: Path) -> Path:
    """Make the folder of a run that has ended, with these files in the working folders of its ranks."""
    past_run(run.parent, run.name, ranks=folder.world)
    for path in source.rglob("*.*"):
        if path.is_file():
            target = in_run(run, path.relative_to(source))
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
    return run


def in_run(run: Path, path: Path) -> Path:
    """Where a run has a file that lies in rank_R/ of a folder."""
    return run / path.parts[0] / layout.WORK / Path(*path.parts[1:])


VERBS: dict[str, Callable[[Question, Path], tuple[int, str | None]]] = {
    "reshard": try_reshard,
    "convert": try_convert,
    "infer": try_infer,
    "prune": try_prune,
}


# All cases


def run_case(
    seed: int, case: int, place: Path, verbs: Mapping[str, Callable[[Question, Path], tuple[int, str | None]]]
) -> list[Outcome]:
    """Make one folder and try each verb in it."""
    random = Random(f"{seed} {case}")
    folder = make_folder(random)
    set_up(folder, place, random)
    question = ask(random, folder)
    outcomes = []
    for verb, work in verbs.items():
        if verb == "prune" and folder.flat:
            continue
        try:
            code, finding = work(question, place)
        except Exception as error:  # whatever it is, the case is a finding
            code, finding = 1, f"{type(error).__name__}: {error}"
        refused = code != 0
        if refused and finding is None and verb != "prune" and must_answer(question):
            finding = f"exit code {code} in a plain folder"
        outcomes.append(Outcome(verb, case, finding, refused))
    return outcomes


def set_up(folder: Folder, place: Path, random: Random) -> None:
    (place / "set").mkdir(parents=True)
    write_folder(folder, place / "set", random)
    whole = {"dev_matrix": [folder.world], "tensor_map": [-1]}
    layouts = {"w": {**whole, "tensor_map": [0]}, "v": whole, "u": whole}
    (place / "s.json").write_text(json.dumps(strategy(layouts)))
    (place / "job.sh").write_text("exit 0\n")


def strategy(layouts: Mapping[str, Mapping[str, list[int]]]) -> dict[str, object]:
    """A strategy in MindSpore's JSON form."""
    usual = {"field": 0, "opt_weight_shard_step": 0, "opt_weight_shard_size": 0}
    operators = {"op": {"parallel_strategy": [[1]], "stage": 0}}
    items = {name: {**usual, **layout} for name, layout in layouts.items()}
    return {"parallel_strategy_item": operators, "parallel_layout_item": items}


def _run_share(work: tuple[int, Sequence[int], str]) -> list[Outcome]:
    seed, cases, root = work
    outcomes = []
    for case in cases:
        place = Path(root, str(case))
        outcomes += run_case(seed, case, place, VERBS)
        shutil.rmtree(place)
    return outcomes


def run_restarts(seed: int, cases: Sequence[int], root: Path) -> list[Outcome]:
    """Give folders to a job that fails and is started again, one per attempt; all have the same number of ranks."""
    folders = {case: make_folder(Random(f"{seed} {case}")) for case in cases}
    (world,) = {folder.world for folder in folders.values()}
    for name in ("restarts", "results", "barrier"):
        (root / name).mkdir(parents=True)
    for case, folder in folders.items():
        write_folder(folder, root / "set" / str(case), Random(case))
        for rank in range(world):
            home = root / "set" / str(case) / ("" if folder.flat else f"rank_{rank}/{folder.below}")
            target = root / "restarts" / str(case) / str(rank)
            if home.is_dir():
                shutil.copytree(home, target / f"rank_{rank}" if case % 2 and not folder.flat else target)
    (root / "cases").write_text("".join(f"{case}\n" for case in cases))
    (root / "job.sh").write_text(PLACE_FILES)
    (root / "cfg.yaml").write_text(
        "launch: {backoff: 0, max_restarts: 1000, checkpoints: checkpoint, config_arg: null}\n"
    )
    variables = {"CASES": "cases", "RESTARTS": "restarts", "RESULTS": "results", "BARRIER": "barrier"}
    env = {**os.environ, **{name: str(root / value) for name, value in variables.items()}}
    argv = [
        sys.executable,
        "-m",
        "mslaunch",
        "train",
        "-n",
        str(world),
        "-c",
        "cfg.yaml",
        "--tail",
        "none",
        "sh",
        "job.sh",
    ]
    with (root / "output").open("wb") as output:
        done = subprocess.run(argv, cwd=root, env=env, stdout=output, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        return [Outcome("restart", cases[0], f"the job ended with {done.returncode}: {root}/output", refused=True)]
    return [_judge_restart(case, folder, root / "results" / str(case)) for case, folder in folders.items()]


def _judge_restart(case: int, folder: Folder, results: Path) -> Outcome:
    files = {int(path.stem): read_values(path) for path in results.iterdir()}
    if not files:
        finding = "nothing was resumed in a plain folder" if must_answer(Question(folder)) else None
        return Outcome("restart", case, finding, refused=True)
    return Outcome("restart", case, judge(Question(folder), files, range(folder.world)), refused=False)


def _checkpoints(place: Path) -> Iterator[Path]:
    return (path for path in place.rglob("*") if path.suffix in (".ckpt", ".safetensors"))


def chains(seed: int, cases: Iterable[int]) -> list[list[int]]:
    """Sort cases by their number of ranks, at most so many for one job."""
    by_world: dict[int, list[int]] = {}
    for case in cases:
        by_world.setdefault(make_folder(Random(f"{seed} {case}")).world, []).append(case)
    return [some[at : at + CHAIN] for some in by_world.values() for at in range(0, len(some), CHAIN)]


def run(seed: int, cases: Sequence[int], jobs: int, processes: int, root: Path) -> list[Outcome]:
    """Try all verbs in all folders; `infer` as a real job in the first `jobs` of them."""
    outcomes: list[Outcome] = []
    shares = [(seed, cases[number::processes], str(root)) for number in range(processes)]
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        for some in pool.imap_unordered(_run_share, shares):
            outcomes += some
        work = [(seed, chain, root / f"chain-{number}") for number, chain in enumerate(chains(seed, cases))]
        for some in pool.starmap(run_restarts, work):
            outcomes += some
    for case in cases[:jobs]:
        place = root / f"job-{case}"
        outcomes += run_case(seed, case, place, {"infer job": try_infer_job})
        shutil.rmtree(place)
    return outcomes


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.finders")
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=50, help="folders in which infer runs as a real job")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int, help="one folder alone; it is kept")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(argv)
    began = time.monotonic()
    fast = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    root = Path(tempfile.mkdtemp(prefix="mslaunch-finders-", dir=fast))
    if options.case is not None:
        outcomes = run_case(options.seed, options.case, root / "case", VERBS)
        outcomes += run_restarts(options.seed, [options.case], root / "restart")
        print(f"folder: {root}")
    else:
        outcomes = run(options.seed, range(options.cases), options.jobs, options.processes, root)
        shutil.rmtree(root)
    findings = [outcome for outcome in outcomes if outcome.finding]
    answered = Counter(outcome.verb for outcome in outcomes if not outcome.refused)
    for verb, count in Counter(outcome.verb for outcome in outcomes).items():
        wrong = sum(outcome.verb == verb for outcome in findings)
        refused = count - answered[verb]
        print(f"{verb}: {count:,} folders, {answered[verb]:,} answered, {refused:,} refused, {wrong} findings")
    for outcome in findings[:40]:
        print(f"  {outcome.verb}, --seed {options.seed} --case {outcome.case}: {outcome.finding}")
    print(f"{len(findings)} findings ({time.monotonic() - began:.0f} s)")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
