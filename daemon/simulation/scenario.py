"""A measured run: an overlay grows, lives for some minutes under stated conditions, and is asked at the end."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from daemon.simulation.checkers import Checkers
from daemon.simulation.faults import Conditions
from daemon.simulation.figures import OverlayReport
from daemon.simulation.latency import Matrix, Network
from daemon.simulation.liars import kind_of_liar, make_plot
from daemon.simulation.measures import (
    MAX_PAIRS,
    MINUTE_PAIRS,
    DeathWatch,
    Traffic,
    minutes_to_converge,
    relative_errors,
    spread,
)
from daemon.simulation.population import Population
from daemon.simulation.progress import Progress
from daemon.simulation.searches import KINDS, Searches
from overlay.config import OverlayConfig
from overlay.node import Overlay

#: All nodes are started within this time, unless arrivals are asked for; each by way of some that are there already.
START_S = 10.0
#: Traffic at rest is measured from here on after the arrivals, or from a third of a shorter run.
AT_REST_AFTER_S = 300.0
#: A crash needs this long to be seen by everybody: none is made later than this before the end.
LAST_CRASH_BEFORE_END_S = 30.0
INSPECTED_PER_S = 3
COUNT_PEERS_EVERY_S = 10


@dataclass(frozen=True, slots=True)
class Scenario:
    """What ``sbon simulate overlay`` is asked for. Shares and probabilities are 0 to 1."""

    slices: Matrix
    network: str
    nodes: int
    minutes: float
    seed: int
    config: OverlayConfig
    loss: float = 0.0
    asymmetric_share: float = 0.0
    asymmetric_loss: float = 0.0
    jitter_ms: float = 0.0
    churn_per_minute: float = 0.0
    #: Replacing begins so long after the arrivals: it is a living overlay that is to stand it.
    churn_from_minute: float = 1.0
    crashes: int = 0
    liars: float = 0.0
    attack: str | None = None
    searches: int = 0
    searches_per_minute: int = 0
    play: bool = False
    #: Nodes come within so many minutes, twice as many in each equal part of them; 0: all within :data:`START_S`.
    arrival_minutes: float = 0.0


class Run:
    """One run of a scenario; :meth:`report` when :meth:`go` is done."""

    def __init__(self, scenario: Scenario, progress: Progress) -> None:
        self.scenario = scenario
        self._progress = progress
        self._rng = random.Random(f"{scenario.seed}/scenario")
        network = Network(scenario.slices, scenario.seed, play=scenario.play)
        conditions = Conditions(loss=scenario.loss, jitter_s=scenario.jitter_ms / 1000.0)
        self.population = Population(scenario.seed, network, conditions, scenario.config)
        self.world = self.population.world
        self.checkers = Checkers(self.population)
        self.checkers.removals_are_violations = False
        self.deaths = DeathWatch(self.population)
        self.traffic = Traffic(self.population)
        self.searches = Searches(self.population, 0)
        self.medians: list[float] = []
        self.bytes_by_minute: list[float] = []
        #: Asked at the end of each minute but the last, answered soon after.
        self.searches_by_minute: list[Searches] = []
        self._end_s = scenario.minutes * 60.0
        self._cpu_s = 0.0
        self._finished = False

    def go(self) -> OverlayReport:
        began, cpu_began = time.monotonic(), time.process_time()
        self._set_up()
        second = 0
        while self.world.now < self._end_s:
            second += 1
            self.world.run(min(float(second), self._end_s))
            self._every_second(second)
        self.traffic.end()
        errors = relative_errors(self.population, MAX_PAIRS)
        self._search()
        self._finished = True
        return self._report(errors, time.monotonic() - began, time.process_time() - cpu_began)

    # --- the course

    def _set_up(self) -> None:
        scenario, population, world = self.scenario, self.population, self.world
        for _ in range(scenario.nodes):
            population.add()
        everyone = range(scenario.nodes)
        world.conditions.lose(everyone, scenario.asymmetric_share, scenario.asymmetric_loss, self._rng)
        world.conditions_changed()
        if scenario.attack is not None:
            self._corrupt(round(scenario.liars * scenario.nodes))
        for endpoint in everyone:
            world.call_at(self._arrival_s(endpoint), self._starter(endpoint))
        arrived_s = 60.0 * scenario.arrival_minutes
        world.call_at(arrived_s + min(AT_REST_AFTER_S, (self._end_s - arrived_s) / 3.0), self.traffic.begin)
        if scenario.churn_per_minute > 0.0:
            self._churn_later(arrived_s + 60.0 * scenario.churn_from_minute)
        first = arrived_s + max(START_S + 60.0, (self._end_s - arrived_s) / 4.0)
        last = self._end_s - LAST_CRASH_BEFORE_END_S
        for number in range(scenario.crashes):
            world.call_at(first + (last - first) * (number + 0.5) / scenario.crashes, self._crash_one)
        for index in range(1, world.network.slices):
            world.call_at(self._end_s * index / world.network.slices, self._slice_shower(index))

    def _arrival_s(self, index: int) -> float:
        """When the node of that number comes. Arrivals that are asked for are in proportion to how many are there."""
        nodes = self.scenario.nodes
        if not self.scenario.arrival_minutes:
            return START_S * index / nodes
        return 60.0 * self.scenario.arrival_minutes * math.log(1 + index) / math.log(nodes)

    def _corrupt(self, liars: int) -> None:
        """The first node of all is honest, so that there is an overlay to join."""
        scenario, population = self.scenario, self.population
        assert scenario.attack is not None
        population.liars.update(self._rng.sample(range(1, scenario.nodes), min(liars, scenario.nodes - 2)))
        make_liar = kind_of_liar(make_plot(scenario.attack, scenario.seed, scenario.config.dimensions))
        population.kind_of = lambda endpoint: make_liar if endpoint in population.liars else Overlay

    def _starter(self, endpoint: int) -> Callable[[], None]:
        return lambda: self.population.start(endpoint)

    def _slice_shower(self, index: int) -> Callable[[], None]:
        return lambda: self.world.network.show(index)

    def _crash_one(self) -> None:
        honest = self.population.honest()
        if len(honest) > 2:
            victim = self._rng.choice(honest)
            self.population.crash(victim)
            self.deaths.watch(victim)

    def _churn_later(self, at: float) -> None:
        self.world.call_at(at, self._churn)

    def _churn(self) -> None:
        """Replace one, and go on at the given rate with exponential pauses, until the end of the searches, too."""
        if self._finished:
            return
        victim = self._rng.choice(self.population.live())
        self.population.replace(victim)
        rate_per_s = self.scenario.churn_per_minute * self.scenario.nodes / 60.0
        self._churn_later(self.world.now + self._rng.expovariate(rate_per_s))

    def _search(self) -> None:
        """The world goes on meanwhile, and so does its churn."""
        searches = self.searches = Searches(self.population, self.scenario.searches)
        searches.begin()
        while not searches.done:
            self.world.run(self.world.now + 1.0)
            self.checkers.inspect(self.world.now, INSPECTED_PER_S)
            self._progress.show(self.world.now, self.world.now, "searching")
        self.checkers.count_peers(self.world.now)

    def _every_second(self, second: int) -> None:
        now = self.world.now
        self.checkers.inspect(now, INSPECTED_PER_S)
        if second % COUNT_PEERS_EVERY_S == 0 or now >= self._end_s:
            self.checkers.count_peers(now)
        if second % 60 == 0:
            figures = spread(relative_errors(self.population, MINUTE_PAIRS))
            self.medians.append(figures.median if figures else math.nan)
            self.bytes_by_minute.append(self.traffic.last_minute())
            self._search_at_minute(second // 60)
        self._progress.show(now, self._end_s, self._state())

    def _search_at_minute(self, minute: int) -> None:
        if self.scenario.searches_per_minute and self.world.now < self._end_s:
            searches = Searches(self.population, self.scenario.searches_per_minute, f"/{minute}")
            self.searches_by_minute.append(searches)
            searches.begin()

    def _state(self) -> str:
        """For who waits for the end."""
        if not self.medians:
            return ""
        state = f"{len(self.population.live())} nodes, error {100.0 * self.medians[-1]:.1f} %"
        state += f", {self.bytes_by_minute[-1]:.0f} bytes per node and s"
        done = [searches for searches in self.searches_by_minute if searches.done]
        return f"{state}, recall {' '.join(str(done[-1].recall(kind)) for kind in KINDS)}" if done else state

    # --- the result

    def _report(self, errors: list[float], seconds: float, cpu_s: float) -> OverlayReport:
        scenario, traffic = self.scenario, self.traffic
        node_hours = len(self.population.live()) * self._end_s / 3600.0
        return OverlayReport(
            seed=scenario.seed,
            nodes=scenario.nodes,
            minutes=scenario.minutes,
            network=scenario.network,
            nodes_live=len(self.population.live()),
            relative_error=spread(errors),
            pairs=len(errors),
            relative_error_by_minute=tuple(self.medians),
            minutes_to_converge=minutes_to_converge(self.medians),
            knn=self.searches.figures("nearest"),
            usage_search=self.searches.figures("usage"),
            recall_by_minute={
                kind: tuple(searches.recall(kind) for searches in self.searches_by_minute if searches.done)
                for kind in KINDS
            },
            contacts_p99_by_minute={
                kind: tuple(searches.contacts_p99(kind) for searches in self.searches_by_minute if searches.done)
                for kind in KINDS
            },
            detection_s=self.deaths.result(),
            false_removals=self.checkers.false_removals,
            removals=tuple(self.checkers.removals),
            bytes_per_node_per_s=traffic.bytes_figures(),
            bytes_per_node_per_s_by_minute=tuple(self.bytes_by_minute),
            messages_per_node_per_s=traffic.messages_mean(),
            bytes_per_node_per_s_by_kind=traffic.per_node_and_s("sent_bytes."),
            messages_per_node_per_s_by_kind=traffic.per_node_and_s("sent."),
            peers_per_node_max=self.checkers.peers_max,
            violations=tuple(self.checkers.violations),
            attack=scenario.attack,
            attacks={},
            deliveries=self.world.deliveries,
            digest=f"{self.world.digest:08x}",
            seconds=round(seconds, 1),
            node_hours_per_cpu_minute=round(node_hours / (cpu_s / 60.0), 1) if cpu_s else 0.0,
        )
