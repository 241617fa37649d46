"""Other launchers: which command lines start one, and what mslaunch calls the same."""

from __future__ import annotations

import posixpath
import re

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAMS = {
    "msrun": "msrun",
    "torchrun": "torchrun",
    "mslaunch": "",
    "mpirun": "train --method mpirun",
    "mpiexec": "train --method mpirun",
    "orterun": "train --method mpirun",
    "srun": "train --transport slurm",
    "accelerate": "train",
    "deepspeed": "train",
    "horovodrun": "train",
}
"""Programs that start ranks, with the verb and the options of mslaunch that do the same."""
MODULES = {
    "mindspore.parallel.cluster.run": "msrun",
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "mslaunch": "mslaunch",
}
"""Python modules that are these programs."""
VERBS = {"mslaunch": ("train", "msrun", "torchrun", "sweep", "infer"), "accelerate": ("launch",)}
"""Programs that launch only with one of these words behind them."""
SHELLS = ("bash", "sh", "dash", "zsh", "ksh")
_SAME_OPTIONS = ("msrun", "torchrun", "mslaunch")
_WRAPPERS = (
    *("command", "env", "eval", "exec", "nice", "nohup", "numactl", "setsid", "stdbuf", "sudo", "taskset", "time"),
    *("timeout", "unbuffer"),
)
_MOST_WRAPPED = 8  # words between a wrapper and what it starts
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_PYTHON = re.compile(r"python(?:\d+(?:\.\d+)?)?")
_COUNT = re.compile(r"--?(?:n|np|worker_num|nproc[_-]per[_-]node|num[_-]processes|num_gpus|ntasks|workers)(?:=(.*))?")


class LauncherCommand:
    """A launcher with its arguments, as a command line starts it."""

    def __init__(self, name: str, args: Sequence[str]) -> None:
        self.name = name
        self.args = tuple(args)

    @property
    def count(self) -> str:
        """How many processes the line asks for; empty where it does not say."""
        for at, word in enumerate(self._options):
            option = _COUNT.fullmatch(word)
            if option:
                return option[1] or "".join(self.args[at + 1 : at + 2])
        return ""

    @property
    def _options(self) -> tuple[str, ...]:
        """What stands before the Python program that it starts."""
        for at, word in enumerate(self.args):
            if is_python(word) or word.endswith(".py"):
                return self.args[:at]
        return self.args

    def instead(self, ranks: int) -> tuple[str, ...]:
        """The line that starts the same job with mslaunch; `ranks` is how many where this line does not say."""
        verb = PROGRAMS[self.name].split()
        if self.name in _SAME_OPTIONS:
            return ("mslaunch", *verb, *self.args)
        count = self.count if self.count.isdigit() else str(ranks)
        program = self.args[len(self._options) :] or ("PROGRAM",)
        return ("mslaunch", *verb, "-n", count, *program)


def is_python(word: str) -> bool:
    """Tell whether a word is a name or a path of Python."""
    return bool(_PYTHON.fullmatch(posixpath.basename(word)))


def find_launcher(argv: Sequence[str]) -> LauncherCommand | None:
    """Return the launcher that a command line starts, also behind variables and programs such as `env` and `nohup`."""
    at = 0
    while at < len(argv) and _ASSIGNMENT.match(argv[at]):
        at += 1
    is_question = "".join(argv[at + 1 : at + 2]) in ("-v", "-V")  # command -v mpirun
    if at < len(argv) and posixpath.basename(argv[at]) in _WRAPPERS and not is_question:
        for ahead in range(at + 1, min(len(argv), at + _MOST_WRAPPED)):
            if posixpath.basename(argv[ahead]) in PROGRAMS or is_python(argv[ahead]):
                at = ahead
                break
    left = list(argv[at:])
    if not left:
        return None
    name, args = posixpath.basename(left[0]), left[1:]
    if is_python(name):
        name, args = _read_python(args)
    elif name in SHELLS and args:
        name, args = posixpath.basename(args[0]), args[1:]
    if name not in PROGRAMS or (name in VERBS and "".join(args[:1]) not in VERBS[name]):
        return None
    return LauncherCommand(name, args)


def _read_python(args: list[str]) -> tuple[str, list[str]]:
    """Return the program that Python is to run, where it is one of the launchers, and its arguments."""
    at = 0
    while at < len(args) and args[at].startswith("-") and args[at] not in ("-m", "-c"):
        at += 2 if args[at] in ("-X", "-W") else 1
    if args[at : at + 1] == ["-m"]:
        return MODULES.get("".join(args[at + 1 : at + 2]), ""), args[at + 2 :]
    return posixpath.basename("".join(args[at : at + 1])), args[at + 1 :]
