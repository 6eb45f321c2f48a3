"""What a daemon at rest costs: its share of a core and its memory, joined with several others and without its engine.

    python -m tests.benchmarks.rest [--daemons 24] [--seconds 60]

Prints JSON. Beside the daemons runs a bare trio process, which sends itself ten small datagrams a second: what any
daemon with a socket and an event loop in this Python costs at least. `ratio` is the daemons' mean over that.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from daemon.control.messages import Done, Join, Status, StatusReply
from daemon.demo.asking import ask
from tests.daemon.real_daemons import free_port

#: What is wanted of a daemon at rest.
TARGET_CORE_SHARE = 0.01
TARGET_RESIDENT_BYTES = 70_000_000
#: After the last join: the burst of first probes and introductions is not rest.
SETTLE_S = 30.0
_START_TIMEOUT_S = 60.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

BARE_TRIO = """
import socket, trio

async def main():
    with trio.socket.socket(type=socket.SOCK_DGRAM) as udp:
        await udp.bind(("127.0.0.1", 0))
        while True:
            await trio.sleep(0.1)
            await udp.sendto(bytes(100), udp.getsockname())
            await udp.recvfrom(2000)

trio.run(main)
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one process. ``anonymous_bytes`` are its own, ``resident_bytes`` also count the files that it shares."""

    core_share: float
    resident_bytes: int
    anonymous_bytes: int


def processor_s(pid: int) -> float:
    """Processor time, in user and system mode, that the process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def memory_bytes(pid: int, name: str) -> int:
    """A line of /proc/PID/status, VmRSS for example."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"the kernel does not tell {name} of a process")


def measure(pids: Sequence[int], seconds: float) -> list[Cost]:
    """What each process costs over the next ``seconds``; memory is that at the end."""
    started_s, before = time.monotonic(), [processor_s(pid) for pid in pids]
    time.sleep(seconds)
    passed_s = time.monotonic() - started_s
    return [
        Cost((processor_s(pid) - used_s) / passed_s, memory_bytes(pid, "VmRSS"), memory_bytes(pid, "RssAnon"))
        for pid, used_s in zip(pids, before, strict=True)
    ]


@contextmanager
def running(commands: Sequence[Sequence[str]]) -> Iterator[list[int]]:
    """Processes (their ids) for as long as the block lasts."""
    processes = []
    try:
        for command in commands:
            processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(30)


def write_configuration(folder: Path, at: int) -> tuple[str, Path, Path]:
    """A configuration as short as a user's; (address, control socket, file)."""
    address, socket, file = f"127.0.0.1:{free_port()}", folder / f"{at}.sock", folder / f"{at}.toml"
    settings = {"name": f"node{at}", "listen": address, "state_dir": str(folder / str(at)), "socket": str(socket)}
    file.write_text("\n".join(["[node]", *(f"{key} = {json.dumps(value)}" for key, value in settings.items())]))
    return address, socket, file


async def join_all(addresses: Sequence[str], sockets: Sequence[Path]) -> None:
    """One overlay of all; return when each has at least one neighbour."""
    with trio.fail_after(_START_TIMEOUT_S):
        for socket in sockets:
            while not socket.exists():
                await trio.sleep(0.1)
        for socket in sockets[1:]:
            await ask(socket, Join(addresses[0]), Done)
        for socket in sockets:
            while not (await ask(socket, Status(), StatusReply)).peers:
                await trio.sleep(0.1)


def summary(daemons: Sequence[Cost], bare: Cost) -> dict[str, object]:
    """What is printed. Shares are of one core."""
    core_share = statistics.fmean(cost.core_share for cost in daemons)
    resident_bytes = max(cost.resident_bytes for cost in daemons)
    anonymous_bytes = max(cost.anonymous_bytes for cost in daemons)
    return {
        "daemons": len(daemons),
        "core_share": {"mean": round(core_share, 5), "max": round(max(cost.core_share for cost in daemons), 5)},
        "resident_bytes": {"VmRSS": resident_bytes, "RssAnon": anonymous_bytes},
        "bare_trio": {
            "core_share": round(bare.core_share, 5),
            "VmRSS": bare.resident_bytes,
            "RssAnon": bare.anonymous_bytes,
        },
        "ratio": {
            "core_share": round(core_share / bare.core_share, 2) if bare.core_share else None,
            "VmRSS": round(resident_bytes / bare.resident_bytes, 2),
            "RssAnon": round(anonymous_bytes / bare.anonymous_bytes, 2),
        },
        "within_targets": core_share <= TARGET_CORE_SHARE and resident_bytes <= TARGET_RESIDENT_BYTES,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return 1 if a target is missed."""
    parser = argparse.ArgumentParser(description="What a daemon at rest costs.")
    parser.add_argument("--daemons", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--settle-s", type=float, default=SETTLE_S)
    parsed = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        nodes = [write_configuration(Path(folder), at) for at in range(parsed.daemons)]
        commands = [[sys.executable, "-m", "daemon", "run", "--config", str(file)] for _, _, file in nodes]
        with running([[sys.executable, "-c", BARE_TRIO], *commands]) as pids:
            trio.run(join_all, [address for address, _, _ in nodes], [socket for _, socket, _ in nodes])
            time.sleep(parsed.settle_s)
            bare, *daemons = measure(pids, parsed.seconds)
    result = summary(daemons, bare)
    print(json.dumps(result, indent=2))
    return 0 if result["within_targets"] else 1


if __name__ == "__main__":
    sys.exit(main())
