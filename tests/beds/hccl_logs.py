"""Log folders as Ascend jobs leave them, written by us in the same forms, with a known culprit."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

START = datetime(2026, 3, 1, 8, 0, 0)
DEVICES = 8  # of a host
GROUP = "10.0.0.1%eth0_60000_0_1750325244673428"


@dataclass
class Job:
    """A job of some ranks, whose ranks write what they are told to."""

    folder: Path
    ranks: int
    seed: int = 0
    skew: float = 0.0
    """How many seconds the clocks of hosts may be off."""
    hidden: set[int] = field(default_factory=set)
    """Ranks whose logs nobody has collected."""

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.lines: dict[int, list[str]] = {rank: [] for rank in range(self.ranks)}
        self.began: dict[int, list[str]] = {rank: [] for rank in range(self.ranks)}
        hosts = range((self.ranks - 1) // DEVICES + 1)
        self.clock = {host: self.chance.uniform(-self.skew, self.skew) for host in hosts}
        # worker-0 need not be the host of rank 0, and pids have no order
        self.worker = dict(zip(hosts, self.chance.sample(range(len(hosts) + 5), len(hosts)), strict=True))
        self.pid = dict(zip(range(self.ranks), self.chance.sample(range(1000, 99999), self.ranks), strict=True))
        for rank in range(self.ranks):
            self._introduce(rank)

    def host(self, rank: int) -> str:
        return f"10.0.0.{rank // DEVICES + 1}"

    def address(self, rank: int) -> str:
        return f"192.168.{rank // DEVICES + 1}.{rank % DEVICES + 10}"

    def line(self, rank: int, seconds: float, text: str, level: str = "ERROR") -> str:
        when = START + timedelta(seconds=seconds + self.clock[rank // DEVICES])
        stamp = f"{when:%Y-%m-%d-%H:%M:%S}.{when.microsecond // 1000:03d}.{when.microsecond % 1000:03d}"
        return f"[{level}] HCCL({self.pid[rank]},python3):{stamp} {text}"

    def says(self, rank: int, seconds: float, text: str) -> None:
        self.lines[rank].append(self.line(rank, seconds, text))

    def _introduce(self, rank: int) -> None:
        device = rank % DEVICES
        told = (
            f"[topoinfo_detect.cc:506] [{self.pid[rank]}][HCCL_TRACE][Flat]SetupAgent rankNum[{self.ranks}],"
            f" rank[{rank}], rootInfo identifier[{GROUP}], server[{self.host(rank)}%eth0], serverPort[60000]"
            f"deviceType[2], logicDevId[{device}], phydevId[{device}], deviceIp[{self.address(rank)}]"
        )
        listens = (
            f"[network_manager.cc:561] [{self.pid[rank]}][Start][Vnic]Listen on ip[192.168.200.{device}], port[16666]"
            f" sucess, devPhyId[{device}], devLogicId[{device}], isAutoPort[0]"
        )
        group = f"10.0.9.9%eth0_60001_{device}_1750325244673{rank % 3:03d}"  # a smaller group, with other numbers
        small = (
            f"[op_base.cc:413][1]Entry-HcclCommInitRootInfo:ranks[2], rank[{rank % 2}], rootinfo: host ip[10.0.9.9]"
            f" port[60001] nicDeploy[1] identifier[{group}], deviceLogicId[{device}]"
        )
        for text in (told, listens, small):
            self.began[rank].append(self.line(rank, 1.0, text, "INFO"))

    def waits(self, rank: int, peer: int, seconds: float = 130.0, form: str | None = None) -> None:
        """Have a rank complain of another, in one of the forms that fit."""
        forms = ["table", "notify", "cluster", "sdma"] + (["p2p"] if rank // DEVICES == peer // DEVICES else [])
        form = form or self.chance.choice(forms)
        for text in getattr(self, f"_{form}")(rank, peer):
            self.says(rank, seconds, text)

    def _table(self, rank: int, peer: int) -> list[str]:
        inside = rank // DEVICES == peer // DEVICES
        to, own = (
            (f"192.168.200.{peer % DEVICES}", f"192.168.200.{rank % DEVICES}")
            if inside
            else (self.address(peer), self.address(rank))
        )
        return [
            f"[hccl_socket_manager.cc:778] [7][Wait][LinkEstablish]wait socket establish timeout, role[1] rank[{rank}]"
            " timeout[130]",
            f"[hccl_socket_manager.cc:592] [7]   |  comm error, device[{rank % DEVICES}] ",
            f"[hccl_socket_manager.cc:553] [7]   |  {to}({peer})   |  16666  |   {own}({rank})   |  0  |  client  |"
            " time out |  ",
        ]

    def _notify(self, rank: int, peer: int) -> list[str]:
        del rank
        return [
            "[task_exception_handler.cc:1] EI0002: The wait execution of the Notify register times out. Reason: The"
            f" Notify register has not received the Notify record from remote rank: [{peer}]. base information:"
            f" [streamID:[1], taskID[5], tag[AllReduce_{GROUP}]"
        ]

    def _cluster(self, rank: int, peer: int) -> list[str]:
        return [
            "[task_exception_handler.cc:610][7][TaskExecStage][HeartbeatAbnormal]Cluster Exception Location[IP/ID]:"
            f"[{self.host(peer)}/{peer % DEVICES}], Arrival Time:[Thu Oct 23 17:25:58 2025],"
            f" Discoverer:[{self.host(rank)}/{rank % DEVICES}], ExceptionType:[Heartbeat Lost Occurred]"
        ]

    def _sdma(self, rank: int, peer: int) -> list[str]:
        del rank
        return [f"Execution_Error_SDMA(EI0012): SDMA memory copy task exception occurred. Remote rank: [{peer}]. Base"]

    def _p2p(self, rank: int, peer: int) -> list[str]:
        return [
            "[p2p_mgmt.cc:305] [7][Wait][P2PConnected]connected p2p timeout, timeout:130 s. local logicDevid:"
            f"{rank % DEVICES}, remote physic id:{peer % DEVICES}."
        ]

    def fails(self, rank: int, seconds: float) -> None:
        """Have a rank fail by itself."""
        self.says(rank, seconds, "EJ0002: The environment is abnormal: the NPU network port is down.")

    def write(self) -> Path:
        """Write the logs, but for those that nobody has collected."""
        for rank in set(range(self.ranks)) - self.hidden:
            place = self.folder / f"worker-{self.worker[rank // DEVICES]}" / "process_log"
            for part, lines in (("run", self.began[rank]), ("debug", self.lines[rank])):
                if lines:
                    log = place / part / "plog" / f"plog-{self.pid[rank]}_2026030108{len(part):07d}.log"
                    log.parent.mkdir(parents=True, exist_ok=True)
                    log.write_text("".join(f"{line}\n" for line in lines))
        return self.folder
