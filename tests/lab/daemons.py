"""Real daemons on the hosts of a lab, each in folders of its own, asked over their control sockets."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import trio

from daemon.control.messages import Done, Join, MakeToken, NodeInfo, Nodes, NodesReply, RequestFor, TokenReply
from daemon.demo.asking import ask
from daemon.demo.configuration import toml
from daemon.demo.processes import tail
from sbon.errors import SbonError
from sbon.streams import SinkSpec, StreamSpec
from tests.lab.lab import Host, Lab

R = TypeVar("R", bound=msgspec.Struct)
#: Tables of a configuration, by name.
Tables = Mapping[str, Mapping[str, Any]]

PORT = 7400
#: More than a busy machine needs to start a dozen Pythons.
START_TIMEOUT_S = 120.0
_POLL_S = 0.2
#: Modules that run a daemon, with all but the name of its configuration.
_FAKE = ("tests.daemon.run_with_fake_engine",)
_REAL = ("daemon", "run", "--config")


@dataclass(slots=True)
class Node:
    """A daemon and its host."""

    name: str
    host: Host
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{self.host.address}:{PORT}"

    @property
    def socket(self) -> Path:
        return self.folder / "control.sock"

    @property
    def configuration(self) -> Path:
        return self.folder / "sbon.toml"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def ask(self, request: RequestFor[R], reply_type: type[R]) -> R:
        """Raises what :func:`daemon.demo.asking.ask` raises."""
        return trio.run(ask, self.socket, request, reply_type)

    def nodes(self) -> dict[str, NodeInfo]:
        """What it knows of whom, itself included, by name."""
        return {node.name: node for node in self.ask(Nodes(), NodesReply).nodes}

    def sbon(self, *arguments: str) -> str:
        """What the command line prints, as a user on the node's host would see it."""
        command = [sys.executable, "-m", "daemon", *arguments]
        environment = {**os.environ, "SBON_SOCKET": str(self.socket)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60.0, check=False)
        if done.returncode:
            raise AssertionError(f"sbon {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout


@dataclass(slots=True)
class WideArea:
    """Nodes that have joined each other. ``rtt_ms`` is the truth, in their order."""

    lab: Lab
    rtt_ms: Sequence[Sequence[float]]
    nodes: list[Node] = field(default_factory=list)

    def until(self, condition: Callable[[], bool], timeout_s: float) -> float:
        """Wait for ``condition``; the seconds that it took. AssertionError, with all logs, when it takes too long.

        A daemon that does not answer (it may be starting) is one of which nothing holds.
        """
        started_s = time.monotonic()
        problem = ""
        while True:
            try:
                if condition():
                    return time.monotonic() - started_s
            except SbonError as error:
                problem = f": {error}"
            if time.monotonic() > started_s + timeout_s:
                raise AssertionError(f"not within {timeout_s:g} s{problem}\n{self.logs()}")
            time.sleep(_POLL_S)

    def logs(self) -> str:
        return "\n".join(f"--- {node.name}\n{tail(node.log, 20)}" for node in self.nodes)

    def others(self, node: Node) -> list[Node]:
        return [other for other in self.nodes if other is not node]

    def relative_errors(self, truth_ms: Sequence[Sequence[float]]) -> list[float]:
        """|predicted - true| / true of every pair, predicted from what both ends tell a third node of themselves."""
        views = [node.nodes() for node in self.nodes[:3]]
        errors = []
        for i, j in combinations(range(len(self.nodes)), 2):
            view = next(views[k] for k in range(3) if k not in (i, j))
            a, b = (view.get(self.nodes[at].name) for at in (i, j))
            if a is not None and b is not None:
                true_ms = (truth_ms[i][j] + truth_ms[j][i]) / 2
                errors.append(abs(a.coordinate.rtt_ms(b.coordinate) - true_ms) / true_ms)
        return errors

    def measured_ms(self) -> list[list[float]]:
        """What each node measured to each other one: the matrix, and what the machine adds. NaN where nothing was."""
        measured = []
        for node in self.nodes:
            view = node.nodes()
            found = [view[other.name].measured_rtt_ms if other.name in view else None for other in self.nodes]
            measured.append([math.nan if rtt_ms is None else rtt_ms for rtt_ms in found])
        return measured


def see(nodes: Iterable[Node], names: set[str]) -> bool:
    """Whether each of ``nodes`` knows all of ``names`` as alive."""
    return all(names <= {name for name, info in node.nodes().items() if info.status == "alive"} for node in nodes)


@contextmanager
def running(
    lab: Lab,
    names: Sequence[str],
    rtt_ms: Sequence[Sequence[float]],
    folder: Path,
    overlay: Mapping[str, float],
    declared: Mapping[str, Sequence[StreamSpec | SinkSpec]] | None = None,
    *,
    tables: Tables | None = None,
    without_room: Collection[str] = (),
    real_spark: bool = False,
) -> Iterator[WideArea]:
    """A daemon on every host, all members of a cluster whose authority is the first, and joined by way of it.

    Their engines are fake ones unless ``real_spark``. ``overlay`` is the table of that name in their configuration,
    ``tables`` are further ones; ``declared``: the streams and sinks of nodes, by their names; ``without_room``: who
    takes no operators.
    """
    area = WideArea(lab, rtt_ms)
    common = {"overlay": overlay, **(tables or {})}
    for name, host in zip(names, lab.hosts, strict=True):
        node = Node(name, host, folder / str(host.index))
        _configure(node, common, (declared or {}).get(name, ()), accepts_operators=name not in without_room)
        area.nodes.append(node)
    first, *others = area.nodes
    first.sbon("init", "--config", str(first.configuration))
    for node in area.nodes:
        _start(lab, node, _REAL if real_spark else _FAKE)
    area.until(lambda: all(node.nodes() for node in area.nodes), START_TIMEOUT_S)
    trio.run(_join_all, first, others)
    yield area


async def _join_all(first: Node, others: Sequence[Node]) -> None:
    """As an administrator would, but all at once: each takes several trips around the world."""

    async def join(node: Node) -> None:
        token = (await ask(first.socket, MakeToken(node.name), TokenReply)).token
        await ask(node.socket, Join(first.address, token), Done)

    async with trio.open_nursery() as nursery:
        for node in others:
            nursery.start_soon(join, node)


def _configure(
    node: Node, tables: Tables, declared: Iterable[StreamSpec | SinkSpec], *, accepts_operators: bool
) -> None:
    node.folder.mkdir()
    settings = {
        "name": node.name,
        "listen": node.address,
        "state_dir": str(node.folder / "state"),
        "socket": str(node.socket),
        "accept_operators": accepts_operators,
        "load": 0.0,
    }
    specs = (
        ("[[stream]]" if isinstance(spec, StreamSpec) else "[[sink]]", msgspec.to_builtins(spec)) for spec in declared
    )
    common = ((f"[{name}]", table) for name, table in tables.items())
    node.configuration.write_text(toml([("[node]", settings), *common, *specs]), encoding="utf-8")


def _start(lab: Lab, node: Node, command: Sequence[str]) -> None:
    with node.log.open("ab") as log:
        run = [sys.executable, "-m", *command, str(node.configuration)]
        node.process = lab.run(node.host, run, stdout=log, stderr=subprocess.STDOUT)
