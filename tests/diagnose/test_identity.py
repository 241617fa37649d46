"""Who wrote a log: what it says counts, its name where it says nothing, and what nobody knows is not made up."""

# ruff: noqa: E501 - lines of logs are as long as they are

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mslaunch.diagnose.case import Case
from mslaunch.diagnose.evidence import read_sources
from mslaunch.diagnose.judge import judge
from mslaunch.diagnose.logs.scan import scan
from mslaunch.diagnose.logs.sources import files_of
from mslaunch.diagnose.waiting.line_facts import forms
from mslaunch.diagnose.waiting.writer import read_name

HEAD = "HCCL(4242,python3):2026-03-01-08:00:00.000.000"
ENTRY = f"[INFO] {HEAD} [op_base.cc:413][1]Entry-HcclCommInitRootInfo:ranks[8], rank[6], rootinfo: host ip[10.0.0.7] port[60004], identifier[g1], deviceLogicId[2]"
HCOM = f"[TRACE] {HEAD} [status:init] [hcom.cc:194][w][77]hcom init by file success,take time [1]us, rankTablePath[/t.json], rankNum[128], rank[77],server[10.0.0.1], device[5]"
AGENT = f"[INFO] {HEAD} [t.cc:208][1][HCCL_TRACE]SetupAgent rankNum[8], rank[6], rootInfo identifier[g1], server[10.0.0.2%eth0], logicDevId[2], phydevId[6], deviceIp[192.168.1.6]"
SMALL = f"[INFO] {HEAD} [op_base.cc:413][1]Entry-HcclCommInitRootInfo:ranks[2], rank[1], rootinfo: host ip[10.0.0.7] port[60004], identifier[g2], deviceLogicId[2]"
NODE = (
    "[WARNING] DISTRIBUTED(4242,7f,python):2026-03-01-08:00:00.000.000 [c.cc:428] PostProcess] This node 3 rank id: 3"
)
LINES = {
    "link row": f"[ERROR] {HEAD} [x.cc:553] [7]   |  10.1.0.2(10)   |  16666  |   10.1.0.1(2)   |  28  |  server  | time out |",
    "link row with TLS": f"[ERROR] {HEAD} [7] | 10.1.0.2(0) | 16666 | 10.1.0.1(1) | 3 | client | time out | DISABLE | LinkInfo",
    "link row of older versions": f"[ERROR] {HEAD} [7]   |  124.0.0.11(1)   |   124.0.0.21(0)   |  server  | no connect |",
    "transport": f"[ERROR] {HEAD} [Create][DestLink]Transport init error! createLink para:rank[2]-localUserrank[2]-localIpAddr[], dst_rank[0]-remoteUserrank[0]-remoteIpAddr[10.0.0.1/3], machineType[1]",
    "detected": f"[ERROR] {HEAD} This node (server 10.0.0.1, device ID 1) detects that srcRank (server 10.0.0.1, device ID 1) fails to connect to dstRank (server 10.0.0.2, device ID 0).",
    "data of a task": f"[ERROR] {HEAD} [TaskExecStage][Timeout][Host]FFTS+ run failed, opData information is timeStamp:[2026-03-01-08:00:00.000.000], deviceId[0], index[21], count[256], reduceType[sum], src[0x1], dst[0x2], dataType[float32].",
    "group of a task": f"[ERROR] {HEAD} [TaskExecStage][Timeout][Host]FFTS+ run failed, groupRank information is group:[g1], user define information[], rankSize[4], rankId[2].",
    "communicator": f"[INFO] {HEAD} [hccl_comm.cc:129] [1]hcclCommInitInfo:commId[x], rank[0], totalRanks[2], serverId[10.0.0.1], deviceType[4],logicDevId[11], identifier[g1]",
    "HCCP listens": "[INFO]HCCP(4242,python):2026-03-01-08:00:00.000.000 [ra.c:1]ra_socket_listen_start : Input parameters: [0]th, phy_id[0], local_ip[192.168.1.6], port[16666]",
    "task": f"[ERROR] {HEAD} [TaskExceptionHandler]Task run failed, base information is streamID:[3], taskID[7], taskType[Notify Wait], tag[AllReduce_g1], index[3], AlgType(level 0-1-2):[null-null-ring].",
    "tls": "[INFO] HCCP(4242,python3):2026-03-01-08:00:00.000.000 [ra_host.c:1]tid:1, TLS SWITCH (1)",
    "p2p": f"[ERROR] {HEAD} connected p2p timeout, timeout:130 s. local logicDevid:0, remote physic id:1.",
    "p2p enable": f"[ERROR] {HEAD} [Create][DestSockets]Wait Enable P2P Failed, src devicePhyId[2], dst devicePhyId[1], ret[16]",
    "notify": "EI0002: [PID: 2969] 2025-10-11-15:09:34.713.335 The Notify register has not received the Notify record from remote rank: [24].",
    "handler": f"[ERROR] {HEAD} [TaskExceptionHandler][Callback]Task from HCCL run failed. remote rank:[3]",
    "sdma": "[PID: 3480365] 2025-12-24-14:10:31.094.189 Execution_Error_SDMA(EI0012): SDMA exception. Remote rank: [4800]. B",
    "basic info": f"[ERROR] {HEAD} GetRankBasicInfo from rank[5] failed",
    "cluster": f"[ERROR]{HEAD}[t.cc:610]Cluster Exception Location[IP/ID]:[127.10.0.1/1], Arrival Time:[x], ExceptionType:[Heartbeat Lost Occurred]",
    "cqe": f"[ERROR] {HEAD} [Heartbeat]cqe err status[12], time:[x], ip:[192.1.95.102]",
    "new cqe": f"[ERROR] {HEAD} [Heartbeat]cqe error status[12], localIP:[192.1.1.1], remoteIP:[192.1.95.102]",
    "newest cqe": f"[ERROR] {HEAD} cqe error status[12] remoteIP{{deviceId[6],deviceIp[192.1.95.102]}}",
    "EI0013": "[PID: 3448331] 2025-12-04-21:59:08.232.310 Execution Error ROCE CQE(EI0013): An error CQE occurred. Local information: server 127.0.0.1, device ID 0, device IP 127.10.0.1. Peer information: server 127.0.0.2, device ID 1, device IP 127.10.0.2.",
    "new notify": "EI0002: [PID: 1] A timeout occurs when the Notify register waits for execution. Waiting peer rank: [5]; task information: x",
    "root": f"[ERROR] {HEAD} [Setup]TopoExchangeAgent: connect server[127.10.0.1 : 60000] failed",
    "agent": f"[ERROR] {HEAD} [RanktableDetect]topo exchange agent get socket timeout! timeout[120]",
    "receive": f"[ERROR] {HEAD} [Recv][ClusterInfoMsg]receive msg length from fdhandle failed, ret[9]",
    "missing": f'[ERROR] {HEAD} TopoDetect ERROR occur !!! fault_type[1], fault_info["Failed to connect agent[1,3,5,7,]"]',
    "came": f"[ERROR] {HEAD} [DisplayConnectionedRank]connected rankinfo[LINE 0]: [0000000000000000],[0000000000000002];",
    "expected": f"[ERROR] {HEAD} [DisplayConnectionedRank]need connect rankNum is [8]",
    "listen": f"[INFO] {HEAD} [Start][Vnic]Listen on ip[192.168.2.197], port[16666] sucess, devPhyId[2], devLogicId[2], isAutoPort[0]",
    "init failed": f"[ERROR] {HEAD} [InitCommRootInfo]Init failed, return[0x0000000005000004], rankNum[2048], rank[0], logicDevId[-1]",
    "device": f"[ERROR] {HEAD} [7]   |  comm error, device[2]",
    "establish": f"[ERROR] {HEAD} [Wait][LinkEstablish]wait socket establish timeout, role[0] rank[2] timeout[130]",
    "kernel": "Mar 15 03:40:50 n1 kernel: [16794.2] Out of memory: Killed process 6033 (python) total-vm:1kB",
    "older kernel": "Mar 15 03:40:50 n1 kernel: [16794.2] Out of memory: Kill process 6033 (python) score 367 or sacrifice child",
    "container": "[16794.2] Memory cgroup out of memory: Killed process 6033 (python) total-vm:1kB",
    "segfault": "Mar 15 03:40:50 n1 kernel: [1.2] python[6033]: segfault at 0 ip 00007f sp 00007f error 4 in libx.so",
    "oom": "[1.2] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=a,oom_memcg=/p,task_memcg=/p/c,task=python,pid=6033,uid=0",
    "trap": "[1.2] traps: python3[6033] general protection fault ip:7f sp:7f error:0 in libc.so.6[7f+1]",
    "opcode": "[1.2] traps: python3[6033] trap invalid opcode ip:7f sp:7f error:0 in libx.so[7f+1]",
    "memory": "[1.2] Memory failure: 0x2043f3: Killing python:6033 due to hardware memory corruption",
    "Xid": "[1.2] NVRM: Xid (PCI:0000:01:00): 31, pid=6033, name=python, Ch 00000008, intr 10000000. MMU Fault",
    "hccn_tool": "/usr/local/Ascend/driver/tools/hccn_tool -i 0 -ip -g",
    "address": "ipaddr:192.1.45.172",
    "PyTorch on NPUs": "[ERROR] 2025-04-08-18:07:20 (PID:1292363, Device:1, RankID:1) ERR01100 OPS call acl api failed.",
    "older heartbeat": "        serverId[10.0.0.7], deviceId[0], Heartbeat Lost Occurred, Possible Reason: 1. Process has exited",
    "watchdog": "[rank1]:[E324 13:00:25.428029551 c.ts:574] [Rank 1] Watchdog caught collective operation timeout: WorkHCCL(SeqNum=196, OpType=ALLREDUCE, Timeout(ms)=3600000) ran for 3600185 milliseconds before timing out.",
    "broken connection": "[WARNING] DISTRIBUTED(21129,7f7c157fa6c0,python):2026-11-16-02:04:58.354.826 [mindspore/ccsrc/cluster/rpc/core/communicator/tcp_client.cc:346] EventCallbackInner] Client connected end of file! Peer Worker ip: 127.0.0.1, port: 8374",
    "entry": ENTRY,
    "hcom": HCOM,
    "setup": AGENT,
    "node": NODE,
}


