"""What a person types: finds the verb, runs it, turns errors into one line and an exit code."""

from __future__ import annotations

import gc
import importlib
import io
import os
import signal
import sys
from typing import Any

from mslaunch import __version__, interrupts
from mslaunch.errors import ExitCode, MslaunchError, NotReadyError, did_you_mean, limit_of, signal_code

VERBS = {
    "train": "Start a distributed job and follow it to its end.",
    "msrun": "The same as train, for lines that were written for msrun.",
    "torchrun": "The same as train, for lines that were written for torchrun.",
    "sweep": "Run a job once for every combination of values, as many at a time as there is room for.",
    "infer": "Check, reshard where needed, and serve a sharded checkpoint on any number of ranks.",
    "render": "Write the same job as scripts, to read or to run elsewhere.",
    "ps": "List runs, past and present.",
    "status": "Show one run: its ranks, how they stand, how it ended.",
    "watch": "Show a run live on the whole screen: progress, loss, every rank.",
    "logs": "Show or follow the output of ranks.",
    "attach": "Show a run that goes on elsewhere, as if it had been started here.",
    "outputs": "List what a run's ranks have written, and where it is.",
    "note": "Write a note about a run, or tag it.",
    "compare": "Compare runs: configuration, code, environment, versions, metrics, speed.",
    "export": "Write the metrics of a run for TensorBoard, or as CSV.",
    "prune": "Remove old runs, or their checkpoints, and say what that frees.",
    "stop": "Stop a run, or a whole sweep, and wait until nothing of it is left.",
    "report": "Write a run as one HTML file, which opens anywhere without a network.",
    "ui": "Show runs in the browser, live.",
    "diagnose": "Why did it die? For a run, for msrun's log folder, for any folder of logs.",
    "stacks": "Show where the ranks of a running job stand, without disturbing it.",
    "check": "Are hosts, devices, ports and versions ready? What train asks first.",
    "collect": "Fetch logs that could not be fetched when a run ended.",
    "rank-table": "Generate, probe, validate, merge, show, compare and convert rank tables.",
    "strategy": "Show and merge MindSpore's strategy files.",
    "ckpt": "Show, verify, reshard, convert, import, export and compare checkpoints.",
    "trace": "Compare what two networks compute, module by module.",
    "config": "The JSON Schema of a job's YAML.",
    "agent": "Lend this machine's devices to a launcher elsewhere.",
    "examples": "List the examples and sample rank tables, and copy them.",
    "new": "Begin a project of your own that runs at once.",
}
"""Each verb is a module of this package, imported only when it is typed."""

LAUNCHING = ("train", "infer", "msrun", "torchrun")
"""Verbs that start one job, on this machine if nothing says otherwise."""

OTHER_WORDS = {
    "accelerate": "train",
    "cancel": "stop",
    "clean": "prune",
    "deepspeed": "train",
    "delete": "prune",
    "diff": "compare",
    "doctor": "check",
    "exec": "train",
    "follow": "attach",
    "history": "ps",
    "kill": "stop",
    "launch": "train",
    "list": "ps",
    "log": "logs",
    "ls": "ps",
    "mpiexec": "train --method mpirun -n N",
    "mpirun": "train --method mpirun -n N",
    "python": "train",
    "python3": "train",
    "remove": "prune",
    "restart": "train --max-restarts N",
    "resume": "sweep --resume",
    "rm": "prune",
    "run": "train",
    "runs": "ps",
    "sbatch": "train --transport slurm --detach",
    "show": "status",
    "srun": "train --transport slurm",
    "start": "train",
    "submit": "train",
    "tag": "note",
    "tail": "logs",
    "top": "watch",
    "view": "watch",
}
"""What other programs call these verbs, and the options that go with them."""
NOT_GUESSED = ("prune", "stop")  # verbs that end or delete something: never suggested because a word looks like them

HELP = """Usage: mslaunch VERB [OPTIONS]

Starts, watches and explains distributed MindSpore jobs.

Verbs:
{verbs}

Options:
  --version                     Show the version.
  -h, --help                    Show this text; `mslaunch help VERB` shows a verb's.
  --install-completion [SHELL]  Complete verbs, options and runs in bash, zsh or fish.
  --show-completion [SHELL]     Show the script for that instead.

For example: mslaunch train --workers 8 --config cfg.yaml
"""


