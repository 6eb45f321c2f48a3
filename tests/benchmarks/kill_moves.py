"""Moves of a fragment between real daemons, with ``kill -9`` of one of the processes that take part, at every step.

    python -m tests.benchmarks.kill_moves --moves 200 --seed 1
    python -m tests.benchmarks.kill_moves --engine spark --moves 6

Each step is hit with each victim in turn. The engines are of the fake kind (tests/daemon/fake_engine.py), so that a
move takes a second and what is tested is who owns the fragment: after each move it must run on exactly one node, alone
there, and go on from all that was ever counted anywhere. With real Spark a join moves, and a day of flights arrives
after each move: all that it gives must be in the result once, before the next move.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import trio

from daemon.control.client import ControlClient
from daemon.control.messages import Migrate, OperatorInfo, Operators, Status
from daemon.demo.check import read_rows
from daemon.demo.processes import DaemonProcess
from daemon.demo.scenario import FLIGHTS_SCHEMA, WEATHER_SCHEMA, Scenario, Site
from sbon.errors import SbonError
from sbon.streams import SinkSpec, StreamSpec
from tests.end_to_end.cluster import Cluster, Role, make_cluster_scenario, running_cluster
from tests.end_to_end.feed import JOINED, SENTINELS, Feed

STEPS = ("announce", "prepare", "copy", "stop", "ship", "activate")
VICTIMS = ("source daemon", "source engine", "target daemon", "target engine", "keeper daemon")
_POLL_S = 0.1
#: Each move is looked at before and after, with a day of July.
MOST_WITH_SPARK = 15


async def start_with_fake_engine(site: Site) -> DaemonProcess:
    """As :meth:`DaemonProcess.start`."""
    command = [sys.executable, "-m", "tests.daemon.run_with_fake_engine", str(site.config_file)]
    with site.log_file.open("ab") as log:
        process = await trio.lowlevel.open_process(command, stdin=None, stdout=log, stderr=log, start_new_session=True)
    return DaemonProcess(site, process)


class Work(Protocol):
    """What the fragment that moves does, and how it is seen that it does."""

    kind: str
    sql: str
    streams: tuple[StreamSpec, ...]
    sink: SinkSpec
    patience_s: float

    def look(self, folder: Path) -> None:
        """While it moves: its folder on some host."""

    async def check(self, folder: Path) -> bool:
        """Whether it goes on in this folder. SbonError if something was lost or doubled."""


@dataclass
class Counting:
    """A fake union counts."""

    scratch: Path
    most: int = 0
    kind: str = "union"
    sql: str = "INSERT INTO out SELECT ts, k FROM lefts UNION ALL SELECT ts, k FROM rights"
    patience_s: float = 60.0

    def __post_init__(self) -> None:
        self.streams = tuple(StreamSpec(name, "replay", "ts TIMESTAMP, k STRING", "ts") for name in ("lefts", "rights"))
        self.sink = SinkSpec("out", "parquet", {"path": str(self.scratch / "out")})

    def look(self, folder: Path) -> None:
        self.most = max(self.most, self._count(folder))

    async def check(self, folder: Path) -> bool:
        self.look(folder)
        before = self._count(folder)
        await trio.sleep(3 * _POLL_S)
        now = self._count(folder)
        if now <= before:
            return False
        if now < self.most:
            raise SbonError(f"{folder} has counted to {now}, but {self.most} was seen before")
        return True

    def _count(self, folder: Path) -> int:
        with suppress(OSError, ValueError):
            return int((folder / "count").read_text())
        return -1


@dataclass
class Joining:
    """A join of real Spark's; a day more arrives whenever it is checked."""

    scratch: Path
    days: int = 0
    kind: str = "join"
    sql: str = JOINED
    patience_s: float = 240.0

    def __post_init__(self) -> None:
        self._feed = Feed(self.scratch)
        schemas = {"flights": FLIGHTS_SCHEMA, "weather": WEATHER_SCHEMA}
        for name in SENTINELS:
            (self.scratch / name).mkdir()
        self.streams = tuple(
            StreamSpec(name, "csv", schema, "ts", {"path": str(self.scratch / name), "header": "true"})
            for name, schema in schemas.items()
        )
        self.sink = SinkSpec("joined", "parquet", {"path": str(self.scratch / "joined")})

    def look(self, folder: Path) -> None:
        pass

    async def check(self, folder: Path) -> bool:
        self.days += 1
        self._feed.put(self.days, self.days + 1)
        expected: Counter[tuple[object, ...]] = Counter(self._feed.joined(None).elements())
        while len(rows := read_rows(self.scratch / "joined")) < expected.total():
            await trio.sleep(_POLL_S)
        if (found := Counter(rows)) != expected:
            lost, doubled = (expected - found).total(), (found - expected).total()
            raise SbonError(f"{lost} rows were lost, {doubled} are there that should not be")
        return True


