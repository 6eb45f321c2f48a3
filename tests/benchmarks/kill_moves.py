"""Moves of a fragment between real daemons, with ``kill -9`` of one of the processes that take part, at every step.

    python -m tests.benchmarks.kill_moves --moves 200 --seed 1
    python -m tests.benchmarks.kill_moves --engine spark --moves 30

Each step is hit with each victim in turn. The engines are of the fake kind (tests/daemon/fake_engine.py), so that a
move takes a second and what is tested is who owns the fragment: after each move it must run on exactly one node, alone
there, and go on from all that was ever counted anywhere. With real Spark a join and an aggregate move while rows come
all the time. After each move a window that began after it must be in the result, and nothing may be missing before it,
doubled, or out of order within a key (counted_pairs.py). In the end no process may be left over.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Protocol

import trio

from daemon.control.client import ControlClient
from daemon.control.messages import Migrate, OperatorInfo, Operators, Status
from daemon.demo.processes import DaemonProcess
from daemon.demo.scenario import Scenario, Site
from sbon.errors import SbonError
from sbon.streams import SinkSpec, StreamSpec
from tests.benchmarks.counted_pairs import PairsReader, counted_pairs, counting_stream, pairs_sink, read_pairs
from tests.end_to_end.cluster import Cluster, Role, make_cluster_scenario, running_cluster

STEPS = ("announce", "prepare", "copy", "await-output", "stop", "ship", "activate")
VICTIMS = ("source daemon", "source engine", "target daemon", "target engine", "keeper daemon")
_POLL_S = 0.1
#: Events arrive within that.
_NEWS_S = 2.0
#: So long after the last daemon no engine is left.
_ENDED_WITHIN_S = 20.0
#: With real Spark.
_WINDOW_S = 5
_APART_S = 15
_ROWS_PER_S = 200


async def start_with_fake_engine(site: Site) -> DaemonProcess:
    """As :meth:`DaemonProcess.start`."""
    command = [sys.executable, "-m", "tests.daemon.run_with_fake_engine", str(site.config_file)]
    with site.log_file.open("ab") as log:
        process = await trio.lowlevel.open_process(command, stdin=None, stdout=log, stderr=log, start_new_session=True)
    return DaemonProcess(site, process)


class Work(Protocol):
    """What the fragment that moves does, and how it is seen that it does."""

    kinds: tuple[str, ...]
    sql: str
    streams: tuple[StreamSpec, ...]
    sink: SinkSpec
    patience_s: float

    def look(self, folder: Path) -> None:
        """While it moves: its folder on some host."""

    async def check(self, folder: Path) -> bool:
        """Whether it goes on in this folder. SbonError if something was lost or doubled."""

    def check_all(self) -> None:
        """After the last move: all of the result once more. SbonError as before."""


@dataclass
class Counting:
    """A fake union counts."""

    scratch: Path
    most: int = 0
    kinds: tuple[str, ...] = ("union",)
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

    def check_all(self) -> None:
        pass  # a count tells of all before it


@dataclass
class Pairing:
    """A join and an aggregate of real Spark's."""

    scratch: Path
    kinds: tuple[str, ...] = ("join", "aggregate")
    sql: str = counted_pairs(_WINDOW_S, _APART_S)
    patience_s: float = 240.0

    def __post_init__(self) -> None:
        self.streams = tuple(counting_stream(name, _ROWS_PER_S) for name in ("ticks", "tocks"))
        self.sink = pairs_sink(self.scratch / "pairs")
        self.reader = PairsReader(self.scratch / "pairs")

    def look(self, folder: Path) -> None:
        pass

    async def check(self, folder: Path) -> bool:
        now = datetime.now(UTC)
        while True:
            found = self.reader.read()
            if found.wrong is not None:
                raise SbonError(found.wrong)
            if found.newest is not None and found.newest.astimezone(UTC) > now:
                return True
            await trio.sleep(_POLL_S)

    def check_all(self) -> None:
        found = read_pairs(self.scratch / "pairs")
        if found.wrong is not None:
            raise SbonError(found.wrong)