_NOT_HERE = {
    *("-h", "--help", "--dry-run", "--detach", "--view", "--hosts", "--hostfile", "--transport"),
    *("--nnodes", "--master"),
}


def main(argv: list[str] | None = None) -> None:
    gc.disable()  # nothing to collect while modules are loaded; saves a tenth of the start-up
    if os.getpid() == 1:  # of a container: the kernel drops a signal that it has no handler for
        signal.signal(signal.SIGTERM, _end)
    code = run(sys.argv[1:] if argv is None else argv)
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, KeyboardInterrupt):
        pass
    os._exit(code)  # taking the interpreter apart would take longer than many a command


def _end(number: int, _: object) -> None:
    raise SystemExit(signal_code(number))


def run(argv: list[str]) -> int:
    """Run one command line and return its exit code."""
    _open_standard_streams()
    if not argv or argv[0] not in VERBS:
        return _run_without_verb(argv)
    verb, *args = argv
    try:
        if verb in LAUNCHING and not _NOT_HERE & set(args):
            from mslaunch.hosts import LOCAL
            from mslaunch.transports import prestart

            prestart.start_early(LOCAL)
        module = _load(verb)
        interrupts.raise_them(verb in (*LAUNCHING, "agent"))
        try:
            outcome = module.app(args, prog_name=f"mslaunch {verb}")
        except SystemExit as end:  # typer ends in this way
            outcome = end.code
        if hasattr(outcome, "carry_out"):  # a verb that launches returns what was typed
            outcome = outcome.carry_out()
        return outcome if isinstance(outcome, int) else 0
    except MslaunchError as error:
        return _report(error)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except (OSError, MemoryError, SystemError, RuntimeError, ImportError) as error:
        if limit := limit_of(error):
            print(f"mslaunch: {limit}", file=sys.stderr)  # there may be no memory for more
            return limit.exit_code
        if isinstance(error, OSError) and not isinstance(error.filename, int | None):
            return _report(NotReadyError(f"{os.fsdecode(error.filename)}: {error.strerror}."))
        raise


def _run_without_verb(argv: list[str]) -> int:
    """Show help, version or completion, or say what is not a verb."""
    word = argv[0] if argv else "--help"
    if word == "help" and len(argv) > 1:
        return run([*argv[1:], "--help"])
    if word in ("--help", "-h", "help"):
        print(HELP.format(verbs="\n".join(f"  {name:<10}  {text}" for name, text in VERBS.items())), end="")
        return 0 if argv else 2
    if word in ("--version", "-V"):
        print(f"mslaunch {__version__}")
        return 0
    if word in ("--complete", "--show-completion", "--install-completion"):
        from mslaunch.cli.parsing import completion

        return completion.run(word, argv[1:], VERBS, _load)
    verb = f"train {word}" if word.endswith((".py", ".pyc")) else OTHER_WORDS.get(word)
    near = (
        f"; did you mean {verb!r}?" if verb else did_you_mean(word, [name for name in VERBS if name not in NOT_GUESSED])
    )
    print(f"mslaunch: no verb {word!r}{near or '.'} `mslaunch --help` lists them.", file=sys.stderr)
    return 2


def _report(error: MslaunchError) -> int:
    """Print an error's sentences, and return its exit code."""
    from mslaunch.text import plain

    for line in error.lines:
        print(f"mslaunch: {plain(line)}", file=sys.stderr)
    return error.exit_code


def _load(verb: str) -> Any:
    """Import a verb's module."""
    try:
        return importlib.import_module(f"mslaunch.cli.{verb.replace('-', '_')}")
    finally:
        gc.freeze()  # what is loaded stays
        gc.set_threshold(10_000)  # typer loads more when it is called
        gc.enable()


def _open_standard_streams() -> None:
    """Where a caller has closed a standard stream, give it to /dev/null, lest a file of ours be taken for it."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not be text; stderr does so already