def make_scenario(folder: Path, work: Work) -> Scenario:
    roles = (Role("office", sinks=(work.sink,)), Role("west", streams=work.streams), Role("east"))
    return make_cluster_scenario(folder, roles, ((0.0, 10.0, 10.0), (10.0, 0.0, 10.0), (10.0, 10.0, 0.0)))


@dataclass
class Killing:
    """All moves of one run."""

    cluster: Cluster
    rng: random.Random
    work: Work
    start: Callable[[Site], Awaitable[DaemonProcess]]
    #: What was killed after which step, those that a move never came to, and how the moves ended.
    kills: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)

    def _folder(self, name: str, fragment_id: str) -> Path:
        return self.cluster.scenario.site(name).folder / "state" / "fragments" / fragment_id

    async def fragment(self) -> OperatorInfo | None:
        """The one that moves, if anybody who can be asked knows of it."""
        for site in self.cluster.scenario.sites:
            with suppress(SbonError, OSError):
                async with ControlClient.open(site.socket) as client:
                    operators = (await client.request(Operators())).operators
                return next((operator for operator in operators if operator.kind == self.work.kind), None)
        return None

    async def move(self, step: str, victim: str) -> None:
        fragment = await self.until_it_runs()
        sites = self.cluster.scenario.sites
        target = self.rng.choice([site.name for site in sites if site.name != fragment.node])
        names = {"source": fragment.node, "target": target, "keeper": "office"}
        role, _, kind = victim.partition(" ")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, fragment.fragment_id)
            async with trio.open_nursery() as both:
                both.start_soon(self._kill_after, step, fragment.node, names[role], kind, victim)
                both.start_soon(self._ask, fragment.fragment_id, target, fragment.node)
            nursery.cancel_scope.cancel()
        for site in sites:
            if self.cluster.daemons[site.name].process.poll() is not None:
                self.cluster.daemons[site.name] = await self.start(site)
                await self.cluster.daemons[site.name].wait_until_ready()
        after = await self.until_it_runs()
        self.outcomes["moved" if after.node == target else "stayed"] += 1

    async def _watch(self, fragment_id: str) -> None:
        while True:
            for site in self.cluster.scenario.sites:
                self.work.look(self._folder(site.name, fragment_id))
            await trio.sleep(0.02)

    async def _ask(self, fragment_id: str, target: str, source: str) -> None:
        with suppress(SbonError, OSError), trio.move_on_after(self.work.patience_s):
            async with ControlClient.open(self.cluster.scenario.site(source).socket) as client:
                await client.request(Migrate(fragment_id, target))

    async def _kill_after(self, step: str, source: str, name: str, kind: str, victim: str) -> None:
        """Kill as soon as ``step`` is over, or some milliseconds later: in the middle of the next one."""
        reached = False
        with suppress(SbonError, OSError), trio.move_on_after(self.work.patience_s):
            async with ControlClient.open(self.cluster.scenario.site(source).socket) as client:
                newest = -1
                async for event in client.watch(follow=False):
                    newest = event.sequence
            async with ControlClient.open(self.cluster.scenario.site(source).socket) as client:
                async for event in client.watch(follow=True):
                    if event.sequence > newest and event.kind in (f"move-{step}", "move-failed"):
                        reached = event.kind == f"move-{step}"
                        break
        await trio.sleep(self.rng.choice((0.0, 0.005, 0.02, 0.1)))
        if kind == "daemon":
            self.cluster.daemons[name].process.kill()
            await self.cluster.daemons[name].process.wait()
        elif (pid := await self._engine_of(name)) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        (self.kills if reached else self.missed)[f"{step}: {victim}"] += 1

    async def _engine_of(self, name: str) -> int | None:
        with suppress(SbonError, OSError):
            async with ControlClient.open(self.cluster.scenario.site(name).socket) as client:
                engine = (await client.request(Status())).engine
            return int(engine.rpartition(" ")[2]) if "process" in engine else None
        return None

    async def until_it_runs(self) -> OperatorInfo:
        """Return once it runs on one node, is nowhere else, and goes on. SbonError if that is never so."""
        found: object = None
        with trio.move_on_after(self.work.patience_s):
            while True:
                fragment = await self.fragment()
                if fragment is not None:
                    folders = {site.name: self._folder(site.name, fragment.fragment_id) for site in self._sites}
                    at = [name for name, folder in folders.items() if folder.exists()]
                    found = (fragment.node, fragment.state, fragment.generation, at)
                    is_alone = fragment.state == "running" and at == [fragment.node]
                    if is_alone and await self.work.check(folders[fragment.node]):
                        return fragment
                await trio.sleep(_POLL_S)
        raise SbonError(f"the fragment does not run on one node: {found}")

    @property
    def _sites(self) -> tuple[Site, ...]:
        return self.cluster.scenario.sites


