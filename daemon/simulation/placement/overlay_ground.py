"""Placing inside a living overlay of the shipped protocol, in virtual time.

Coordinates are those that the nodes advertise after some minutes; a search is the overlay's own, started by some
node; what an end knows of paths is what it has probed in its life. Only a measurement of a path is the true value.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import msgspec

from daemon.simulation.faults import Conditions
from daemon.simulation.latency import Network
from daemon.simulation.nodes import advertised
from daemon.simulation.placement.ground import OVERLOADED, Ground, Work, step
from daemon.simulation.placement.networks import KnownNetwork
from daemon.simulation.population import Population
from daemon.simulation.progress import Progress
from daemon.simulation.world import World
from overlay.config import OverlayConfig
from overlay.events import Event, SearchFinished
from overlay.node import Overlay
from overlay.records import NodeRecord
from overlay.sessions import Sessions
from sbon.errors import SbonError, UnavailableError
from sbon.placement.questions import Course, FindHosts, Known, KnownPath

#: All nodes are started within this time.
START_S = 10.0
#: A node that has too many searches under way is asked again after this.
AGAIN_S = 0.3
#: No placement takes as long.
PATIENCE_S = 600.0


def grow(
    network: KnownNetwork,
    config: OverlayConfig,
    seed: int,
    minutes: float,
    takes: frozenset[int] | None,
    show: Progress,
    loaded: frozenset[int] = frozenset(),
) -> OverlayGround:
    """An overlay that has lived for so long. ``takes``: the hosts that take operators, None: all; ``loaded``: those
    that are overloaded."""
    hosts, end_s = len(network.rtt_ms), minutes * 60.0
    population = Population(seed, Network(network.slices, seed), Conditions(), config)
    if takes is not None or loaded:
        population.kind_of = lambda endpoint: _kind(
            accepts_operators=takes is None or endpoint in takes, load=OVERLOADED * (endpoint in loaded)
        )
    for _ in range(hosts):
        population.add()
    for endpoint in range(hosts):
        population.world.call_at(START_S * endpoint / hosts, _starter(population, endpoint))
    second = 0
    while population.world.now < end_s:
        second += 1
        population.world.run(min(float(second), end_s))
        show.show(population.world.now, end_s, "an overlay grows")
    return OverlayGround(population, network, loaded)


def _starter(population: Population, endpoint: int) -> Any:
    return lambda: population.start(endpoint)


def _kind(*, accepts_operators: bool, load: float) -> Any:
    def make(record: NodeRecord, config: OverlayConfig, rng: random.Random, now: float, sessions: Sessions) -> Overlay:
        own = msgspec.structs.replace(record, accepts_operators=accepts_operators, load=load)
        return Overlay(own, config, rng, now, sessions)

    return make


class OverlayGround(Ground):
    """Its hosts are the population's endpoints, in their order."""

    def __init__(self, population: Population, network: KnownNetwork, loaded: frozenset[int]) -> None:
        records = [
            msgspec.structs.replace(
                population.node(e).record,
                coordinate=advertised(population.node(e)),
                load=OVERLOADED * (e in loaded),
            )
            for e in population.live()
        ]
        super().__init__(records, network.rtt_ms, [() for _ in records], network.route)
        self._population = population
        self._world: World = population.world
        self._works: dict[int, Work] = {}
        self._courses: dict[int, Course] = {}
        self._asked: dict[tuple[int, int], int] = {}
        population.watchers.append(self)

    def place_all(self, courses: Iterable[Course]) -> list[Work]:
        """All at the same time."""
        self._courses = dict(enumerate(courses))
        self._works = {number: Work() for number in self._courses}
        for number in list(self._courses):
            self._go_on(number, None)
        patience_s = self._world.now + PATIENCE_S
        while self._courses:
            if self._world.now > patience_s:
                raise SbonError(f"{len(self._courses)} placements were not done within {PATIENCE_S:g} virtual seconds")
            self._world.run(self._world.now + 0.1)
        return list(self._works.values())

    def _go_on(self, number: int, answer: Any) -> None:
        question = step(self._courses[number], answer, self._works[number])
        while question is not None and not isinstance(question, FindHosts):
            question = step(self._courses[number], self.answer(question), self._works[number])
        if question is None:
            del self._courses[number]
        else:
            self._search(number, question)

    def _search(self, number: int, question: FindHosts) -> None:
        endpoint = random.Random(f"{self._population.seed}/{number}").randrange(len(self.hosts))
        try:
            node = self._population.node(endpoint)
            search_id = node.search(question.objective, question.k, self._world.clock(endpoint))
        except UnavailableError:
            self._world.call_at(self._world.now + AGAIN_S, lambda: self._search(number, question))
            return
        self._asked[endpoint, search_id] = number
        self._world.settle(endpoint)

    def known(self, node_id: str) -> Known:
        here = self.index[node_id]
        paths = (
            KnownPath(other, place, rtt_ms) for other, place, rtt_ms in self._population.node(here).measured_paths()
        )
        return Known(self.hosts[here], tuple(paths))

    # --- the population's watcher

    def happened(self, endpoint: int, event: Event, at: float) -> None:
        if isinstance(event, SearchFinished):
            number = self._asked.pop((endpoint, event.search_id), None)
            if number is not None:
                found = [self.hosts[self.index[record.node_id]] for record in event.found]
                self._world.call_at(at, lambda: self._go_on(number, found))

    def broke(self, what: str, at: float) -> None:
        raise SbonError(what)
