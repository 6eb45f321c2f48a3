"""Real daemons on the hosts of a lab, each in folders of its own, asked over their control sockets."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import TypeVar

import msgspec
import trio

from daemon.control_messages import Done, Join, NodeInfo, Nodes, NodesReply, RequestFor
from daemon.demo.asking import ask
from daemon.demo.configuration import toml_value
from daemon.demo.processes import tail
from sbon.errors import SbonError
from tests.lab.lab import Host, Lab

R = TypeVar("R", bound=msgspec.Struct)

PORT = 7400
#: More than a busy machine needs to start a dozen Pythons.
START_TIMEOUT_S = 120.0
_POLL_S = 0.2


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
    def log(self) -> Path:
        return self.folder / "log"

    def ask(self, request: RequestFor[R], reply_type: type[R]) -> R:
        """Raises what :func:`daemon.demo.asking.ask` raises."""
        return trio.run(ask, self.socket, request, reply_type)

    def nodes(self) -> dict[str, NodeInfo]:
        """What it knows of whom, itself included, by name."""
        return {node.name: node for node in self.ask(Nodes(), NodesReply).nodes}

    def sbon(self, *arguments: str) -> str:
        """What the command line prints, run on the node's host as a user would."""
        command = [sys.executable, "-m", "daemon", "--socket", str(self.socket), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60.0).stdout


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

    def relative_errors(self) -> list[float]:
        """|predicted - true| / true of every pair, predicted from what both ends tell a third node of themselves."""
        views = [node.nodes() for node in self.nodes[:3]]
        errors = []
        for i, j in combinations(range(len(self.nodes)), 2):
            view = next(views[k] for k in range(3) if k not in (i, j))
            a, b = (view.get(self.nodes[at].name) for at in (i, j))
            if a is not None and b is not None:
                true_ms = (self.rtt_ms[i][j] + self.rtt_ms[j][i]) / 2
                errors.append(abs(a.coordinate.rtt_ms(b.coordinate) - true_ms) / true_ms)
        return errors


def see(nodes: Iterable[Node], names: set[str]) -> bool:
    """Whether each of ``nodes`` knows all of ``names`` as alive."""
    return all(names <= {name for name, info in node.nodes().items() if info.status == "alive"} for node in nodes)


@contextmanager
def running(
    lab: Lab, names: Sequence[str], rtt_ms: Sequence[Sequence[float]], folder: Path, overlay: Mapping[str, float]
) -> Iterator[WideArea]:
    """A daemon on every host, joined to the first one's; ``overlay`` is the table of that name in their files."""
    area = WideArea(lab, rtt_ms)
    for name, host in zip(names, lab.hosts, strict=True):
        node = Node(name, host, folder / str(host.index))
        node.folder.mkdir()
        area.nodes.append(node)
        _start(lab, node, overlay)
    area.until(lambda: all(node.nodes() for node in area.nodes), START_TIMEOUT_S)
    for node in area.nodes[1:]:
        node.ask(Join(area.nodes[0].address), Done)
    yield area


def _start(lab: Lab, node: Node, overlay: Mapping[str, float]) -> None:
    settings = {
        "name": node.name,
        "listen": node.address,
        "state_dir": str(node.folder / "state"),
        "socket": str(node.socket),
        "load": 0.0,
    }
    lines = ["[node]", *(f"{key} = {toml_value(value)}" for key, value in settings.items())]
    lines += ["[trust]", "open = true"]
    lines += ["[overlay]", *(f"{key} = {json.dumps(value)}" for key, value in overlay.items())]
    file = node.folder / "sbon.toml"
    file.write_text("\n".join(lines), encoding="utf-8")
    with node.log.open("ab") as log:
        command = [sys.executable, "-m", "daemon", "run", "--config", str(file)]
        node.process = lab.run(node.host, command, stdout=log, stderr=subprocess.STDOUT)
