"""The fault mix over many seeds, in the manner of TigerBeetle's VOPR: a safety run in which everything may go wrong and
no checker may speak, then a liveness run in which faults stop and the overlay must grow together and converge.
"""

from __future__ import annotations

import math
import random
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from daemon.simulation.checkers import Checkers
from daemon.simulation.faults import Conditions, FaultMix, Partition, Stroke
from daemon.simulation.latency import Matrix, Network
from daemon.simulation.population import Population
from overlay.config import OverlayConfig

#: The overlay grows for so long (lossy already), then there are partitions and strokes for so long, then none.
GROWTH_S = 15.0
FAULTS_S = 60.0
#: After a partition or an outage all live nodes reach each other again over links within this time. Whoever started or
#: stood still later than that long ago does not count.
HEAL_WITHIN_S = 30.0
#: The overlay has converged within this time of calm, or never will.
SETTLE_WITHIN_S = 90.0
LOOK_EVERY_S = 0.5
LOOKS = 10
START_S = 5.0
INSPECTED_PER_S = 4
COUNT_PEERS_EVERY_S = 5
#: Fewer live nodes than this are not thinned out any further.
LEAST_LIVE = 4
#: A clock that has been running for a while, and not since the same time everywhere.
MAX_CLOCK_S = 1e6


@dataclass(frozen=True, slots=True)
class Outcome:
    """``problems`` is empty if all went well. From the end of the faults, ``healed_s``: until all live nodes reached
    each other over links; ``settled_s``: until the overlay had converged. None if that did not come."""

    seed: int
    nodes: int
    problems: tuple[str, ...]
    healed_s: float | None
    settled_s: float | None
    false_removals: int
    deliveries: int
    digest: int
    node_seconds: float
    cpu_s: float


