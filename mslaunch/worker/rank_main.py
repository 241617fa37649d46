"""What mslaunch_rank.py runs: becomes MindSpore's scheduler, or a rank that runs the user's script."""

from __future__ import annotations

import os
import sys
import time

from mslaunch.shared import layout, secret_names, work_folder
from mslaunch.worker import own_files, report

TYPE_CHECKING = False  # typing itself costs every rank 10 ms
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any, NoReturn


def find_script(path: str) -> tuple[str, dict[str, Any], CodeType]:
    """Return what becomes __main__, a script: its file, the names that it has before it runs, and its code."""
    from importlib.machinery import SourceFileLoader

    _look_first_in(os.path.dirname(path))
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    return path, {"__cached__": None, "__loader__": SourceFileLoader("__main__", path)}, code


def find_module(name: str, folder: str) -> tuple[str, dict[str, Any], CodeType]:
    """Do so for a module, or the __main__ of a package: looked for in this folder first, then where Python looks."""
    _look_first_in(folder)
    spec = _spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _spec(f"{name}.__main__")
    if spec is None or spec.origin is None or not hasattr(spec.loader, "get_code"):
        print(f"{sys.executable}: No module named {name}", file=sys.stderr)
        sys.exit(1)
    names = {"__spec__": spec, "__package__": spec.parent, "__cached__": spec.cached, "__loader__": spec.loader}
    return spec.origin, names, spec.loader.get_code(spec.name)


def _spec(name: str) -> Any:
    from importlib.util import find_spec

    try:
        return find_spec(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            return None
        raise  # what the package imports is missing, not the package


def _look_first_in(folder: str) -> None:
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, folder)


def run_executable(name: str, args: list[str]) -> NoReturn:
    """Become another program: `python` is this Python; other names are looked for on PATH, then beside this Python."""
    program = sys.executable if name == "python" else name
    beside = os.path.join(os.path.dirname(sys.executable), program)
    try:
        try:
            os.execvp(program, [program, *args])
        except FileNotFoundError:
            os.execv(beside, [program, *args])
    except OSError as error:
        code, fix = 126, "Check its name and PATH"
        if isinstance(error, PermissionError):
            fix = "Make it executable (chmod +x)"
        elif isinstance(error, FileNotFoundError):
            code = 127
        print(f"mslaunch: cannot run {name}: {error.strerror}. {fix}.", file=sys.stderr)
        os._exit(code)


STACK_SIGNAL = 41  # SIGRTMIN + 7 with glibc, as agent.stacks has it; the signal module would cost every rank 2 ms


def main() -> None:
    if os.environ.get("MS_ROLE") == "MS_SCHED":
        from mslaunch.worker import scheduler

        _make_folder()
        scheduler.run()
    else:
        run_rank(sys.argv[1:])


def run_rank(argv: list[str]) -> None:
    """Become the rank: its folder, its environment, then the program: a script, -m and a module, or -x and a file."""
    kind = argv.pop(0) if argv[0] in ("-m", "-x") else ""
    program, *args = argv
    run_dir = os.environ["MSLAUNCH_RUN_DIR"]
    if "MSLAUNCH_RANKS" in os.environ:
        take_rank_environment(os.environ["MSLAUNCH_RANKS"], run_dir)
    _make_folder()
    if "MSLAUNCH_CORES" in os.environ:
        from mslaunch.worker import bind_cores

        bind_cores.bind(os.environ)
    job_folder = os.path.join(run_dir, layout.CODE)
    try:
        if os.environ.get("MSLAUNCH_CWD") == "submit":
            job_folder = os.environ["MSLAUNCH_JOB_DIR"]
            if not kind and not os.path.exists(program):  # the script of mslaunch.launch(), on a host without mslaunch
                program = os.path.join(run_dir, layout.CODE, os.path.relpath(program, job_folder))
            os.chdir(os.environ["MSLAUNCH_SUBMIT_DIR"])
        else:
            work = work_folder.make(run_dir, int(os.environ["RANK_ID"]), copies=kind == "-x")
            os.chdir(os.path.join(work, os.environ.get("MSLAUNCH_WORKDIR", "")))
            if kind != "-x":
                own_files.install(run_dir, os.environ)
        os.environ["PWD"] = os.getcwd()
        write_environment(os.path.join(report.me.folder, layout.ENV_LOG))
    except OSError as error:
        _fail(error, program)  # a full disk, say: the log cannot hold it, so the agent is told
    if kind == "-x":
        run_executable(program, args)
    beside = os.path.normpath(os.path.join(job_folder, os.environ.get("MSLAUNCH_WORKDIR", "")))
    run_python(program, args, beside if kind == "-m" else None)


