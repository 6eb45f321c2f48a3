"""Moves of a fragment between real daemons, with ``kill -9`` of one of the processes that take part, at every step.

    python -m tests.benchmarks.kill_moves --moves 60 --seed 1

The engines are of the fake kind (tests/daemon/fake_engine.py), so that a move takes a second and what is tested is who
owns the fragment: after each move it must run on exactly one node, alone there, and go on from all that was ever
counted anywhere.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

import trio

from daemon.control.client import ControlClient
from daemon.control.messages import Migrate, OperatorInfo, Operators, Status
from daemon.demo.processes import DaemonProcess
from daemon.demo.scenario import Scenario, Site
from sbon.errors import SbonError
from sbon.streams import SinkSpec, StreamSpec
from tests.end_to_end.cluster import Cluster, Role, make_cluster_scenario, running_cluster

STEPS = ("announce", "prepare", "copy", "stop", "ship", "activate")
VICTIMS = ("source daemon", "source engine", "target daemon", "target engine", "keeper daemon")
SQL = "INSERT INTO out SELECT ts, k FROM lefts UNION ALL SELECT ts, k FROM rights"
PATIENCE_S = 60.0
_POLL_S = 0.1


async def start_with_fake_engine(site: Site) -> DaemonProcess:
    """As :meth:`DaemonProcess.start`."""
    command = [sys.executable, "-m", "tests.daemon.run_with_fake_engine", str(site.config_file)]
    with site.log_file.open("ab") as log:
        process = await trio.lowlevel.open_process(command, stdin=None, stdout=log, stderr=log, start_new_session=True)
    return DaemonProcess(site, process)


def make_scenario(folder: Path) -> Scenario:
    streams = tuple(StreamSpec(name, "replay", "ts TIMESTAMP, k STRING", "ts") for name in ("lefts", "rights"))
    sink = SinkSpec("out", "parquet", {"path": str(folder / "out")})
    roles = (Role("office", sinks=(sink,)), Role("west", streams=streams), Role("east"))
    return make_cluster_scenario(folder, roles, ((0.0, 10.0, 10.0), (10.0, 0.0, 10.0), (10.0, 10.0, 0.0)))


class Killing:
    """All moves of one run."""

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self._most = 0
        #: What was killed after which step, and how the moves ended.
        self.kills: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()

    def _folder(self, name: str, fragment_id: str) -> Path:
        return self._cluster.scenario.site(name).folder / "state" / "fragments" / fragment_id

    def _look(self, fragment_id: str) -> dict[str, int]:
        """What is counted, by node; remembers the most."""
        counts = {}
        for site in self._cluster.scenario.sites:
            with suppress(OSError, ValueError):
                counts[site.name] = int((self._folder(site.name, fragment_id) / "count").read_text())
        self._most = max([self._most, *counts.values()])
        return counts

    async def union(self) -> OperatorInfo | None:
        """The fragment that moves, if anybody who can be asked knows of it."""
        for site in self._cluster.scenario.sites:
            with suppress(SbonError, OSError):
                async with ControlClient.open(site.socket) as client:
                    operators = (await client.request(Operators())).operators
                return next((operator for operator in operators if operator.kind == "union"), None)
        return None

    async def move(self, step: str, victim: str) -> None:
        union = await self.until_it_runs()
        target = self._rng.choice([site.name for site in self._cluster.scenario.sites if site.name != union.node])
        names = {"source": union.node, "target": target, "keeper": "office"}
        role, _, kind = victim.partition(" ")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, union.fragment_id, nursery.cancel_scope)
            async with trio.open_nursery() as both:
                both.start_soon(self._kill_after, step, union.node, names[role], kind, victim)
                both.start_soon(self._ask, union.fragment_id, target, union.node)
            nursery.cancel_scope.cancel()
        for site in self._cluster.scenario.sites:
            if self._cluster.daemons[site.name].process.poll() is not None:
                await self._start(site)
        after = await self.until_it_runs()
        self.outcomes["moved" if after.node == target else "stayed"] += 1

    async def _watch(self, fragment_id: str, _scope: trio.CancelScope) -> None:
        while True:
            self._look(fragment_id)
            await trio.sleep(0.02)

    async def _ask(self, fragment_id: str, target: str, source: str) -> None:
        with suppress(SbonError, OSError), trio.move_on_after(PATIENCE_S):
            async with ControlClient.open(self._cluster.scenario.site(source).socket) as client:
                await client.request(Migrate(fragment_id, target))

    async def _kill_after(self, step: str, source: str, name: str, kind: str, victim: str) -> None:
        """Kill as soon as ``step`` is over, or some milliseconds later: in the middle of the next one."""
        with suppress(SbonError, OSError), trio.move_on_after(20.0):
            async with ControlClient.open(self._cluster.scenario.site(source).socket) as client:
                newest = -1
                async for event in client.watch(follow=False):
                    newest = event.sequence
            async with ControlClient.open(self._cluster.scenario.site(source).socket) as client:
                async for event in client.watch(follow=True):
                    if event.sequence > newest and event.kind in (f"move-{step}", "move-failed"):
                        break
        await trio.sleep(self._rng.choice((0.0, 0.005, 0.02, 0.1)))
        if kind == "daemon":
            self._cluster.daemons[name].process.kill()
            await self._cluster.daemons[name].process.wait()
        elif (pid := await self._engine_of(name)) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.kills[f"{step}: {victim}"] += 1

    async def _engine_of(self, name: str) -> int | None:
        with suppress(SbonError, OSError):
            async with ControlClient.open(self._cluster.scenario.site(name).socket) as client:
                engine = (await client.request(Status())).engine
            return int(engine.rpartition(" ")[2]) if "process" in engine else None
        return None

    async def _start(self, site: Site) -> None:
        self._cluster.daemons[site.name] = await start_with_fake_engine(site)
        await self._cluster.daemons[site.name].wait_until_ready()

    async def until_it_runs(self) -> OperatorInfo:
        """Return once it runs on one node and is nowhere else. SbonError if that is never so, or if it went back."""
        found: object = None
        with trio.move_on_after(PATIENCE_S):
            while True:
                union = await self.union()
                counts = {} if union is None else self._look(union.fragment_id)
                found = (union and (union.node, union.state, union.generation), counts)
                if union is not None and union.state == "running" and list(counts) == [union.node]:
                    before = counts[union.node]
                    await trio.sleep(3 * _POLL_S)
                    now = self._look(union.fragment_id).get(union.node, -1)
                    if now > before:
                        if now < self._most:
                            raise SbonError(f"{union.node} has counted to {now}, but {self._most} was seen before")
                        return union
                await trio.sleep(_POLL_S)
        raise SbonError(f"the fragment does not run on one node: {found}")


async def kill_moves(moves: int, seed: int, folder: Path) -> Killing:
    """Each step with each victim in turn. Raises SbonError once something is wrong."""
    DaemonProcess.start = staticmethod(start_with_fake_engine)  # type: ignore[method-assign]
    async with running_cluster(make_scenario(folder)) as cluster:
        killing = Killing(cluster, random.Random(seed))
        await cluster.submit(SQL)
        cases = [(step, victim) for victim in VICTIMS for step in STEPS]
        for at in range(moves):
            step, victim = cases[at % len(cases)]
            await killing.move(step, victim)
            print(f"{at + 1:4} {step:9} {victim:14} {dict(killing.outcomes)}", flush=True)
        return killing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moves", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        killing = trio.run(kill_moves, arguments.moves, arguments.seed, Path(folder))
    for step in STEPS:
        killed = {victim: killing.kills[f"{step}: {victim}"] for victim in VICTIMS}
        print(f"{step:9} " + ", ".join(f"{victim} {count}" for victim, count in killed.items()))
    print(f"{arguments.moves} moves, seed {arguments.seed}: {dict(killing.outcomes)}; nothing lost, nothing twice")
    return 0


if __name__ == "__main__":
    sys.exit(main())
