"""Searches inside the running overlay, against brute force over the same coordinates.

What was found counts by what it costs when the search ends, by the coordinates that the live nodes advertise then; one
that has died meanwhile is a miss. Searches start at random live nodes, some at a time, while the world goes on.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from daemon.simulation.figures import SearchFigures, quantile
from daemon.simulation.population import Population
from overlay.events import Event, SearchFinished
from overlay.records import NodeRecord
from sbon.errors import UnavailableError
from sbon.objectives import Endpoint, LeastUsage, NearestTo, Objective

K = 10
#: Started at once, and how long after each other.
BATCH = 10
BATCH_EVERY_S = 0.25
#: No search takes as long.
PATIENCE_S = 20.0
#: Costs that differ by less are the same.
EPSILON = 1e-9
KINDS = ("nearest", "usage")
#: Of an operator: two to four producers, and one consumer.
ENDS = (3, 5)


def nearest_to(record: NodeRecord) -> NearestTo:
    """That node left out, as in `sbon nearest`."""
    return NearestTo(record.coordinate, record.node_id)


def usage_between(records: Sequence[NodeRecord], rng: random.Random) -> LeastUsage:
    """Of an operator whose producers are there, and its consumer at the last, with rates of 1 kB/s to 1 MB/s."""
    ends = tuple(Endpoint(record.coordinate, 10.0 ** rng.uniform(3.0, 6.0), record.node_id) for record in records)
    return LeastUsage(ends, sum(end.rate_bytes_per_s for end in ends[:-1]))


@dataclass(slots=True)
class _Asked:
    kind: str
    endpoint: int
    objective: Objective
    started_at: float


@dataclass(frozen=True, slots=True)
class _Answer:
    recall_at_10: float
    recall_at_1: float
    contacts: int
    cost_ratio: float
    seconds: float


class Searches:
    """``count`` searches of each kind; :meth:`figures` once :attr:`done`. ``name`` tells several in one run apart."""

    def __init__(self, population: Population, count: int, name: str = "") -> None:
        self._population = population
        self._rng = random.Random(f"{population.seed}/searches{name}")
        self._to_start = [kind for _ in range(count) for kind in KINDS]
        self._asked: dict[tuple[int, int], _Asked] = {}
        self._answers: dict[str, list[_Answer]] = {kind: [] for kind in KINDS}
        self._unfinished = dict.fromkeys(KINDS, 0)
        population.watchers.append(self)

    def begin(self) -> None:
        """Start the first ones; the others follow in virtual time."""
        batch, self._to_start = self._to_start[:BATCH], self._to_start[BATCH:]
        for kind in batch:
            self._start(kind)
        world = self._population.world
        if self._to_start:
            world.call_at(world.now + BATCH_EVERY_S, self.begin)

    @property
    def done(self) -> bool:
        self._give_up()
        return not self._to_start and not self._asked

    def _start(self, kind: str) -> None:
        population = self._population
        joined = [endpoint for endpoint in population.honest() if endpoint not in population.unjoined]
        endpoint = self._rng.choice(joined)
        objective, known = self._nearest(joined) if kind == "nearest" else self._usage(joined)
        world = population.world
        try:
            search_id = population.node(endpoint).search(objective, K, world.clock(endpoint), known=known)
        except UnavailableError:  # this node has too many under way: another one, in a moment
            self._to_start.append(kind)
            return
        self._asked[endpoint, search_id] = _Asked(kind, endpoint, objective, world.now)
        world.settle(endpoint)

    def _nearest(self, endpoints: list[int]) -> tuple[NearestTo, list[NodeRecord]]:
        """The nearest to some node. Nobody is known to be near to it."""
        return nearest_to(self._population.node(self._rng.choice(endpoints)).record), []

    def _usage(self, endpoints: list[int]) -> tuple[LeastUsage, list[NodeRecord]]:
        """Who places an operator knows the hosts at its ends."""
        records = [
            self._population.node(endpoint).record
            for endpoint in self._rng.sample(endpoints, min(len(endpoints), self._rng.randint(*ENDS)))
        ]
        return usage_between(records, self._rng), records

    # --- answers

    def happened(self, endpoint: int, event: Event, at: float) -> None:
        if isinstance(event, SearchFinished):
            asked = self._asked.pop((endpoint, event.search_id), None)
            if asked is not None:
                self._answers[asked.kind].append(self._judge(asked, event, at))

    def broke(self, what: str, at: float) -> None:
        pass

    def _judge(self, asked: _Asked, event: SearchFinished, at: float) -> _Answer:
        population, cost = self._population, asked.objective.cost
        costs: dict[str, float] = {}
        for endpoint in population.live():
            record = population.node(endpoint).record
            costs[record.node_id] = cost(record)
        finite = (value for value in costs.values() if math.isfinite(value))
        best = heapq.nsmallest(K, finite)
        found = [costs.get(record.node_id, math.inf) for record in event.found[:K]]
        hits = sum(value <= best[-1] + EPSILON for value in found)
        alive = [value for value in found if math.isfinite(value)]
        return _Answer(
            recall_at_10=min(1.0, hits / len(best)),
            recall_at_1=float(bool(found) and min(found) <= best[0] + EPSILON),
            contacts=event.contacts,
            cost_ratio=(sum(alive) / len(alive)) / (sum(best) / len(best)) if alive and sum(best) > 0.0 else 1.0,
            seconds=at - asked.started_at,
        )

    def _give_up(self) -> None:
        """One whose asker has died is nobody's failure; one that takes too long is."""
        population = self._population
        for key, asked in list(self._asked.items()):
            if population.started_at[asked.endpoint] > asked.started_at or not population.is_live(asked.endpoint):
                del self._asked[key]
            elif population.world.now - asked.started_at > PATIENCE_S:
                del self._asked[key]
                self._unfinished[asked.kind] += 1

    def recall(self, kind: str) -> float | None:
        """recall@10; None if nobody answered."""
        figures = self.figures(kind)
        return figures.recall_at_10 if figures else None

    def contacts_p99(self, kind: str) -> float | None:
        """Hosts asked, 99th percentile; None if nobody answered."""
        figures = self.figures(kind)
        return figures.contacts_p99 if figures else None

    def figures(self, kind: str) -> SearchFigures | None:
        answers, unfinished = self._answers[kind], self._unfinished[kind]
        count = len(answers) + unfinished
        if not answers:
            return None
        contacts = [answer.contacts for answer in answers]
        return SearchFigures(
            recall_at_10=round(sum(answer.recall_at_10 for answer in answers) / count, 5),
            recall_at_1=round(sum(answer.recall_at_1 for answer in answers) / count, 5),
            contacts_mean=round(sum(contacts) / len(contacts), 2),
            contacts_p99=quantile(contacts, 0.99),
            cost_ratio=round(sum(answer.cost_ratio for answer in answers) / len(answers), 5),
            seconds_p99=round(quantile([answer.seconds for answer in answers], 0.99), 3),
            searches=count,
            unfinished=unfinished,
        )
