"""Where queries are placed: hosts with coordinates, the true round trips, and answers to a strategy's questions.

This one looks everything up: a search is brute force over all coordinates, and a measurement the true value. The one
that runs inside a living overlay is :mod:`daemon.simulation.placement.overlay_ground`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from daemon.simulation.latency import Matrix
from sbon.coordinate import Coordinate
from sbon.objectives import MOST_OPTIMISM, HasProperty, Host, LeastUsage, NearestTo, Objective
from sbon.placement.capacity import Resources
from sbon.placement.choice import Placement
from sbon.placement.optimum import Truth
from sbon.placement.path_model import Floats, Places
from sbon.placement.problem import CostView
from sbon.placement.questions import (
    Course,
    FindHosts,
    Known,
    KnownPath,
    MeasurePaths,
    Question,
    SurveyAll,
    SurveyHosts,
    TellKnownPaths,
    TellRoom,
    TellRoutes,
)

#: Load per core of a host that is overloaded, and from which on a host counts as full.
OVERLOADED, FULL_LOAD = 2.0, 1.0

Router = Callable[[int, int], Sequence[int]]


@dataclass(frozen=True, slots=True)
class GroundHost:
    """A host of the simulated network. Its id says where it stands in the matrix."""

    node_id: str
    coordinate: Coordinate
    load: float = 0.0
    accepts_operators: bool = True

    @property
    def name(self) -> str:
        return self.node_id


@dataclass(slots=True)
class Work:
    """What a placement took."""

    placement: Placement | None = None
    measured: set[tuple[str, str]] = field(default_factory=set)
    samples: int = 0
    seconds: float = 0.0


class Ground:
    """Answers questions from tables."""

    def __init__(
        self, hosts: Sequence[Host], rtt_ms: Matrix, peers: Sequence[Sequence[int]], route: Router | None = None
    ) -> None:
        """``rtt_ms`` is complete and symmetric, in the order of ``hosts``; ``peers[i]``: whose paths i knows."""
        self.hosts = list(hosts)
        self.node_ids = [host.node_id for host in hosts]
        self.index = {node_id: index for index, node_id in enumerate(self.node_ids)}
        self.rtt_ms = rtt_ms
        #: What hosts have left, by node id; without a limit where nothing is said.
        self.room: dict[str, Resources] = {}
        self._peers = peers
        self._route = route
        self.places = Places([host.coordinate for host in hosts])
        self._takes = np.array([host.accepts_operators for host in hosts])
        self.view = CostView(
            coordinate_of=lambda node_id: self.hosts[self.index[node_id]].coordinate,
            measured_rtt_ms=lambda a, b: None,
            load_of=lambda node_id: self.hosts[self.index[node_id]].load,
        )
        self._load_s = np.array([self.view.load_ms(host.node_id) for host in hosts]) / 1000.0
        full = np.array([host.load >= FULL_LOAD for host in hosts])
        free = self._takes & ~full
        #: What the overloaded leave free, and what there would be if nobody was loaded.
        self.truth = Truth.of(
            self.node_ids, rtt_ms, takes=free if free.any() else self._takes, load_ms=1000.0 * self._load_s
        )
        self.unloaded = Truth.of(self.node_ids, rtt_ms, takes=self._takes)

    def true_rtt_ms(self, a: str, b: str) -> float:
        return float(self.rtt_ms[self.index[a], self.index[b]])

    # --- placing

    def place_all(self, courses: Iterable[Course]) -> list[Work]:
        """Run placements to their ends."""
        return [self._drive(course) for course in courses]

    def _drive(self, course: Course) -> Work:
        work, answer = Work(), None
        while True:
            question = step(course, answer, work)
            if question is None:
                return work
            answer = self.answer(question)

    def answer(self, question: Question) -> Any:
        if isinstance(question, FindHosts):
            return self._find(question.objective, question.k)
        if isinstance(question, MeasurePaths):
            return {pair: self.true_rtt_ms(*pair) for pair in question.pairs}
        if isinstance(question, TellKnownPaths):
            return {node_id: self.known(node_id) for node_id in question.node_ids}
        return self.answer_from_tables(question)

    def answer_from_tables(self, question: TellRoutes | TellRoom | SurveyHosts | SurveyAll) -> Any:
        if isinstance(question, TellRoom):
            return {node_id: self.room.get(node_id, Resources()) for node_id in question.node_ids}
        if isinstance(question, TellRoutes):
            return {pair: self._route_of(*pair) for pair in question.pairs}
        return self.hosts if isinstance(question, SurveyHosts) else self.truth

    def known(self, node_id: str) -> Known:
        here = self.index[node_id]
        paths = tuple(
            KnownPath(self.node_ids[other], self.hosts[other].coordinate, float(self.rtt_ms[here, other]))
            for other in self._peers[here]
        )
        return Known(self.hosts[here], paths)

    def _route_of(self, a: str, b: str) -> tuple[str, ...]:
        if self._route is None:
            return (a, b)
        return tuple(self.node_ids[node] for node in self._route(self.index[a], self.index[b]))

    def _find(self, objective: Objective, k: int) -> list[Host]:
        costs = self._costs(objective)
        nearest = np.argsort(costs, kind="stable")[:k]
        return [self.hosts[index] for index in nearest if math.isfinite(costs[index])]

    def _costs(self, objective: Objective) -> Floats:
        """``objective.cost`` of all hosts."""
        if not isinstance(objective, LeastUsage):
            places = self.places.rtt_ms(Places([objective.place]))[:, 0]
            if isinstance(objective, HasProperty):
                return np.where(self._takes | (not objective.accepts_operators), places, np.inf)
            if isinstance(objective, NearestTo) and objective.but in self.index:
                places[self.index[objective.but]] = np.inf
            return places
        usage = np.zeros(len(self.hosts))
        for end in objective.endpoints:
            if end.node_id:
                rtt_ms = self.places.rtt_ms(Places([end.place]))[:, 0]
                rtt_ms[self.index[end.node_id]] = 0.0
            else:
                rtt_ms = np.sqrt(((self.places.vectors - np.array(end.place.vector_ms)) ** 2).sum(axis=1))
            usage += end.rate_bytes_per_s * rtt_ms / 2000.0
        usage *= 1.0 - np.minimum(MOST_OPTIMISM, objective.optimism * self.places.errors)
        load = objective.input_rate_bytes_per_s * self._load_s
        return np.where(self._takes, load + usage, np.inf)


def step(course: Course, answer: Any, work: Work) -> Question | None:
    """The next question of a placement; None when it has ended. Its work is added up."""
    began = time.perf_counter()
    try:
        question = course.send(answer)
    except StopIteration as end:
        work.placement = end.value
        question = None
    work.seconds += time.perf_counter() - began
    if isinstance(question, MeasurePaths):
        work.samples += len(question.pairs)
        work.measured.update(question.candidates)
    if isinstance(answer, dict):
        work.samples += sum(len(known.paths) for known in answer.values() if isinstance(known, Known))
    return question