def write(folder: Path, name: str, *lines: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def only(folder: Path) -> Case:
    (case,) = read_sources(files_of(folder)).cases
    return case


@pytest.mark.parametrize("name", LINES)
def test_every_form_of_line_is_read_among_others(name: str) -> None:
    """The quick search finds it, and so does the form."""
    found = scan(["epoch: 1 step: 2, loss is 3", LINES[name], "saved"])
    assert [fact.line for fact in found.facts] == [2]


def test_every_form_has_a_line_here() -> None:
    """A form that nothing fits would go unnoticed."""
    unused = [form.regex.pattern for form in forms() if not any(form.regex.search(line) for line in LINES.values())]
    assert unused == []


@pytest.mark.parametrize(
    ("name", "line", "expected"),
    [
        ("worker-1/plog-parser-123-1.log", ENTRY.replace("4242", "123"), (6, "worker-1", 2)),
        ("job/ascend/process_log/rank_77/debug/plog/plog-4242_1.log", HCOM, (77, "10.0.0.1", 5)),
        ("worker-1/process_log/run/plog/plog-4242_1.log", AGENT, (6, "10.0.0.2", 2)),
        ("worker_0.log", NODE, (3, None, None)),
        ("worker_5.log", "hello", (5, None, None)),
        ("rank_4/log.txt", "hello", (4, None, None)),
        ("rank_4/log.txt", SMALL, (4, None, 2)),
        ("worker-1/process_log/debug/plog/plog-99_1.log", "hello", (None, "worker-1", None)),
        ("process_log/debug/device-3/device-99_1.log", "hello", (None, None, 3)),
        ("20260301.log", "hello", (None, None, None)),
    ],
)
def test_what_a_log_says_counts_more_than_its_name(
    tmp_path: Path, name: str, line: str, expected: tuple[int | None, str | None, int | None]
) -> None:
    """Rank, host and device; worker-1 as a folder is a host, and a number in a name is no rank by itself."""
    write(tmp_path, name, line)
    case = only(tmp_path)
    assert (case.rank, case.host, case.device) == expected


def test_the_rank_in_the_largest_group_is_the_rank(tmp_path: Path) -> None:
    """A process has another number in every group of ranks that it is in."""
    write(tmp_path, "plog-4242_1.log", SMALL, AGENT, SMALL.replace("rank[1]", "rank[0]").replace("g2", "g3"))
    assert only(tmp_path).rank == 6


def test_logs_of_one_process_are_put_together(tmp_path: Path) -> None:
    """CANN writes a run log, a debug log and one for the device; the pid is the same."""
    for place in ("run/plog/plog", "debug/plog/plog", "debug/device-2/device"):
        write(tmp_path, f"worker-1/process_log/{place}-4242_{len(place)}.log", AGENT if "run" in place else "x")
    assert only(tmp_path).rank == 6


def test_lines_of_another_process_are_given_to_it(tmp_path: Path) -> None:
    """Each line of a log that several processes share names the one that wrote it."""
    write(tmp_path, "w/train.log", AGENT, AGENT, AGENT.replace("4242", "5").replace("rank[6]", "rank[3]"))
    write(tmp_path, "w/debug/plog/plog-5_1.log", "x")
    assert sorted(case.rank or 0 for case in read_sources(files_of(tmp_path)).cases) == [3, 6]


def test_a_plog_is_of_the_process_that_its_name_tells(tmp_path: Path) -> None:
    """Its lines may have the pid of a container, or that of the process on the device."""
    for rank in (1, 2):
        write(tmp_path, f"w/run/plog/plog-10{rank}_1.log", AGENT.replace("rank[6]", f"rank[{rank}]"))
        write(tmp_path, f"w/debug/device-{rank}/device-10{rank}_1.log", LINES["device"])
    assert [case.rank for case in read_sources(files_of(tmp_path)).cases] == [1, 2]


def test_a_rank_that_two_hosts_claim_is_given_to_one_only(tmp_path: Path) -> None:
    """Nobody knows which; the other is called by its file."""
    write(tmp_path, "a/plog-4242_1.log", AGENT)
    write(tmp_path, "b/plog-5_1.log", AGENT.replace("4242", "5").replace("10.0.0.2", "10.0.0.9"))
    assert [case.rank for case in read_sources(files_of(tmp_path)).cases] == [6, None]


def test_a_name_is_read_alike_wherever_the_folder_is() -> None:
    """Only the path below the folder counts."""
    assert read_name("plog-77_20260301.log").rank is None
    assert read_name("worker_12.log").rank == 12
    assert read_name("train_rank3.log").rank == 3
    assert re.fullmatch("w/process_log", read_name("w/process_log/debug/plog/plog-7_1.log").place)


@pytest.mark.parametrize(
    ("name", "summary"),
    [
        ("older kernel", "killed by the kernel: out of memory (DMESG:2)"),
        ("container", "out of memory"),
        ("oom", "out of memory"),
        ("segfault", "killed by SIGSEGV, as DMESG:2 says"),
        ("trap", "SIGSEGV"),
        ("opcode", "SIGILL"),
        ("memory", "SIGBUS"),
        ("Xid", "A program failed on the GPU at 0000:01:00 (Xid 31)."),
    ],
)
def test_what_the_kernel_says_of_a_rank_is_the_ranks_end(tmp_path: Path, name: str, summary: str) -> None:
    """An excerpt of dmesg beside the logs names a pid; the rank with that pid is the culprit."""
    write(tmp_path, "plog-6033_1.log", AGENT.replace("4242", "6033"))
    write(tmp_path, "plog-5_1.log", AGENT.replace("4242", "5").replace("rank[6]", "rank[3]"))
    write(tmp_path, "dmesg", "[1.0] Linux version 5.10", LINES[name])
    verdict = judge(read_sources(files_of(tmp_path)).cases)
    assert verdict is not None
    assert verdict.rank == 6
    assert summary.replace("DMESG", str(tmp_path / "dmesg")) in verdict.summary


def test_other_failures_in_a_log_of_the_kernel_are_told_too(tmp_path: Path) -> None:
    """Its lines have nothing to do with each other, so that none is a consequence of the first."""
    full = "Mar 15 03:40:49 n1 kernel: nf_conntrack: nf_conntrack: table full, dropping packet"
    write(tmp_path, "messages", full, LINES["kernel"], full)
    verdict = judge(read_sources(files_of(tmp_path)).cases)
    assert verdict is not None
    assert verdict.pattern == "connection-table"
    assert str(verdict.advice).endswith("Line 2: The kernel killed a process for lack of host memory.")


def test_a_pid_that_two_hosts_have_is_of_the_host_whose_kernel_tells_it(tmp_path: Path) -> None:
    """The kernel's log stands in the folder of its host."""
    for host, rank in (("worker-0", 3), ("worker-1", 6)):
        line = AGENT.replace("4242", "6033").replace("rank[6]", f"rank[{rank}]").replace("10.0.0.2", f"10.0.0.{rank}")
        write(tmp_path, f"{host}/plog-6033_1.log", line)
    write(tmp_path, "worker-1/dmesg", LINES["kernel"])
    verdict = judge(read_sources(files_of(tmp_path)).cases)
    assert verdict is not None
    assert verdict.rank == 6
