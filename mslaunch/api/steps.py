"""The steps of a launch one by one, for programs that show what happens, as the command line does."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from mslaunch.diagnose.verdict import Verdict
    from mslaunch.hosts import Host
    from mslaunch.launcher.attach import AttachedRun
    from mslaunch.launcher.check import Checked
    from mslaunch.launcher.read import Request
    from mslaunch.plan.combinations import Combination
    from mslaunch.plan.model import Plan
    from mslaunch.run.record import RunRecord
    from mslaunch.run.run import Run
    from mslaunch.settings.launch import Flag
    from mslaunch.sweeps.members import Observe as ObserveSweep
    from mslaunch.sweeps.planning import Sweep
    from mslaunch.sweeps.results import SweptRun
    from mslaunch.transports.ssh.connections import RunCommand, T


def make_request(*args: Any, **kwargs: Any) -> Request:
    """What is asked for, before any file is read; the fields are those of Request."""
    from mslaunch.launcher.read import Request

    return Request(*args, **kwargs)


def plan_request(request: Request, elsewhere: bool = False) -> Plan:
    """Plan without contacting the hosts; with `elsewhere`, for a machine that has everything."""
    from mslaunch.launcher.pipeline import plan_only

    return plan_only(request, elsewhere)


def combinations_of(assignments: Sequence[str]) -> tuple[Combination, ...]:
    """Every combination of what `--set key=value,value` names."""
    from mslaunch.plan.combinations import combine, parse_axis

    return combine([parse_axis(text) for text in assignments])


def prepare_sweep(request: Request, combinations: tuple[Combination, ...], at_once: int | None = None) -> Sweep:
    """Plan every combination of a new sweep; nothing is written, started or contacted."""
    from mslaunch.sweeps.planning import prepare_sweep as prepare_all

    return prepare_all(request, combinations, at_once)


def resume_sweep(
    name: str, request: Request, combinations: tuple[Combination, ...] = (), at_once: int | None = None
) -> Sweep:
    """Plan what is missing of an earlier sweep, or did not succeed."""
    from mslaunch.sweeps.planning import resume_sweep as plan_rest

    return plan_rest(name, request, combinations, at_once)


def carry_out_sweep(
    prepared: Sweep, observe: ObserveSweep, fail_fast: bool = False, detach: bool = False, take_signals: bool = False
) -> tuple[list[SweptRun], int | None]:
    """Run a sweep to its end; return its runs, and the signal that ended it."""
    from mslaunch.sweeps.queue import carry_out_sweep as carry_out_all

    return carry_out_all(prepared, observe, fail_fast, detach, take_signals)


def swept_so_far(prepared: Sweep) -> list[SweptRun]:
    """How the runs of a sweep stand now."""
    from mslaunch.sweeps.results import result_of

    return [result_of(prepared, index) for index in range(len(prepared.combinations))]


def sweep_exit_code(swept: Sequence[SweptRun]) -> int:
    """0 if all runs succeeded, else the code of the first that failed."""
    from mslaunch.sweeps.results import exit_code

    return exit_code(swept)


def check_hosts(request: Request, script: str, tell: Callable[[str], None]) -> Checked:
    """Ask the hosts of a job, or this machine, whether they are ready; nothing is started.

    `tell` is told which hosts are waited for.
    """
    from mslaunch.launcher.connect import check_only
    from mslaunch.launcher.read import read

    return check_only(read(request), script, tell)


def collect(run: Run) -> tuple[list[str], list[str], list[str]]:
    """Fetch a run's logs from hosts again; return the files, why hosts could not be reached, and what stays there."""
    from mslaunch.launcher.collect import collect_again

    return collect_again(run)


def attach(run: Run, tail: tuple[int, ...] | None = None) -> AttachedRun:
    """A run that goes on elsewhere, as its own console would be shown it; `tail` are the ranks whose output counts."""
    from mslaunch.launcher.attach import AttachedRun

    return AttachedRun(run, tail)


def become_owner(run: Run) -> None:
    """Root only: give up its rights, for good, for those of the run's owner, in order to act on the run."""
    from mslaunch.launcher import collect  # noqa: F401 -- now: what is loaded later may be closed to that user
    from mslaunch.run import ownership

    ownership.become_owner(run.folder)


def write_scripts(plan: Plan, folder: Path) -> None:
    """Write a job's scripts, code and zip into an empty folder."""
    from mslaunch.launcher.folder import fill
    from mslaunch.run.paths import RunFolder

    fill(plan, RunFolder(folder))


def run_commands(
    hosts: Sequence[Host], work: Callable[[Host, RunCommand], T], accept_new_keys: bool = False
) -> list[T]:
    """Do the same on all hosts at once, with a function that runs a command there."""
    from mslaunch.transports.ssh.connections import run_commands as run_over_ssh

    return run_over_ssh(hosts, work, accept_new_keys)


def start_agent_early() -> None:
    """Start this machine's agent while the rest is still loaded; an unused one exits by itself."""
    from mslaunch.hosts import LOCAL
    from mslaunch.transports import prestart

    prestart.start_early(LOCAL)


def setting_flags() -> dict[str, Flag]:
    """How each setting of `launch:` is given on the command line, with what it means."""
    from mslaunch.plan.methods import METHODS
    from mslaunch.settings.launch import LaunchSettings, flag_of
    from mslaunch.transports.registry import BUILT_IN

    choices = {"method": tuple(METHODS), "transport": tuple(BUILT_IN)}
    flags = {}
    for name in LaunchSettings.model_fields:
        if flag := flag_of(name, choices.get(name, ())):
            flags[name] = flag
    return flags


def program_settings(words: tuple[str, ...], is_module: bool) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The setting that names a program as it was typed, and the program's arguments."""
    from mslaunch.settings.program import settings_of

    return settings_of(words, is_module)


def count_devices() -> tuple[int, int]:
    """How many cores and how many visible NPUs or GPUs this machine has."""
    from mslaunch.launcher.facts import find_devices

    return len(os.sched_getaffinity(0)), len(find_devices(None).numbers)


def config_schema() -> dict[str, Any]:
    """The JSON Schema of a job's YAML."""
    from mslaunch.plan.methods import METHODS
    from mslaunch.settings.resolve import schema

    return schema(METHODS)


def plan_json(plan: Plan) -> str:
    from mslaunch.plan.model import to_json

    return to_json(plan)


def record_from(raw: object) -> RunRecord:
    """Make a record of what a bundle holds; Unreadable where it is none."""
    from mslaunch.run.record import from_value

    return from_value(raw)


def record_of_logs(name: str, verdict: Verdict | None) -> RunRecord:
    """A record for a folder of logs that is no run of ours, so that both are shown alike."""
    from mslaunch.run.record import RunRecord

    # Logs have no state.
    return RunRecord(name, "failed", "", None, None, 0, "", "", "", (), verdict=verdict)