def make_scenario(folder: Path, work: Work) -> Scenario:
    roles = (Role("office", sinks=(work.sink,)), Role("west", streams=work.streams), Role("east"))
    return make_cluster_scenario(folder, roles, ((0.0, 10.0, 10.0), (10.0, 0.0, 10.0), (10.0, 10.0, 0.0)))


@dataclass
class Killing:
    """All moves of one run."""

    cluster: Cluster
    rng: random.Random
    work: Work
    #: What was killed after which step, those that a move never came to, and how the moves ended.
    kills: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)

    def _folder(self, name: str, fragment_id: str) -> Path:
        return self.cluster.scenario.site(name).folder / "state" / "fragments" / fragment_id

    async def fragment(self, kind: str) -> OperatorInfo | None:
        """The one of this kind, if anybody who can be asked knows of it."""
        return next((operator for operator in await self._operators() if operator.kind == kind), None)

    async def _operators(self) -> tuple[OperatorInfo, ...]:
        """All that the first who answers knows of."""
        for site in self.cluster.scenario.sites:
            with suppress(SbonError, OSError):
                async with ControlClient.open(site.socket) as client:
                    return (await client.request(Operators())).operators
        return ()

    async def move(self, kind: str, step: str, victim: str) -> None:
        fragment = await self.until_it_runs(kind, checked=False)
        sites = self.cluster.scenario.sites
        target = self.rng.choice([site.name for site in sites if site.name != fragment.node])
        names = {"source": fragment.node, "target": target, "keeper": "office"}
        newest, killed = await self._newest_event(fragment.node), trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, fragment.fragment_id)
            async with trio.open_nursery() as both:
                waiting = trio.move_on_after(self.work.patience_s)
                both.start_soon(self._kill_after, step, victim, names, newest, waiting, killed)
                await self._ask(fragment, target, killed)
                # The move has ended, or was refused: what it has not come to yet, it will not come to.
                waiting.deadline = min(waiting.deadline, trio.current_time() + _NEWS_S)
            nursery.cancel_scope.cancel()
        for site in sites:
            if self.cluster.daemons[site.name].process.poll() is not None:
                await self.cluster.start(site.name)
        after = await self.until_it_runs(kind, checked=True)
        self.outcomes["moved" if after.node == target else "stayed"] += 1

    async def _watch(self, fragment_id: str) -> None:
        while True:
            for site in self.cluster.scenario.sites:
                self.work.look(self._folder(site.name, fragment_id))
            await trio.sleep(0.02)

    async def _ask(self, fragment: OperatorInfo, target: str, killed: trio.Event) -> None:
        """Also again while nothing is killed: it, or another one of its query, may not be at rest after the last
        move."""
        with suppress(SbonError, OSError), trio.move_on_after(self.work.patience_s):
            async with ControlClient.open(self.cluster.scenario.site(fragment.node).socket) as client:
                while not killed.is_set():
                    try:
                        await client.request(Migrate(fragment.fragment_id, target))
                        return
                    except SbonError:
                        await trio.sleep(_POLL_S)
                        now = await self.fragment(fragment.kind)
                        if now is not None and now.node == target:
                            return

    async def _newest_event(self, name: str) -> int:
        newest = -1
        async with (
            ControlClient.open(self.cluster.scenario.site(name).socket) as client,
            aclosing(client.watch(follow=False)) as events,
        ):
            async for event in events:
                newest = event.sequence
        return newest

    async def _kill_after(
        self, step: str, victim: str, names: dict[str, str], newest: int, waiting: trio.CancelScope, killed: trio.Event
    ) -> None:
        """Kill as soon as ``step`` is over, which is an event after ``newest``, or some milliseconds later: in the
        middle of the next one. Also once ``waiting`` is over."""
        role, _, process = victim.partition(" ")
        name, reached = names[role], False
        with suppress(SbonError, OSError), waiting:
            async with (
                ControlClient.open(self.cluster.scenario.site(names["source"]).socket) as client,
                aclosing(client.watch(follow=True)) as events,
            ):
                async for event in events:
                    if event.sequence > newest and event.kind == f"move-{step}":
                        reached = True
                        break
        await trio.sleep(self.rng.choice((0.0, 0.005, 0.02, 0.1)))
        killed.set()
        if process == "daemon":
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

    async def until_it_runs(self, kind: str, *, checked: bool) -> OperatorInfo:
        """Return once it runs on one node and is nowhere else, and if ``checked`` goes on. SbonError if that is never
        so."""
        found: object = None
        folders: dict[str, Path] = {}
        with trio.move_on_after(self.work.patience_s):
            while True:
                fragment = await self.fragment(kind)
                if fragment is not None:
                    folders = {site.name: self._folder(site.name, fragment.fragment_id) for site in self._sites}
                    at = [name for name, folder in folders.items() if folder.exists()]
                    found = (fragment.node, fragment.state, fragment.generation, at)
                    is_alone = fragment.state == "running" and at == [fragment.node]
                    if is_alone and (not checked or await self.work.check(folders[fragment.node])):
                        return fragment
                await trio.sleep(_POLL_S)
        all_of_them = [(one.fragment_id, one.node, one.state, one.output_rows) for one in await self._operators()]
        raise SbonError(
            f"the {kind} does not run on one node: {found}; all of them: {all_of_them}; "
            f"in these folders are {self._files(folders)}"
        )

    def _files(self, folders: dict[str, Path]) -> dict[str, list[str]]:
        """With the time of the last change of each."""
        return {
            name: [f"{path.relative_to(folder)} {time.ctime(path.stat().st_mtime)}" for path in folder.rglob("*")]
            for name, folder in folders.items()
        }

    @property
    def _sites(self) -> tuple[Site, ...]:
        return self.cluster.scenario.sites


