"""`mslaunch rank-table`: generate, probe, validate, merge, show, diff, convert."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from mslaunch.cli.console.tables import columns
from mslaunch.cli.parsing import common
from mslaunch.documents.limits import Unreadable
from mslaunch.documents.yaml_text import parse_yaml
from mslaunch.errors import ExitCode, RequestError
from mslaunch.hosts import Host, parse_hostfile, parse_hosts
from mslaunch.ranges import format_ranges, parse_ranges
from mslaunch.ranktable import generate, repair
from mslaunch.ranktable.generate import HCCN_CONF, probe
from mslaunch.ranktable.repair import differences
from mslaunch.ranktable.rules import SIZE_LIMIT, TableUnreadable, read_json
from mslaunch.ranktable.servers import RankTable, Server, merge, number
from mslaunch.ranktable.versions import VERSIONS, read_table, validate, write_table
from mslaunch.transports.ssh import run_commands

app = common.new_app()

CHIPS = ("910a", "910b", "a3")

File = Annotated[str, typer.Argument(help="A rank table.", metavar="FILE")]
Files = Annotated[list[str], typer.Argument(help="Rank tables.", metavar="FILE...")]
Output = Annotated[
    str | None, typer.Option("-o", "--output", help="Where to write; by default stdout.", metavar="FILE")
]
Version = Annotated[str, typer.Option("--version", "--to", help=f"One of {', '.join(VERSIONS)}.", metavar="V")]
AllowIncomplete = Annotated[
    bool, typer.Option("--allow-incomplete", help="Write a table of several hosts without device addresses.")
]
AutoName = Annotated[bool, typer.Option("--auto-name", help="Write to hccl_tools' file name.")]


@app.callback()
def rank_table() -> None:
    """Generate, probe, validate, merge, show, compare and convert rank tables."""


@app.command("generate")
def generate_table(
    hosts: Annotated[str | None, typer.Option("--hosts", help='For example "10.0.0.1:0-7,10.0.0.2:[0-3]".')] = None,
    hostfile: Annotated[str | None, typer.Option("--hostfile", help="Lines such as `10.0.0.1 slots=8`.")] = None,
    cluster: Annotated[str | None, typer.Option("--cluster", help="YAML with hosts and device addresses.")] = None,
    hccn: Annotated[str | None, typer.Option("--hccn", help=f"Device addresses of one host, as {HCCN_CONF}.")] = None,
    device_num: Annotated[str | None, typer.Option("--device_num", help='hccl_tools\' "[0,8)".')] = None,
    visible_devices: Annotated[
        str | None, typer.Option("--visible_devices", help="hccl_tools' list of devices.")
    ] = None,
    server_ip: Annotated[str | None, typer.Option("--server_ip", help="hccl_tools' address of this host.")] = None,
    version: Version = "1.0",
    output: Output = None,
    force: common.Force = False,
    auto_name: AutoName = False,
    allow_incomplete: AllowIncomplete = False,
) -> None:
    """Make a table from hosts, a cluster's YAML, hccn.conf, or what this Ascend host tells."""
    addresses = generate.parse_hccn_conf(_read(hccn)) if hccn else None
    if cluster:
        table = generate.from_cluster(read_yaml(cluster), cluster)
    elif table_hosts := _named_hosts(hosts, hostfile):
        table = generate.from_hosts(table_hosts, addresses)
    else:
        table = _of_this_host(device_num, visible_devices, server_ip, addresses)
    _check_addresses(table, allow_incomplete)
    _write(table, version, output, force, auto_name)


def _named_hosts(hosts: str | None, hostfile: str | None) -> tuple[Host, ...]:
    if hosts:
        return parse_hosts(hosts)
    return parse_hostfile(_read(hostfile), hostfile) if hostfile else ()


