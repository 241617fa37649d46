"""mslaunch starts, watches and explains distributed MindSpore jobs.

    import mslaunch

    result = mslaunch.Job("train.py", config="cfg.yaml", workers=8).run()

docs/api.md explains the Python API. `import mslaunch` alone loads nothing else.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mslaunch.diagnose.verdict import Verdict
    from mslaunch.errors import MslaunchError
    from mslaunch.job import Job, launch, sweep
    from mslaunch.run.compare import compare
    from mslaunch.run.events import RankEnded, RankFailed, RankJoined, RankProgress, RankStarted, Restarted, RunEnded
    from mslaunch.run.find import find_run, runs
    from mslaunch.run.prune import prune
    from mslaunch.run.run import JobFailed, Result, Run

__all__ = [
    "Job",
    "JobFailed",
    "MslaunchError",
    "RankEnded",
    "RankFailed",
    "RankJoined",
    "RankProgress",
    "RankStarted",
    "Restarted",
    "Result",
    "Run",
    "RunEnded",
    "Verdict",
    "compare",
    "find_run",
    "launch",
    "prune",
    "runs",
    "sweep",
]

_PLACES = {
    "mslaunch.run.compare": ("compare",),
    "mslaunch.run.find": ("find_run", "runs"),
    "mslaunch.run.prune": ("prune",),
    "mslaunch.job": ("Job", "launch", "sweep"),
    "mslaunch.diagnose.verdict": ("Verdict",),
    "mslaunch.errors": ("MslaunchError",),
    "mslaunch.run.run": ("JobFailed", "Result", "Run"),
    "mslaunch.run.events": (
        "RankEnded",
        "RankFailed",
        "RankJoined",
        "RankProgress",
        "RankStarted",
        "Restarted",
        "RunEnded",
    ),
}
"""Where each public name is defined; a module is imported when one of its names is first used."""


if not TYPE_CHECKING:  # a type checker must not take every name for one that exists

    def __getattr__(name):
        for module, names in _PLACES.items():
            if name in names:
                import importlib

                add_installed_modules()
                return getattr(importlib.import_module(module), name)
        raise AttributeError(f"module 'mslaunch' has no attribute {name!r}")


def add_installed_modules() -> None:
    """In a rank this package comes from mslaunch.zip, which holds a part of it: find the rest where it is installed."""
    import os
    import sys

    if os.path.isdir(os.path.dirname(__file__)):  # noqa: PTH112, PTH120 -- pathlib would cost start-up time
        return
    for folder in sys.path:
        place = os.path.join(folder, "mslaunch")  # noqa: PTH118
        if os.path.isdir(os.path.join(place, "launcher")) and place not in __path__:  # noqa: PTH112, PTH118
            __path__.append(place)


def __dir__():  # type: ignore[no-untyped-def]
    return sorted([*globals(), *__all__])
