"""Real daemons with real engines on this machine, each in folders of its own, driven as the CLI does."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from daemon.control.messages import (
    Cancel,
    Done,
    Explain,
    Explanation,
    Join,
    Migrate,
    Nodes,
    NodesReply,
    OperatorInfo,
    Operators,
    OperatorsReply,
    Queries,
    QueriesReply,
    Submit,
    SubmitReply,
)
from daemon.demo.asking import ask
from daemon.demo.configuration import ENGINE, configuration
from daemon.demo.processes import DaemonProcess, stop_all, tail
from daemon.demo.scenario import Scenario, Site, free_ports
from sbon.errors import SbonError
from sbon.streams import SinkSpec, StreamSpec

#: Operators stay where a test puts them.
STAY = {"period_s": 3600.0, "minimum_migration_saving": 0.99}
#: How a daemon is made of a site whose configuration is written.
StartDaemon = Callable[[Site], Awaitable[DaemonProcess]]
_POLL_S = 0.3
_START_TIMEOUT_S = 240.0


@dataclass(frozen=True, slots=True)
class Role:
    """What a node of a test has."""

    name: str
    accepts_operators: bool = True
    streams: tuple[StreamSpec, ...] = ()
    sinks: tuple[SinkSpec, ...] = ()


def make_cluster_scenario(folder: Path, roles: Sequence[Role], rtt_ms: Sequence[Sequence[float]]) -> Scenario:
    """Nodes with free ports and folders under ``folder``; ``rtt_ms`` in the order of ``roles``."""
    ports = free_ports(len(roles))
    sites = tuple(
        Site(role.name, role.name, at, port, folder / role.name, role.accepts_operators, role.streams, role.sinks)
        for at, (role, port) in enumerate(zip(roles, ports, strict=True))
    )
    return Scenario(sites, tuple(tuple(row) for row in rtt_ms), folder / "result", folder / "gate")


@dataclass(slots=True)
class Cluster:
    """Nodes that know each other. What is asked is asked of the first node, unless said otherwise."""

    scenario: Scenario
    start_daemon: StartDaemon = DaemonProcess.start
    daemons: dict[str, DaemonProcess] = field(default_factory=dict)

    @property
    def first(self) -> Site:
        return self.scenario.sites[0]

    async def start(self, name: str) -> None:
        """Start, or start again, the daemon of ``name``; return when it answers."""
        self.daemons[name] = await self.start_daemon(self.scenario.site(name))
        await self.daemons[name].wait_until_ready()

    async def kill(self, name: str) -> None:
        """``kill -9`` of the daemon alone: its engine has to notice by itself."""
        self.daemons[name].process.kill()
        await self.daemons[name].process.wait()

    async def submit(self, sql: str) -> str:
        """Submit; the query's id once its operators run."""
        with trio.fail_after(_START_TIMEOUT_S):
            return (await ask(self.first.socket, Submit(sql), SubmitReply)).query_id

    async def operators(self, query_id: str) -> dict[str, OperatorInfo]:
        """The fragments of a query by id."""
        found = (await ask(self.first.socket, Operators(), OperatorsReply)).operators
        return {operator.fragment_id: operator for operator in found if operator.query_id == query_id}

    async def explain(self, query_id: str) -> Explanation:
        return await ask(self.first.socket, Explain(query_id), Explanation)

    async def migrate(self, fragment_id: str, node: str) -> None:
        """Move a fragment by hand; return when it runs there."""
        await ask(self.first.socket, Migrate(fragment_id, node), Done)

    async def cancel(self, query_id: str) -> None:
        """End the query."""
        await ask(self.first.socket, Cancel(query_id), Done)

    async def check_runs(self, query_id: str) -> None:
        """SbonError if the query has ended."""
        state = await self._state(query_id)
        if state in ("finished", "failed", "cancelled"):
            raise SbonError(f"query {query_id} {state}")

    async def has_ended(self, query_id: str) -> bool:
        """However it did."""
        return await self._state(query_id) in ("finished", "failed", "cancelled")

    async def wait_until_finished(self, query_id: str) -> None:
        """Return when the query has finished; SbonError if it fails."""
        while (state := await self._state(query_id)) != "finished":
            if state in ("failed", "cancelled"):
                raise SbonError(f"query {query_id} {state}")
            await trio.sleep(_POLL_S)

    async def _state(self, query_id: str) -> str:
        queries = (await ask(self.first.socket, Queries(), QueriesReply)).queries
        return next(query.state for query in queries if query.query_id == query_id)

    async def _form_overlay(self) -> None:
        for site in self.scenario.sites[1:]:
            await ask(site.socket, Join(self.first.address), Done)
        for site in self.scenario.sites:
            while not await self._knows_all(site):
                await trio.sleep(_POLL_S)

    async def _knows_all(self, site: Site) -> bool:
        nodes = (await ask(site.socket, Nodes(), NodesReply)).nodes
        measured = [node for node in nodes if node.measured_rtt_ms is not None and node.name != site.name]
        return len(measured) == len(self.scenario.sites) - 1


@asynccontextmanager
async def running_cluster(
    scenario: Scenario,
    engines: Mapping[str, Mapping[str, Any]] | None = None,
    placement: Mapping[str, float] = STAY,
    start_daemon: StartDaemon = DaemonProcess.start,
) -> AsyncIterator[Cluster]:
    """Daemons that have joined and measured each other. All are ended at the end; logs are printed on failure.

    ``engines``: further settings of ``[engine]`` by the name of the site; ``placement``: those of all.
    """
    cluster = Cluster(scenario, start_daemon)
    # Daemons are processes of their own: who is told to end must not leave them behind.
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        for site in scenario.sites:
            site.folder.mkdir(parents=True)
            engine = {**ENGINE, **(engines or {}).get(site.name, {})}
            site.config_file.write_text(configuration(site, scenario, placement, engine), encoding="utf-8")
            await cluster.start(site.name)
        with trio.fail_after(_START_TIMEOUT_S):
            await cluster._form_overlay()
        yield cluster
    except Exception:
        for site in scenario.sites:
            print(f"--- {site.name}\n{tail(site.log_file, 60)}", file=sys.stderr)
        raise
    finally:
        with trio.CancelScope(shield=True):
            await stop_all(list(cluster.daemons.values()))
        signal.signal(signal.SIGTERM, before)
