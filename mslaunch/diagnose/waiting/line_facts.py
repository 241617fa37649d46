"""Lines that say who wrote a log, and for whom its writer waits: HCCL's, MindSpore's and the kernel's own wordings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from mslaunch.diagnose.patterns.literals import required_literals

Kind = Literal[
    "self", "listen", "wait", "root", "missing", "came", "expected", "task", "killed", "address", "tls", "gone"
]
_ADDRESS = r"[0-9A-Fa-f.:]{2,45}"
_PROCESS = re.compile(r"\b[A-Z]{2,12}\((\d{1,10})[,:]|[\[(]PID: ?(\d{1,10})[\],]")
_HEALTHY = ("[INFO]", "[DEBUG]", "[WARNING]", "[EVENT]", "[TRACE]")
WHOLE_JOB = 999_999_999
"""The size of the group where a line names a rank of the whole job, and no size."""
_HEAD = 160  # a log's line names its process and its level in its first characters


@dataclass(frozen=True, slots=True)
class Fact:
    """What one line says about a process: who it is, or whom it waits for."""

    line: int
    kind: Kind
    pid: int | None
    values: Mapping[str, str]
    time: float | None = None
    log: str = ""


@dataclass(frozen=True, slots=True)
class Form:
    """How one kind of such a line is written. Groups named own_* are about the writer, the others about the peer."""

    kind: Kind
    regex: re.Pattern[str]
    literals: frozenset[str]
    always: bool = field(default=False)
    """Whether a line of a harmless level counts as well."""


_SELF = {
    "ranks": r"\b(?:rankNum|ranks|totalRanks|rankSize)\[(\d{1,9})\]",
    "rank": r"\brank(?:Id)?\[(\d{1,9})\]",
    "server": r"\bserver(?:Id)?\[([^\]%]{1,64})",
    "device": r"\b(?:logicDevId|deviceLogicId|devLogicId|device)\[(\d{1,6})\]",
    "physical": r"\b(?:phydevId|devPhyId)\[(\d{1,6})\]",
    "address": rf"\bdeviceIp\[({_ADDRESS})\]",
    "group": r"\b(?:identifier|group:)\[([^\]]{1,200})\]",
    "root": rf"\bhost ip\[({_ADDRESS})",
    "root_port": r"\bport\[(\d{1,5})\]",
}
_SELF_FIELDS = {name: re.compile(regex) for name, regex in _SELF.items()}
_GROUP = re.compile(r"\b(?:tag|group|groupname|group name|identifier)\W{1,2}\[?([^\],;\s]{1,200})")

# kind, regex, whether lines of a harmless level count
_TABLE: tuple[tuple[Kind, str, bool], ...] = (
    ("self", r"Entry-HcclCommInit\w*:", True),
    ("self", r"hcclCommInitInfo:commId\[", True),
    ("self", r"SetupAgent rankNum\[", True),
    ("self", r"hcom init .{0,400}?rankNum\[", True),
    ("self", r"(?:HcclCommInit\w* failed|Init failed), return\[", True),
    ("self", r"comm error, device\[", True),
    ("self", r"groupRank information is group:\[", True),
    ("self", r"wait socket establish timeout, role\[\d+\] rank\[", True),
    ("self", r"\(PID:\d{1,10}, Device:(?P<own_device>\d{1,6}), RankID:(?:-1|(?P<own_rank>\d{1,9}))\)", True),
    ("self", r"PostProcess\] This node \S+ rank id: (?P<own_rank>\d{1,9})", True),
    (
        "listen",
        rf"Listen on ip\[(?P<address>{_ADDRESS})\], port\[(?P<port>\d{{1,5}})\].{{0,400}}?"
        r"devPhyId\[(?P<physical>\d{1,6})\], devLogicId\[(?P<device>\d{1,6})\]",
        True,
    ),
    (
        "listen",
        r"ra_socket_(?:listen_start|batch_connect)\b.{0,100}?phy_id\[(?P<physical>\d{1,6})\],"
        rf" local_ip\[(?P<address>{_ADDRESS})\]",
        True,
    ),
    (
        "wait",
        rf"\|\s*(?P<address>{_ADDRESS})(?:%\w+)?\((?P<rank>\d{{1,9}})\)\s*\|\s*(?P<port>\d{{1,10}})\s*\|"
        rf"\s*(?P<own_address>{_ADDRESS})(?:%\w+)?\((?P<own_rank>\d{{1,9}})\)\s*\|[^|]*\|[^|]*\|"
        r"\s*(?:time out|no connect|connect fail\w*)\s*\|",
        False,
    ),
    (
        "wait",
        rf"\|\s*(?P<address>{_ADDRESS})(?:%\w+)?\((?P<rank>\d{{1,9}})\)\s*\|"
        rf"\s*(?P<own_address>{_ADDRESS})(?:%\w+)?\((?P<own_rank>\d{{1,9}})\)\s*\|[^|]*\|"
        r"\s*(?:time out|no connect|connect fail\w*)\s*\|",
        False,
    ),
    (
        "wait",
        r"Transport init error.{0,300}?remoteUserrank\[(?P<rank>\d{1,9})\]-(?:remoteIpAddr|remote_ip_addr)"
        rf"\[(?P<server>{_ADDRESS})"
        r"(?:/(?P<physical>\d{1,6}))?\]",
        False,
    ),
    (
        "wait",
        rf"srcRank \(server (?P<from_server>{_ADDRESS}), device ID (?P<from_physical>\d{{1,6}})\) fails to connect to"
        rf" dstRank \(server (?P<server>{_ADDRESS}), device ID (?P<physical>\d{{1,6}})\)",
        False,
    ),
    (
        "wait",
        r"connected p2p timeout.{0,400}?local logicDevid:(?P<own_device>\d{1,6}),"
        r" remote physic id:(?P<physical>\d{1,6})",
        False,
    ),
    (
        "wait",
        r"Wait Enable P2P Failed, src devicePhyId\[(?P<own_physical>\d{1,6})\],"
        r" dst devicePhyId\[(?P<physical>\d{1,6})\]",
        False,
    ),
    ("wait", r"Notify record from remote rank\W{0,3}\[(?P<rank>\d{1,9})\]", False),
    ("wait", r"TaskExceptionHandler.{0,400}?remote rank\W{0,3}\[(?P<rank>\d{1,9})\]", False),
    ("wait", r"\bEI0012\b.{0,400}?Remote rank\W{0,3}\[(?P<rank>\d{1,9})\]", False),
    ("wait", r"GetRankBasicInfo from rank\[(?P<rank>\d{1,9})\].{0,400}?(?:fail|error|timeout)", False),
    (
        "wait",
        rf"Cluster Exception Location\[IP/ID\]:\[(?P<server>{_ADDRESS})/(?P<physical>\d{{1,6}})\]"
        r"(?:.{0,400}?ExceptionType:\[(?P<what>[^\]]{1,80})\])?",
        False,
    ),
    (
        "wait",
        rf"(?P<what>cqe err)(?:or)? status\[\d+\].{{0,400}}?(?:(?:\bip|remoteIP):\s?\[|remoteIP\{{.{{0,80}}?deviceIp\[)"
        rf"(?P<address>{_ADDRESS})\]",
        False,
    ),
    (
        "wait",
        rf"(?P<what>EI0013)\b.{{0,400}}?Local information: server (?P<own_server>{_ADDRESS}), device ID"
        rf" (?P<own_physical>\d{{1,6}}), device IP (?P<own_address>{_ADDRESS})\W+Peer information:"
        rf" server (?P<server>{_ADDRESS}), device ID (?P<physical>\d{{1,6}}), device IP (?P<address>{_ADDRESS})",
        False,
    ),
    (
        "wait",
        rf"serverId\[(?P<server>{_ADDRESS})\], deviceId\[(?P<physical>\d{{1,6}})\], (?:Heartbeat Lost|Stuck) Occurred",
        False,
    ),
    ("wait", r"Waiting peer rank\W{1,4}(?P<rank>\d{1,9})\b", False),
    ("root", rf"connect server\[(?P<address>{_ADDRESS})(?:%\w+)?\s?:\s?(?P<port>\d{{1,5}})\] failed", False),
    ("root", r"topo exchange agent get socket timeout", False),
    ("root", r"\[Recv\]\[ClusterInfoMsg\]receive msg", False),
    ("missing", r"Failed to connect agent\[(?P<ranks>[\d,]{1,4000})\]", False),
    ("came", r"connected rankinfo\[LINE \d+\]:\s?(?P<came>[^;]{1,4000})", False),
    ("expected", r"need connect rankNum is \[(?P<ranks>\d{1,9})\]", False),
    (
        "task",
        r"(?:taskType\[Notify Wait\]|run failed, base info\w{1,9} is).{0,300}?\btag\[(?P<tag>[^\]]{1,200})\]"
        r"(?:, index\[(?P<index>\d{1,18})\])?",
        False,
    ),
    (
        "task",
        r"\[Rank (?P<own_rank>\d{1,9})\] Watchdog caught collective operation timeout: Work\w{1,9}"
        r"\(SeqNum=(?P<index>\d{1,18}), OpType=(?P<tag>\w{1,40})",
        False,
    ),
    (
        "task",
        r"run failed, opData info\w{1,9} is .{0,200}?\bindex\[(?P<index>\d{1,18})\], count\[(?P<count>\d{1,18})\]"
        r".{0,300}?\bdataType\[(?P<type>\w{1,20})\]",
        False,
    ),
    ("gone", r"Client connected end of file! Peer \w+ ip: \S+, port: (?P<port>\d{1,5})\b", True),
    ("tls", r"TLS SWITCH \((?P<tls>\d)\)", True),
    ("killed", r"(?P<what>Out of memory): Kill(?:ed)? process (?P<pid>\d{1,10})", True),
    ("killed", r"(?P<what>Memory cgroup out of memory): Kill(?:ed)? process (?P<pid>\d{1,10})", True),
    ("killed", r"oom-kill:.{0,600}?\bpid=(?P<pid>\d{1,10})\b", True),
    ("killed", r"\[(?P<pid>\d{1,10})\]: (?P<what>segfault) at ", True),
    ("killed", r"traps: .{1,20}\[(?P<pid>\d{1,10})\] (?P<what>general protection|trap invalid opcode)", True),
    ("killed", r"Killing .{1,20}:(?P<pid>\d{1,10}) due to (?P<what>hardware memory corruption)", True),
    ("killed", r"NVRM: (?P<what>Xid) \(PCI:[\w:.]{1,30}\): \d{1,4}, pid='?(?P<pid>\d{1,10})\b", True),
    ("address", r"hccn_tool -i (?P<device>\d{1,6}) -ip(?: -inet6)? -g", True),
    ("address", rf"^(?:ipaddr|ipv6_address):\s?(?P<address>{_ADDRESS})", True),
)


@cache
def forms() -> tuple[Form, ...]:
    """Return the forms, ready to be tried."""
    made = []
    for kind, regex, always in _TABLE:
        literals = required_literals(regex)
        assert literals, regex  # a test compares every form with a line
        made.append(Form(kind, re.compile(regex), literals, always))
    return tuple(made)


def read_fact(
    text: str, among: tuple[Form, ...], line: int, time: float | None, log: str, level: int = 0
) -> Fact | None:
    """Return what a line says of its writer or of a peer; None where no form fits. Its level is behind a label."""
    head = text[level : level + _HEAD]
    for form in among:
        match = form.regex.search(text)
        if match is None or (not form.always and head.startswith(_HEALTHY)):
            continue
        # An address at the end of a sentence is followed by its full stop.
        values = {name: value.rstrip(".:") for name, value in match.groupdict().items() if value is not None}
        if form.kind == "self":
            values |= _fields(text, values)
        elif form.kind in ("wait", "root") and (group := _GROUP.search(text)):
            values["group"] = group[1]
        process = _PROCESS.search(head)
        pid = int(process[1] or process[2]) if process else None
        return Fact(line, form.kind, pid, values, time, log)
    return None


def _fields(text: str, values: Mapping[str, str]) -> dict[str, str]:
    """Return what a process says of itself, by the names of the fields, which every version writes alike."""
    fields = {name: match[1] for name, regex in _SELF_FIELDS.items() if (match := regex.search(text))}
    if "root" not in fields:
        fields.pop("root_port", None)
    if "own_device" in values:
        fields["device"] = values["own_device"]
    if "own_rank" in values:
        fields |= {"rank": values["own_rank"], "ranks": str(WHOLE_JOB)}
    return fields
