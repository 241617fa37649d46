"""Binds a rank to its cores, and its memory to a NUMA node, without numactl."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing itself costs every rank 10 ms
if TYPE_CHECKING:
    from collections.abc import Mapping

_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "loongarch64": 237, "ppc64le": 261, "s390x": 269}
"""The number of the system call on each machine: glibc has no function for it."""
_PREFERRED, _BIND = 1, 2
_WORD = 64


def bind(environment: Mapping[str, str]) -> None:
    """Bind as the plan has it; what the host does not allow is printed in the log, and the rank runs all the same."""
    cores, node = environment.get("MSLAUNCH_CORES"), environment.get("MSLAUNCH_NUMA_NODE")
    try:
        if cores is not None:
            os.sched_setaffinity(0, parse_cores(cores))
    except OSError as error:
        print(f"mslaunch: cannot bind this rank to cores {cores}: {error.strerror}.", file=sys.stderr)
    why = None
    memory = environment.get("MSLAUNCH_MEMORY_NODES")
    if memory is not None:
        node, why = memory, set_memory_policy(_BIND, parse_cores(memory))
    elif node is not None:
        why = set_memory_policy(_PREFERRED, {int(node)})
    if why is not None:
        print(f"mslaunch: cannot bind this rank's memory to node {node}: {why}.", file=sys.stderr)


def set_memory_policy(policy: int, nodes: set[int]) -> str | None:
    """Have memory come from these nodes, always or while they have some; return why that cannot be."""
    import ctypes

    number = _SET_MEMPOLICY.get(os.uname().machine)
    if number is None:
        return f"not known how on {os.uname().machine}"
    length = max(nodes) // _WORD + 1
    mask = (ctypes.c_ulong * length)()
    for node in nodes:
        mask[node // _WORD] |= 1 << node % _WORD
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, policy, mask, ctypes.c_ulong(length * _WORD + 1)) != 0:
        return os.strerror(ctypes.get_errno())
    return None


def parse_cores(text: str) -> set[int]:
    cores: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores
