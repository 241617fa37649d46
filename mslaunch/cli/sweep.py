"""`mslaunch sweep`: run a job once for every combination of values."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mslaunch.cli.console.console import Screen
from mslaunch.cli.console.describe import describe_plan
from mslaunch.cli.console.tables import columns
from mslaunch.cli.parsing import common, options
from mslaunch.cli.train import Detach, DryRun, Verbose
from mslaunch.errors import RequestError, signal_code
from mslaunch.plan.combinations import combinations_of
from mslaunch.plan.model import to_json
from mslaunch.sweeps.planning import Sweep, prepare_sweep, resume_sweep
from mslaunch.sweeps.running import SweepEvent, SweptRun, carry_out_sweep, exit_code, swept_so_far
from mslaunch.text import first_line

if TYPE_CHECKING:
    from mslaunch.cli.console.detached import Detached

_app = common.new_app()


def app(args: list[str], prog_name: str) -> object:
    """Call the verb; `--resume` may stand without a name."""
    end = args.index("--") if "--" in args else len(args)
    follows = [*args[1:], "-"]
    words = [
        "--resume=" if word == "--resume" and after.startswith("-") and at < end else word
        for at, (word, after) in enumerate(zip(args, follows, strict=True))
    ]
    return options.call(_app, words, prog_name)


@options.launching(_app)
def sweep(
    context: typer.Context,
    at_once: Annotated[
        int | None,
        typer.Option(
            "--at-once",
            help="Runs at a time; by default as many as the machine's devices or cores allow, with --hosts one.",
            metavar="N",
            show_default=False,
        ),
    ] = None,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop all runs when one fails.")] = False,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            help="Run what is missing of this sweep, or did not succeed; without a name, of the one of --run-id.",
            metavar="[SWEEP]",
            show_default=False,
        ),
    ] = None,
    detach: Detach = False,
    dry_run: DryRun = False,
    verbose: Verbose = False,
    as_json: common.Json = False,
    **typed: Any,
) -> None:
    """Run a job once for every combination of values, as many at a time as there is room for.

    --set takes several values here: --set lr=0.1,0.01 --set seed=1..3 is six runs.
    """
    detached = None
    if detach and not dry_run:
        from mslaunch.cli.console.detached import Detached

        detached = Detached()
        if detached.waits:
            raise typer.Exit(_wait(detached, as_json))
    made = _prepare(typed, context.obj, at_once, resume)
    if dry_run:
        _show_plan(made, as_json, verbose)
        return
    console = _Console(made, as_json, detached)
    runs, number = carry_out_sweep(made, console.observe, fail_fast, detach, take_signals=True)
    console.close(runs)
    raise typer.Exit(signal_code(number) if number is not None else exit_code(runs))


def _prepare(typed: dict[str, Any], program: options.ProgramWords, at_once: int | None, resume: str | None) -> Sweep:
    if typed.pop("tail") not in (None, "none"):
        raise RequestError("--tail: a sweep shows no output of ranks. Read it with `mslaunch logs -f SWEEP/RUN`.")
    assignments = typed.pop("assignments") or ()
    request = options.request({**typed, "assignments": None}, program)
    if resume is None:
        return prepare_sweep(request, combinations_of(assignments), at_once)
    name = resume or typed["run_id"]
    if not name:
        raise RequestError("--resume: which sweep? Name it, as in --resume SWEEP, or with --run-id SWEEP.")
    return resume_sweep(name, request, combinations_of(assignments) if assignments else (), at_once)


def _wait(detached: Detached, as_json: bool) -> int:
    """Wait until the launcher is on its own, or has said why it is not."""
    folder = detached.folder()
    if isinstance(folder, int):
        return folder
    if as_json:
        print(json.dumps({"sweep_id": folder.name, "sweep_dir": str(folder), "launcher": detached.launcher}))
    else:
        print(
            f"{folder.name} goes on by itself. `mslaunch ps` shows its runs; {folder}/launcher.log ends in its table."
        )
    return 0


def _show_plan(made: Sweep, as_json: bool, verbose: bool) -> None:
    runs = swept_so_far(made)
    if as_json:
        plan = json.loads(to_json(made.plan)) if made.plan else None
        shown = [{"run": run.name, "values": run.values, "state": run.result.state} for run in runs]
        print(json.dumps({"at_once": made.at_once, "runs": shown, "plan": plan}, indent=1, default=str))
        return
    print(f"{_count(made)}\n\n{_table(runs)}")
    if made.plan is not None:
        print(f"The plan of {made.label(made.waiting[0])}:\n\n{describe_plan(made.plan, verbose)}", end="")


def _count(made: Sweep) -> str:
    runs = f"{len(made.waiting)} run{'s' if len(made.waiting) != 1 else ''}"
    done = len(made.combinations) - len(made.waiting)
    runs += f" ({done} of {len(made.combinations)} have succeeded)" if made.is_resumed else ""
    pace = f", {made.at_once} at a time" if made.at_once and len(made.waiting) > 1 else ""
    return f"sweep {made.folder.sweep_id}: {runs}{pace}; in {made.folder.path}"


def _table(runs: list[SweptRun]) -> str:
    keys = list(runs[0].typed)
    rows = [(*keys, "STATE", "CODE", "TIME", "LOSS", "RUN")]
    for run in runs:
        result = run.result
        code = "" if result.exit_code is None else str(result.exit_code)
        rows.append((*run.typed.values(), result.state, code, _time(run), _short(run.loss), run.name))
    return columns(rows)


def _time(run: SweptRun) -> str:
    return "" if run.seconds is None else f"{run.seconds:.{0 if run.seconds >= 10 else 1}f} s"


def _short(loss: str | None) -> str:
    try:
        return f"{float(loss):.5g}" if loss else ""
    except ValueError:
        return str(loss)


class _Console:
    """One line when a run starts or ends, and the table at the end."""

    def __init__(self, made: Sweep, as_json: bool, detached: Detached | None) -> None:
        self.made = made
        self.as_json = as_json
        self.detached = detached
        self.screen: Screen | None = None
        self._is_stopping = False
        self._job: str | None = None

    def observe(self, event: SweepEvent) -> None:
        made = self.made
        if event.kind == "opened":
            if self.detached and made.queue is None:
                self.detached.leave(made.folder.path, made.folder.launcher_log)
            self.screen = Screen(2 if self.as_json else 1)  # a thread: not before this process is the one that stays
            self._say(_count(made))
        elif event.kind == "submitted":
            self._job = event.text
            if made.queue is not None:
                self._say(f"{made.queue.label} job {event.text}" + ("" if self.detached else "; Ctrl-C cancels it"))
        elif event.kind == "note":
            self._say(event.text)
        elif event.kind == "stopping" and self._is_stopping:
            self._say("ending them at once")
        elif event.kind == "stopping":
            self._say(event.text or "stopping all runs; a second signal ends them at once")
            self._is_stopping = True
        elif event.run is not None:
            self._write(f"{made.label(event.run.index)}: {_how_it_ended(event.run)}\n")
        elif event.index is not None:
            name = f"{made.folder.sweep_id}/{made.run_ids[event.index]}"
            self._write(f"{made.label(event.index)}: started as {name}\n")

    def close(self, runs: list[SweptRun]) -> None:
        """Show the table of results."""
        if self.screen is None:
            return
        folder = self.made.folder
        if runs and not self.as_json:
            self._write(f"\n{_table(runs)}")
        elif not runs:
            self._say(f"{folder.sweep_id} goes on by itself. `mslaunch ps` shows its runs.")
        self.screen.close()
        if self.as_json:
            document: dict[str, Any] = {"sweep_id": folder.sweep_id, "sweep_dir": str(folder.path), "job": self._job}
            print(json.dumps({**document, "runs": [run.to_dict() for run in runs]}, indent=1, default=str))

    def _say(self, text: str) -> None:
        self._write(f"mslaunch: {text}\n")

    def _write(self, text: str) -> None:
        if self.screen is not None:
            self.screen.write(text)


def _how_it_ended(run: SweptRun) -> str:
    result, verdict = run.result, run.result.verdict
    text = result.state if run.seconds is None else f"{result.state} after {_time(run)}"
    if result.state == "failed" and result.exit_code is not None:
        text += f" with code {result.exit_code}"
    if verdict is not None:
        who = "" if verdict.rank is None else f"rank {verdict.rank}: "
        text += f"; {who}{first_line(verdict.summary)}"
    return text