def _make_folder() -> None:
    """Make the folder of this process; below msrun or mpirun, fork an exit recorder and write to a log there."""
    folder = report.settle().folder
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if "MSLAUNCH_RANKS" in os.environ:
        from mslaunch.worker import exit_recorder

        exit_recorder.split(os.path.join(folder, layout.EXIT))
        log = os.open(os.path.join(folder, layout.LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.close(log)
        os.close(nothing)


def write_environment(path: str) -> None:
    """Write the environment, with the values of what looks like a secret masked."""
    secrets = os.environ.get("MSLAUNCH_SECRETS", "").split(",")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with open(os.open(path, flags, 0o600), "w", encoding="utf-8", errors="surrogateescape") as file:
        for name, value in sorted(os.environ.items()):
            masked = secret_names.MASK if name in secrets else secret_names.masked(name, value)
            file.write(f"{name}={masked}\n")


def take_rank_environment(path: str, run_dir: str) -> None:
    """Take this rank's own variables from the table beside the script: msrun and mpirun give all ranks the same."""
    import json

    rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["RANK_ID"]
    with open(path, encoding="utf-8") as file:
        own = json.load(file)[rank]
    os.environ.update({name: value.replace("$run", run_dir) for name, value in own.items()})
    try:  # under an mpirun on another host, the agent of this one has said where it listens
        with open(path[: -len(layout.RANKS)] + layout.agent_address(own["MSLAUNCH_HOST"]), encoding="utf-8") as file:
            agent = file.read()
        if os.path.exists(agent):  # the agent of an earlier run has gone
            os.environ["MSLAUNCH_AGENT"] = agent
    except OSError:
        pass
    if "OMPI_COMM_WORLD_LOCAL_RANK" in os.environ:
        # MindSpore copies this over DEVICE_ID at import, which forgets which devices were asked for.
        os.environ["OMPI_COMM_WORLD_LOCAL_RANK"] = os.environ["DEVICE_ID"]


def run_python(name: str, args: list[str], folder: str | None) -> None:
    """Run a script, or a module of a folder, as __main__ here, as `python name` or `python -m name` would."""
    import atexit
    import builtins
    import faulthandler

    from mslaunch.worker import watch

    faulthandler.enable()
    try:  # a real-time signal writes the stacks of all threads, also while C++ holds the interpreter
        stacks = os.open(os.path.join(report.me.folder, layout.STACK), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        faulthandler.register(STACK_SIGNAL, stacks, all_threads=True)
    except OSError as error:
        _fail(error, name)
    watch.install(int(os.environ["RANK_SIZE"]))
    watch.write_versions()
    atexit.register(watch.write_versions)  # again: what the script has loaded meanwhile
    sys.argv = [name, *args]
    sys.path.append(sys.path.pop(0))  # the zip, for `import mslaunch.runtime`
    module = type(sys)("__main__")
    file = name
    try:
        file, names, code = find_script(name) if folder is None else find_module(name, folder)
        sys.argv[0] = file
        module.__dict__.update(names, __file__=file, __builtins__=builtins, __annotations__={})
        sys.modules["__main__"] = module
        exec(code, module.__dict__)
    except SystemExit as end:
        _leave(end)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        _fail(error, file)
    report.done()


def _leave(end: SystemExit) -> NoReturn:
    """End as the script asks for: well, with a code, or with a text that says why, which Python prints and makes 1."""
    code = end.code
    if code is None or isinstance(code, int):
        if not (code or 0) & 0xFF:
            report.done()
        raise end
    raised = time.time()
    with report.Unstopped():
        try:
            text = str(code)
            print(text, file=sys.stderr, flush=True)
            text = text.strip()
        except Exception:  # a text that cannot be made, or a stream that the script has replaced: Python itself knows
            raise end from None
        message = report.record("SystemExit", text, "", raised) if text else None
        if message is not None:
            report.notify("error", message=message, time=raised)
    sys.exit(1)


def _fail(error: BaseException, script: str) -> NoReturn:
    """Record the error, show it as Python would, and end with its code."""
    raised = time.time()  # first of all: what follows takes 10 ms, and more on busy cores
    with report.Unstopped():
        report.report_killed_children()  # now: the script may end its other processes as it is taken apart
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_frame.f_code.co_filename != script:
            traceback = traceback.tb_next  # leave out this file's own frames
        error.__traceback__ = traceback
        message = report.record_error(error, traceback, raised)
        stream = sys.stderr
        if stream is not None:
            sys.stderr = _UsersNames(stream)
        try:
            sys.excepthook(type(error), error, traceback)  # whatever hook there is: MindSpore has its own
        finally:
            sys.stderr = stream
        if message is not None:
            # Not later, since MindSpore's teardown takes a second.
            report.notify("error", message=message, time=raised)
    sys.exit(1)


class _UsersNames:
    """A stream that names the user's own files in what is written to another one."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> Any:
        return self._stream.write(report.me.as_written(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
