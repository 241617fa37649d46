"""The options that verbs share, declared once; their texts come from the settings that they set."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mslaunch.errors import RequestError
from mslaunch.plan.settings import LaunchSettings


def _setting(name: str, *flags: str, **more: Any) -> Any:
    return typer.Option(*flags, help=LaunchSettings.model_fields[name].description, show_default=False, **more)


Workers = Annotated[int | None, _setting("workers", "--workers", "--worker_num", "-n")]
LocalWorkers = Annotated[
    int | None,
    typer.Option("--local_worker_num", help="As in msrun: on one machine, the same as --workers.", hidden=True),
]
ConfigFile = Annotated[str | None, typer.Option("--config", "-c", help="The job's YAML.", metavar="FILE")]
Script = Annotated[str | None, _setting("script", "--script", metavar="FILE")]
ScriptArgument = Annotated[
    str | None, typer.Argument(help="The script, where --script is not given.", metavar="SCRIPT")
]
Devices = Annotated[str | None, _setting("devices", "--devices", metavar="LIST")]
Method = Annotated[str | None, _setting("method", "--method", metavar="NAME")]
RankTable = Annotated[str | None, _setting("rank_table", "--rank-table", "--rank_table_file", metavar="FILE")]
Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env", help="Variable for every rank, K=V; K alone takes it from here and writes it nowhere.", metavar="K=V"
    ),
]
Set = Annotated[list[str] | None, typer.Option("--set", help="Override one key of the config.", metavar="KEY=VALUE")]
MasterPort = Annotated[int | None, _setting("master_port", "--master-port", "--master_port")]
BindCores = Annotated[bool | None, _setting("bind_cores", "--bind-cores/--no-bind-cores")]
Tail = Annotated[str | None, _setting("tail", "--tail", metavar="RANKS")]
RunsDir = Annotated[str | None, _setting("runs_dir", "--runs-dir", "--log_dir", metavar="DIR")]
RunId = Annotated[str | None, _setting("run_id", "--run-id", metavar="NAME")]
Timeout = Annotated[float | None, _setting("timeout", "--timeout", metavar="SECONDS")]
StallTimeout = Annotated[float | None, _setting("stall_timeout", "--stall-timeout", metavar="SECONDS")]
MaxRestarts = Annotated[int | None, _setting("max_restarts", "--max-restarts", metavar="N")]
Run = Annotated[
    str | None, typer.Argument(help="The run, or the beginning of its name; by default the newest.", metavar="RUN")
]


def variables(pairs: list[str] | None) -> dict[str, str | None]:
    """Read `--env K=V` and `--env K`."""
    result: dict[str, str | None] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not name.isidentifier():
            raise RequestError(f"--env {pair!r}: {name!r} is not the name of a variable. Write --env NAME=VALUE.")
        result[name] = value if equals else None
    return result