class FaultRun:
    """One seed. Everything is drawn from it: the number of nodes, the mix, and each fault."""

    def __init__(self, seed: int, slices: Matrix, least_nodes: int, most_nodes: int, config: OverlayConfig) -> None:
        self.seed = seed
        self._rng = random.Random(f"{seed}/faults")
        self.nodes = self._rng.randint(least_nodes, most_nodes)
        self.mix = FaultMix.draw(self._rng, self.nodes, FAULTS_S)
        mix = self.mix
        conditions = Conditions(
            loss=mix.loss,
            duplication=mix.duplication,
            reordering=mix.reordering,
            late_s=mix.late_s,
            jitter_s=mix.jitter_s,
        )
        self.population = Population(seed, Network(slices, seed), conditions, config)
        self.world = self.population.world
        self.checkers = Checkers(self.population)
        self._node_seconds = 0.0
        self._healed_s: float | None = None
        self._parted_at = -math.inf

    def go(self) -> Outcome:
        problems: list[str] = []
        settled_s = None
        cpu_began = time.process_time()
        try:
            self._set_up()
            self._run_until(GROWTH_S + FAULTS_S)
            self.world.conditions.heal()
            self.world.conditions_changed()
            settled_s, unsettled = self._settle()
            if self._healed_s is None or self._healed_s > HEAL_WITHIN_S:
                problems.append(f"the overlay had not grown together {HEAL_WITHIN_S:g} s after the faults")
            if settled_s is None:
                problems += [f"after {SETTLE_WITHIN_S:g} s without faults: {problem}" for problem in unsettled[:5]]
        except Exception:  # whatever a node raised is a finding, and the other seeds go on
            problems.append(f"at {self.world.now:.3f} s: {traceback.format_exc()}")
        return Outcome(
            seed=self.seed,
            nodes=self.nodes,
            problems=(*self.checkers.violations, *problems),
            healed_s=self._healed_s,
            settled_s=settled_s,
            false_removals=self.checkers.false_removals,
            deliveries=self.world.deliveries,
            digest=self.world.digest,
            node_seconds=self._node_seconds,
            cpu_s=time.process_time() - cpu_began,
        )

    # --- the course

    def _set_up(self) -> None:
        population, world, mix = self.population, self.world, self.mix
        for index in range(self.nodes):
            rate = 1.0 + mix.drift * self._rng.uniform(-1.0, 1.0)
            endpoint = population.add(rate=rate, offset_s=round(self._rng.random() * MAX_CLOCK_S, 3))
            world.call_at(START_S * index / self.nodes, self._starter(endpoint))
        world.conditions.lose(range(self.nodes), mix.asymmetric_share, mix.asymmetric_loss, self._rng)
        world.conditions_changed()
        for partition in mix.partitions:
            self._schedule(partition.start_s, lambda partition=partition: self._part(partition))  # type: ignore[misc]
        for stroke in mix.strokes:
            self._schedule(stroke.at_s, lambda stroke=stroke: self._strike(stroke))  # type: ignore[misc]

    def _starter(self, endpoint: int) -> Callable[[], None]:
        return lambda: None if self.population.is_live(endpoint) else self.population.start(endpoint)

    def _schedule(self, fault_s: float, action: Callable[[], None]) -> None:
        """``fault_s`` counts from the start of the faults; nothing new happens once they have ended."""
        self.world.call_at(GROWTH_S + min(fault_s, FAULTS_S), action)

    def _run_until(self, end: float) -> None:
        while self.world.now < end:
            began, second = self.world.now, math.floor(self.world.now) + 1
            self.world.run(min(float(second), end))
            self._node_seconds += len(self.population.live()) * (self.world.now - began)
            self.checkers.inspect(self.world.now, INSPECTED_PER_S)
            if second % COUNT_PEERS_EVERY_S == 0:
                self.checkers.count_peers(self.world.now)

    def _settle(self) -> tuple[float | None, list[str]]:
        calm_since = self.world.now
        problems: list[str] = []
        while self.world.now < calm_since + SETTLE_WITHIN_S:
            for _ in range(LOOKS):
                self._run_until(self.world.now + LOOK_EVERY_S)
                self.checkers.look_at_links()
                if self._healed_s is None and not self.checkers.unreached():
                    self._healed_s = self.world.now - calm_since
            problems = self.checkers.unsettled()
            if not problems:
                return self.world.now - calm_since, []
        return None, problems

    # --- faults

    def _part(self, partition: Partition) -> None:
        self._parted_at = self.world.now
        everyone = list(range(self.nodes))
        self._rng.shuffle(everyone)
        size = max(1, round(partition.share * len(everyone)))
        here, there = everyone[:size], everyone[size:]
        cut = {(a, b) for a in here for b in there}
        if not partition.one_way:
            cut |= {(b, a) for a, b in cut}
        self.world.conditions.cut |= cut
        self.world.conditions_changed()
        for endpoint in here:
            self.checkers.excuse(endpoint, GROWTH_S + partition.end_s)
        self._schedule(partition.end_s, lambda: self._mend(cut))

    def _mend(self, cut: set[tuple[int, int]]) -> None:
        self.world.conditions.cut -= cut
        self.world.conditions_changed()
        mended_at = self.world.now
        if mended_at + HEAL_WITHIN_S < GROWTH_S + FAULTS_S:
            self.world.call_at(mended_at + HEAL_WITHIN_S, lambda: self._check_healing(mended_at))

    def _check_healing(self, mended_at: float) -> None:
        """Other faults go on, but no path is cut: long after the partition it must be forgotten."""
        if self._parted_at > mended_at:
            return
        population, held_until = self.population, self.world.conditions.held_until
        unreached = {
            endpoint
            for endpoint in self.checkers.unreached()
            if population.started_at[endpoint] < mended_at and held_until[endpoint] < mended_at
        }
        if unreached:
            self.checkers.broke(
                f"{len(unreached)} nodes are cut off {HEAL_WITHIN_S:g} s after a partition, n{min(unreached)} for one",
                self.world.now,
                kind="healing",
            )

    def _strike(self, stroke: Stroke) -> None:
        population = self.population
        live = population.live()
        if len(live) <= LEAST_LIVE:
            return
        back_at = stroke.at_s + stroke.for_s
        if stroke.kind == "mass-restart":
            victims = self._rng.sample(live, max(1, round(stroke.share * len(live))))
            for victim in victims:
                population.crash(victim)
                self._schedule(back_at + self._rng.random(), self._starter(victim))
            return
        victim = self._rng.choice(live)
        if stroke.kind == "stall":
            self.world.conditions.held_until[victim] = self.world.now + stroke.for_s
            self.checkers.excuse(victim, self.world.now + stroke.for_s)
            return
        if stroke.kind == "leave":
            population.leave(victim)
        else:
            population.crash(victim)
        if stroke.for_s < math.inf:
            self._schedule(back_at, self._starter(victim))