async def kill_moves(moves: int, seed: int, folder: Path, *, real_spark: bool) -> Killing:
    """Each step with each victim in turn. Raises SbonError once something is wrong."""
    work: Work = Joining(folder) if real_spark else Counting(folder)
    if not real_spark:
        DaemonProcess.start = staticmethod(start_with_fake_engine)  # type: ignore[method-assign]
    async with running_cluster(make_scenario(folder, work)) as cluster:
        killing = Killing(cluster, random.Random(seed), work, DaemonProcess.start)
        await cluster.submit(work.sql)
        for at in range(moves):
            # Their numbers have no common divisor: so all pairs come, and a few moves hit all steps and all victims.
            step, victim = STEPS[at % len(STEPS)], VICTIMS[at % len(VICTIMS)]
            await killing.move(step, victim)
            print(f"{at + 1:4} {step:9} {victim:14} {dict(killing.outcomes)}", flush=True)
        return killing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moves", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=("fake", "spark"), default="fake")
    arguments = parser.parse_args()
    real_spark = arguments.engine == "spark"
    if real_spark and arguments.moves > MOST_WITH_SPARK:
        parser.error(f"a month has days for {MOST_WITH_SPARK} moves")
    with tempfile.TemporaryDirectory() as folder:
        run = partial(kill_moves, real_spark=real_spark)
        killing = trio.run(run, arguments.moves, arguments.seed, Path(folder))
    for step in STEPS:
        killed = {victim: killing.kills[f"{step}: {victim}"] for victim in VICTIMS}
        each = ", ".join(f"{victim} {count}" for victim, count in killed.items())
        print(f"{step:9} hit {sum(killed.values()):3} times: {each}")
    print(f"killed although the step was never reached: {killing.missed.total()}")
    print(f"{arguments.moves} moves, seed {arguments.seed}: {dict(killing.outcomes)}; nothing lost, nothing twice")
    return 0


if __name__ == "__main__":
    sys.exit(main())