async def kill_moves(moves: int, seed: int, folder: Path, *, real_spark: bool) -> Killing:
    """Each step with each victim in turn. Raises SbonError once something is wrong."""
    work: Work = Pairing(folder) if real_spark else Counting(folder)
    start = DaemonProcess.start if real_spark else start_with_fake_engine
    async with running_cluster(make_scenario(folder, work), start_daemon=start) as cluster:
        killing = Killing(cluster, random.Random(seed), work)
        await cluster.submit(work.sql)
        for at in range(moves):
            # Their numbers have no common divisor: so all pairs come, and a few moves hit all steps and all victims.
            step, victim = STEPS[at % len(STEPS)], VICTIMS[at % len(VICTIMS)]
            kind = work.kinds[at // len(STEPS) % len(work.kinds)]
            await killing.move(kind, step, victim)
            print(f"{at + 1:4} {kind:9} {step:12} {victim:14} {dict(killing.outcomes)}", flush=True)
        work.check_all()
        return killing


def check_that_all_have_ended(folder: Path) -> None:
    """SbonError if a process of the cluster outlives it: each of them names its folder when it is started."""
    give_up_s = time.monotonic() + _ENDED_WITHIN_S
    while left := [process for process in Path("/proc").glob("[0-9]*") if _is_of(process, folder)]:
        if time.monotonic() > give_up_s:
            raise SbonError(f"left over: {', '.join(process.name for process in left)}")
        time.sleep(_POLL_S)


def _is_of(process: Path, folder: Path) -> bool:
    with suppress(OSError):  # it has just ended
        return os.fsencode(folder) in (process / "cmdline").read_bytes()
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moves", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=("fake", "spark"), default="fake")
    arguments = parser.parse_args()
    real_spark = arguments.engine == "spark"
    with tempfile.TemporaryDirectory() as folder:
        run = partial(kill_moves, real_spark=real_spark)
        killing = trio.run(run, arguments.moves, arguments.seed, Path(folder))
        check_that_all_have_ended(Path(folder))
    for step in STEPS:
        killed = {victim: killing.kills[f"{step}: {victim}"] for victim in VICTIMS}
        each = ", ".join(f"{victim} {count}" for victim, count in killed.items())
        print(f"{step:12} hit {sum(killed.values()):3} times: {each}")
    print(f"killed although the step was never reached: {killing.missed.total()}")
    moved = f"{arguments.moves} moves, seed {arguments.seed}: {dict(killing.outcomes)}"
    print(f"{moved}; nothing lost, nothing twice, no process left over")
    return 0


if __name__ == "__main__":
    sys.exit(main())