def _check_addresses(table: RankTable, allow_incomplete: bool) -> None:
    """Refuse a table of several servers that HCCL would refuse for its missing device addresses."""
    missing = generate.without_address(table)
    if not missing or len(table.servers) == 1:
        return
    devices = "; ".join(f"{server}: device {format_ranges(numbers)}" for server, numbers in missing.items())
    names = ",".join(server.server_id for server in table.servers)
    sources = (
        f"They are in {HCCN_CONF} of each host: `mslaunch rank-table probe --hosts {shlex.quote(names)}` asks for "
        f"them over SSH, and a cluster's YAML names them (--cluster FILE)"
    )
    text = f"device addresses are missing ({devices}), and HCCL needs them with more than one server. {sources}"
    if not allow_incomplete:
        raise RequestError(f"{text}. --allow-incomplete writes the table without them.")
    common.say_aside(f"{text}.")


def _of_this_host(
    device_num: str | None, visible_devices: str | None, server_ip: str | None, addresses: dict[int, str] | None
) -> RankTable:
    devices = generate.parse_device_num(device_num) if device_num else ()
    if visible_devices:
        visible = parse_ranges(visible_devices, "--visible_devices")
        # As under the runtime, numbers count among the visible devices.
        devices = tuple(visible[i] for i in devices or range(len(visible)) if i < len(visible))
    address = server_ip or _own_address()
    if addresses is None:
        probed = probe(ask_here, address)
        addresses = {device.device_id: device.device_ip for device in probed if device.device_ip}
        devices = devices or tuple(sorted(device.device_id for device in probed))
    return generate.from_hosts((Host(address, address, devices or tuple(sorted(addresses))),), addresses or None)


@app.command("probe")
def probe_hosts(
    local: Annotated[bool, typer.Option("--local", help="Ask this machine.")] = False,
    hosts: Annotated[str | None, typer.Option("--hosts", help='Ask these over SSH, for example "n1,n2".')] = None,
    hostfile: Annotated[str | None, typer.Option("--hostfile", help="Ask those that it names, over SSH.")] = None,
    accept_new_host_keys: Annotated[
        bool, typer.Option("--accept-new-host-keys", help="Trust hosts whose SSH key is not known yet.")
    ] = False,
    server_ip: Annotated[str | None, typer.Option("--server_ip", help="Address of this host.")] = None,
    version: Version = "1.0",
    output: Output = None,
    force: common.Force = False,
    allow_incomplete: AllowIncomplete = False,
) -> None:
    """Ask Ascend hosts for their devices and addresses, and write the table."""
    if ssh_hosts := _named_hosts(hosts, hostfile):
        servers = run_commands(ssh_hosts, _probe_host, accept_new_host_keys)
        table = RankTable("probe", "1.0", number(servers))
        _check_addresses(table, allow_incomplete)
        _write(table, version, output, force)
        return
    if not local:
        raise RequestError("probe needs hosts: give --hosts LIST or --hostfile FILE, or --local for this machine.")
    address = server_ip or _own_address()
    server = Server(address, probe(ask_here, address))
    _write(RankTable(address, "1.0", number([server])), version, output, force)


@app.command("validate")
def validate_tables(
    files: Files,
    soc: Annotated[str | None, typer.Option("--soc", help=f"Rules of a chip, one of {', '.join(CHIPS)}.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", help="Compare with a job of this size.")] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Repair what is safe, and write it to -o.")] = False,
    output: Output = None,
    force: common.Force = False,
    as_json: common.Json = False,
) -> None:
    """Check tables by HCCL's rules; all findings at once, exit code 2 if there is an error."""
    if soc not in (None, *CHIPS):
        raise RequestError(f"--soc: expected one of {', '.join(CHIPS)}, got {soc!r}.")
    texts = {name: _read(name) for name in files}
    if fix:
        texts = _fix(texts, output, force)
    findings = [(name, finding) for name, text in texts.items() for finding in validate(text, soc, workers, name)]
    if as_json:
        common.print_json([{"file": name, **asdict(finding)} for name, finding in findings])
    else:
        print("".join(f"{finding.words(name)}\n" for name, finding in findings), end="")
        for name in texts.keys() - {name for name, _ in findings}:
            print(f"{name}: valid")
    raise typer.Exit(ExitCode.WRONG_REQUEST if any(finding.severity == "error" for _, finding in findings) else 0)


