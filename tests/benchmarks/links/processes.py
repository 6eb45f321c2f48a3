"""What a process and all its descendants cost."""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.rest import processor_s


@dataclass(frozen=True, slots=True)
class Cost:
    """``memory_bytes``: proportional set sizes, so that what processes share counts once."""

    processes: int
    memory_bytes: int
    core_share: float


def tree(pid: int) -> list[int]:
    """``pid`` and its descendants."""
    children = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            children[int(stat.read_text().rpartition(")")[2].split()[1])].append(int(stat.parent.name))
    found = [pid]
    for parent in found:
        found += children[parent]
    return found


def cost_of_tree(pid: int, seconds: float) -> Cost:
    """Over the next ``seconds``; memory is that at the end."""
    before = _processor_s(pid)
    began_s = time.monotonic()
    time.sleep(seconds)
    passed_s, after = time.monotonic() - began_s, _processor_s(pid)
    used_s = sum(spent_s - before.get(process, 0.0) for process, spent_s in after.items())
    return Cost(len(after), sum(proportional_bytes(process) for process in after), used_s / passed_s)


def processor_of_tree_s(pid: int) -> float:
    """What the processes that live now have used."""
    return sum(_processor_s(pid).values())


def _processor_s(pid: int) -> dict[int, float]:
    spent_s = {}
    for process in tree(pid):
        with suppress(OSError):
            spent_s[process] = processor_s(process)
    return spent_s


def proportional_bytes(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
