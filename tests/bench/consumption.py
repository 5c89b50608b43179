"""What a server's processes have used, from /proc: CPU time and memory, its workers included.

CPU time is what is compared: on a shared machine it is far steadier than any latency.
"""

import os
from collections.abc import Iterator
from pathlib import Path

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def cpu_s(pid: int) -> float:
    """User and system time of a process and its children."""
    return sum(sum(map(int, _stat(one)[11:13])) for one in _family(pid)) / TICKS_A_SECOND


def memory_bytes(pid: int) -> int:
    """Resident memory of a process and its children."""
    return sum(int(_stat(one)[21]) for one in _family(pid)) * PAGE_BYTES


def _stat(pid: int) -> list[str]:
    """The fields of proc(5)'s `stat` behind the name, which may hold spaces and brackets itself."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _family(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from _family(int(child))
