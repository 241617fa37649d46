"""Slurm as planning sees it: how ranks are spread over its nodes, and the script that is submitted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mslaunch.errors import NotReadyError, RequestError
from mslaunch.hosts import Host
from mslaunch.plan.model import File
from mslaunch.plan.spec import JobSpec, agree_on_workers
from mslaunch.ranges import format_ranges, parse_ranges
from mslaunch.settings.launch import LaunchSettings
from mslaunch.shared import layout
from mslaunch.text import counted
from mslaunch.transports.base import Command
from mslaunch.transports.command_line import command_words, exported, program_words

WARNING_SECONDS = 60
JOB = layout.script("job.sbatch")
JOB_CONFIG = layout.script("job.yaml")
ARRAY = "array.sbatch"

_SUBMITTING = ("transport", "nodes", "partition", "time", "account", "requeue", "sbatch_args")
_GRES = re.compile(r"\b(?:npu|ascend|gpu)(?::[\w.-]+)?:\d+\(IDX:([\d,-]+)\)")
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def parse_tasks(text: str) -> tuple[int, ...]:
    """Read SLURM_TASKS_PER_NODE: `4(x2),3` is 4, 4 and 3."""
    return tuple(int(count) for count, times in _TASKS.findall(text) for _ in range(int(times or 1)))


def parse_gres(text: str) -> tuple[int, ...]:
    """Read which devices a node was granted: of `lic:1,npu:2(IDX:1,4-5)` those with the numbers 1, 4 and 5."""
    match = _GRES.search(text)
    return parse_ranges(match[1], "GRES") if match else ()


def spread(ranks: int, nodes: int) -> tuple[int, ...]:
    """Share ranks among nodes, as evenly as it goes, the first nodes having one more."""
    each, more = divmod(ranks, nodes)
    return tuple(each + (index < more) for index in range(nodes))


def planned_hosts(spec: JobSpec) -> tuple[Host, ...]:
    """Stand-ins for the nodes that Slurm will choose."""
    nodes = spec.launch.nodes or 1
    ranks = agree_on_workers(spec, tuple(range(nodes)))
    if ranks < nodes:
        raise RequestError(
            f"{nodes} nodes ({spec.sources['nodes']}) for {counted(ranks, 'rank')}: some would have none. "
            f"Ask for fewer nodes, or for more --workers."
        )
    counts = spread(ranks, nodes)
    return tuple(Host(f"node{i}", f"node{i}", tuple(range(count))) for i, count in enumerate(counts))


@dataclass(frozen=True, slots=True)
class Allotment:
    """What Slurm has given a job, besides its nodes."""

    tasks: tuple[int, ...] = ()
    """How many tasks it was asked to run on each node, if it was."""
    devices: Mapping[str, tuple[int, ...]] | None = None
    """The devices of each node, where it was asked for some."""


def place(spec: JobSpec, nodes: Sequence[Host], given: Allotment, target: str) -> tuple[Host, ...]:
    """Decide how many ranks each node gets, and which devices they use."""
    devices = {node.name: (given.devices or {}).get(node.name, ()) for node in nodes}
    tasks = given.tasks[: len(nodes)]
    everything = sum(map(len, devices.values())) or sum(tasks) or len(nodes)
    ranks = agree_on_workers(spec, tuple(range(everything)))
    if ranks < len(nodes):
        raise RequestError(
            f"Slurm has given {len(nodes)} nodes, and there {'are' if ranks > 1 else 'is'} only "
            f"{counted(ranks, 'rank')}. Ask for as many nodes with --nodes, or for more --workers."
        )
    counts = spread(ranks, len(nodes))
    for allotted in (tasks, tuple(map(len, devices.values()))):
        if sum(allotted) == ranks and len(allotted) == len(nodes) and all(allotted):
            counts = allotted
    placed = []
    for node, count in zip(nodes, counts, strict=True):
        has = devices[node.name]
        if has and count > len(has) and target != "CPU":
            raise NotReadyError(
                f"{node.name}: Slurm gives {counted(len(has), 'device')} there, and {count} ranks "
                f"are to run on it. Ask for more, for example with --sbatch-arg=--gres=gpu:{count}."
            )
        placed.append(replace(node, devices=has[:count] if len(has) >= count else tuple(range(count))))
    return tuple(placed)


_REFUSED = {
    "-W --wait": "mslaunch follows the job itself",
    "--test-only": "nothing would be submitted; --dry-run shows what would be",
    "-a --array": "each member would be the same run; submit several",
    "-o --output": "the job's output is launcher.log in the run's folder",
    "-e --error": "the job's output is launcher.log in the run's folder",
    "--wrap": "the job's script is mslaunch's",
}


def check_options(spec: JobSpec, run_dir: str) -> None:
    """Refuse what would break the job, or keep it from being followed."""
    for option in spec.launch.sbatch_args:
        try:
            name = shlex.split(option)[0].partition("=")[0]
        except (ValueError, IndexError):
            raise RequestError(f"{spec.sources['sbatch_args']} {option}: a quote is missing, or all of it.") from None
        for names, why in _REFUSED.items():
            if name in names.split() or (len(names.split()) > 1 and re.match(rf"{names[:2]}[^-]", option)):
                raise RequestError(f"{spec.sources['sbatch_args']} {option}: not here: {why}.")
    if "\\" in run_dir or "\n" in run_dir:
        raise RequestError(
            f"{run_dir!r}: Slurm cannot write to a path with a backslash or a line break. Give another --runs-dir."
        )


def directives(launch: LaunchSettings, hosts: Sequence[Host], run_dir: str) -> Iterator[str]:
    """What stands behind #SBATCH, in order; further options come last, as they were typed, and may override others."""
    counts = {len(host.devices) for host in hosts}
    own = [f"--job-name={run_dir.rpartition('/')[2]}", f"--nodes={len(hosts)}"]
    own.append(f"--ntasks={sum(len(host.devices) for host in hosts)}")
    if len(counts) == 1:
        own.append(f"--ntasks-per-node={counts.pop()}")
    for option in ("partition", "time", "account"):
        if (value := getattr(launch, option)) is not None:
            own.append(f"--{option}={value}")
    own += [f"--output={run_dir.replace('%', '%%')}/{layout.LAUNCHER_LOG}", "--open-mode=append"]
    own += [f"--signal=B:USR1@{WARNING_SECONDS}", "--requeue" if launch.requeue else "--no-requeue"]
    yield from map(shlex.quote, own)
    yield from launch.sbatch_args


def job_files(launch: LaunchSettings, hosts: Sequence[Host], run_dir: str, command: Command, cwd: str) -> list[File]:
    """job.sbatch, and the config that it names."""
    from mslaunch.plan.render import render

    runs_dir, _, run_id = run_dir.rpartition("/")
    values = {
        "runs_dir": runs_dir,
        "run_id": run_id,
        "program": program_words(command),
        "count": f"{counted(sum(len(host.devices) for host in hosts), 'rank')} on {counted(len(hosts), 'node')}",
        "directives": list(directives(launch, hosts, run_dir)),
        "exports": exported(command),
        "cwd": cwd,
        "words": [*command.program, *command_words(command, f"{run_dir}/{JOB_CONFIG}", _SUBMITTING)],
        "warning": WARNING_SECONDS,
    }
    files = [File(JOB, render("job.sbatch", values), 0o700)]
    return files if command.config is None else [*files, File(JOB_CONFIG, command.config)]


def array_script(folder: str, scripts: Mapping[int, Path], texts: Sequence[str], at_once: int | None) -> str:
    """The script of an array whose member i runs the i-th job script; all of them ask for the same."""
    from mslaunch.plan.render import render

    requests = [_shared_directives(text) for text in texts]
    for directives in requests:
        if directives != requests[0]:
            differing = sorted(set(directives) ^ set(requests[0]))
            raise RequestError(
                f"the runs of a sweep are one job array, and ask Slurm for the same; {', '.join(differing)} differ. "
                "Sweep them one after the other."
            )
    limit = f"%{at_once}" if at_once else ""
    own = (
        f"--job-name={folder.rpartition('/')[2]}",
        f"--array={format_ranges(scripts)}{limit}",
        f"--output={folder.replace('%', '%%')}/{layout.LAUNCHER_LOG}",
    )
    values = {"directives": [*map(shlex.quote, own), *requests[0]], "scripts": scripts}
    return render("array.sbatch", values)


def _shared_directives(text: str) -> list[str]:
    """What a job's script asks Slurm for, without what is its run's alone."""
    lines = (line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH "))
    return [line for line in lines if not line.strip("'").startswith(("--job-name=", "--output="))]