def _fix(texts: dict[str, str], output: str | None, force: bool) -> dict[str, str]:
    """Write the repaired table; return its text by the name of the new file, which findings name from then on."""
    if output is None or len(texts) != 1:
        raise RequestError("--fix repairs one table and writes a new file: name one FILE, and -o NEW.")
    [(name, text)] = texts.items()
    try:
        table, changes = repair.repair(read_json(text))
    except TableUnreadable:
        return texts  # validate reports what is wrong
    fixed = json.dumps(table, indent=2) + "\n"
    common.write_new(output, fixed, force)
    for change in changes or ["nothing to repair"]:
        print(f"{name}: {change}")
    print(f"{output}: written")
    return {output: fixed}


@app.command("merge")
def merge_tables(
    files: Files,
    by_server: Annotated[bool, typer.Option("--by-server", help="Order servers by id, not as given.")] = False,
    output: Output = None,
    force: common.Force = False,
) -> None:
    """Put tables together and number the ranks again."""
    table = merge([read_table(_read(name), name) for name in files], by_server)
    _write(table, table.version, output, force)


@app.command("show")
def show_table(file: File) -> None:
    """Show hosts, devices, ranks and addresses."""
    table = read_table(_read(file), file)
    rows = [("RANK", "SERVER", "DEVICE", "ADDRESS", "SUPER POD", "SDID")]
    for server in table.servers:
        for d in server.devices:
            pod = (server.super_pod or "", d.super_device_id or "")
            rows.append((str(d.rank_id), server.server_id, str(d.device_id), d.device_ip or "", *pod))
    print(f"{file}: version {table.version}, {len(table.servers)} servers, {len(table.entries)} ranks\n")
    print(columns(rows), end="")


@app.command("diff")
def diff_tables(old: File, new: File) -> None:
    """Compare two tables by host and device; exit code 1 if they differ."""
    lines = list(differences(read_table(_read(old), old), read_table(_read(new), new)))
    print("".join(f"{line}\n" for line in lines), end="")
    raise typer.Exit(1 if lines else 0)


@app.command("convert")
def convert_table(file: File, version: Version = "1.0", output: Output = None, force: common.Force = False) -> None:
    """Write a table in another version."""
    _write(read_table(_read(file), file), version, output, force)


def _probe_host(host: Host, ask: Callable[[Sequence[str]], str | None]) -> Server:
    return Server(host.address, probe(ask, host.name))


def ask_here(command: Sequence[str]) -> str | None:
    """Run a command on this machine."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30, errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _own_address() -> str:
    """The address that this host has towards others; its name alone often means 127.0.1.1."""
    import psutil

    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family == socket.AF_INET and not address.address.startswith("127."):
                return str(address.address)
    raise RequestError("this host has no address of its own. Give it with --server_ip.")


def _read(name: str) -> str:
    try:
        with Path(name).open(encoding="utf-8-sig", errors="replace") as file:
            return file.read(SIZE_LIMIT + 1)  # more is not a table, and is refused
    except OSError as error:
        raise RequestError(f"{name}: cannot be read: {error.strerror}. Name a file that is there.") from None


def read_yaml(name: str) -> object:
    """Read a cluster's YAML."""
    try:
        return parse_yaml(_read(name))
    except Unreadable as error:
        raise RequestError(f"{error.where(name)}: not valid YAML: {error}.") from None


def _write(table: RankTable, version: str, output: str | None, force: bool, auto_name: bool = False) -> None:
    if version not in VERSIONS:
        raise RequestError(f"--version: expected one of {', '.join(VERSIONS)}, got {version!r}.")
    text = write_table(table, version)
    target = output or (generate.auto_name(table) if auto_name else None)
    if target is None:
        print(text, end="")
        return
    common.write_new(target, text, force)
    print(target)
