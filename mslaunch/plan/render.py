"""Scripts from templates: whatever a template writes is shell-quoted, an unknown name is an error."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from mslaunch.plan.variables import LAUNCH_VARIABLES, TUNABLE, carried, inherited_launch_variables
from mslaunch.settings.environment import VARIABLE

if TYPE_CHECKING:
    from mslaunch.plan.methods.method import PlacedJob


def template_source(name: str) -> str:
    """Return a template's text: packaged in a wheel, beside the package in a checkout."""
    packaged = resources.files("mslaunch").joinpath("templates").joinpath(name)
    if packaged.is_file():
        return packaged.read_text()
    return (Path(__file__).parents[2] / "templates" / name).read_text()


class Shell(str):
    """Text that is part of a script already, and is written as it is."""

    __slots__ = ()


def quote(value: object) -> Shell:
    """Write a value as one word of a script. The one function by which values get there: jinja2 applies it to all."""
    return value if isinstance(value, Shell) else Shell(shlex.quote(str(value)))


def _words(values: Iterable[object]) -> Shell:
    return Shell(" ".join(map(quote, values)))


def _name(value: str) -> Shell:
    """Write the name of a variable, which cannot be quoted."""
    if not VARIABLE.fullmatch(value):
        raise ValueError(f"{value!r} is not the name of a variable")
    return Shell(value)


def _line(value: object) -> Shell:
    """Write a comment or a directive, which must not end before its line does."""
    return Shell("".join(char if char.isprintable() else " " for char in str(value)))


FILTERS = {"words": _words, "name": _name, "line": _line, "commands": Shell}
"""What templates write otherwise than as one word; `commands` are the user's own, from launch.setup."""


def fill(template: str, values: Mapping[str, Any], write: Callable[[Any], object], filters: Mapping[str, Any]) -> str:
    """Fill in a template; `write` quotes every value, so that none is mistaken for a part of the text."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(template_source),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # shell or YAML, not HTML
        finalize=write,
    )
    environment.filters.update(filters)
    return environment.get_template(template).render(**values)


def render(name: str, values: Mapping[str, Any]) -> str:
    return fill(f"{name}.j2", values, quote, FILTERS)


def render_script(name: str, job: PlacedJob, env: Mapping[str, str], node: int) -> str:
    """Render the script of one host. Paths below the run's folder are written from $run, so that it can be moved."""
    host = job.hosts[node]
    own = [rank for rank in job.ranks if rank.node == node]
    values = {
        "job": job,
        "count": f"{job.world_size} rank{'s' if job.world_size > 1 else ''}",
        "node": node,
        "host": host,
        "ranks": own,
        "starts_scheduler": job.has_scheduler and node == 0,
        "python": job.facts.hosts[host.name].python,
        "exports": {key: value for key, value in env.items() if key != "MSLAUNCH_RUN_DIR"},
        "secrets": list(job.spec.secrets),
        "passed_on": _passed_on(job, env),
        "launch_variables": LAUNCH_VARIABLES,
        "tunables": TUNABLE,
        "setup": job.spec.launch.setup,
        "command": job.command,
        "in_run": lambda text: in_run(str(text), job.facts.run_dir),
    }
    return render(name, values)


def _passed_on(job: PlacedJob, env: Mapping[str, str]) -> list[str]:
    """The variables that mpirun hands to its ranks; on other hosts they have nothing else of this shell's."""
    shell = job.facts.environment
    travels = carried(shell, inherited_launch_variables(shell)) if len(job.hosts) > 1 else ()
    names = {*env, *travels, *job.spec.launch.env, "MSLAUNCH_RUN_DIR", "MSLAUNCH_RANKS"}
    return sorted(name for name in names if VARIABLE.fullmatch(name))


def in_run(text: str, run_dir: str) -> Shell:
    """Quote a value, with the run's folder in it written as $run."""
    before, match, after = text.partition(run_dir)
    if not match or (after and not after.startswith("/")):
        return quote(text)
    return Shell((quote(before) if before else "") + '"$run"' + (quote(after) if after else ""))
