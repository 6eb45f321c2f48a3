"""Whole daemons in the process of the test, with real sockets on loopback."""

from __future__ import annotations

import itertools
import os
import random
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import trio

from daemon.config import Config, EmulationConfig, NodeConfig
from daemon.process import Daemon
from overlay.config import OverlayConfig

#: A test that waits so long has failed; nothing is asserted about how fast anything is.
PATIENCE_S = 120.0
FAST = OverlayConfig(probe_interval_s=0.05, min_exchange_interval_s=0.1, join_retry_s=0.1, join_timeout_s=4.0)


def ports_of(worker: int, workers: int) -> range:
    """Those that one of several processes of tests may use, below those that the kernel gives to outgoing
    connections."""
    return range(20_000 + worker, 32_000, workers)


def _in_turn() -> Iterator[int]:
    """Those of this process, from anywhere on, over and over."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    ports = ports_of(worker, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    first = random.randrange(len(ports))
    return itertools.cycle([*ports[first:], *ports[:first]])


_ports = _in_turn()


def free_port() -> int:
    """A loopback port that is free for UDP and TCP now. Many are asked for before any is used: none is given again
    before all others were, nor to another worker."""
    while True:
        address = ("127.0.0.1", next(_ports))
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp, suppress(OSError):
            tcp.bind(address)
            udp.bind(address)
            return address[1]


def make_config(
    folder: Path, name: str, *, port: int | None = None, rtt_ms: dict[str, float] | None = None, **settings: float
) -> Config:
    """A daemon that lives in ``folder``; ``settings`` go to [node]."""
    node = NodeConfig(
        name=name,
        listen=f"127.0.0.1:{port or free_port()}",
        state_dir=folder / name,
        socket=folder / f"{name}.sock",
        load=settings.get("load", 0.0),
    )
    return Config(node=node, overlay=FAST, emulation=None if rtt_ms is None else EmulationConfig(rtt_ms))


@asynccontextmanager
async def running(*configs: Config) -> AsyncIterator[list[Daemon]]:
    """Daemons that serve for as long as the block lasts, and end like processes that are told to stop."""
    async with trio.open_nursery() as nursery:
        daemons = []
        for config in configs:
            daemon = Daemon(config)
            await nursery.start(daemon.run)
            daemons.append(daemon)
        yield daemons
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    """Return when ``condition`` holds."""
    with trio.fail_after(PATIENCE_S):
        while not condition():
            await trio.sleep(0.01)
