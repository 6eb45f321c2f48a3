"""Searches inside a running overlay, against brute force: links, pointers and searches together."""

from __future__ import annotations

import random

import pytest

from daemon.simulation.figures import OverlayReport
from daemon.simulation.latency import load
from daemon.simulation.progress import Lines
from daemon.simulation.scenario import Run, Scenario
from daemon.simulation.searches import PATIENCE_S
from overlay.config import MAX_REMEMBERED, OverlayConfig
from overlay.events import Event, SearchFinished
from overlay.identity import NodeId
from overlay.records import NodeRecord
from overlay.search import MAX_CONTACTS
from overlay.shelves import HOLDERS, SHELVES, place_of
from sbon.objectives import NearestTo

pytestmark = pytest.mark.xdist_group("one overlay")  # what they share is made once


@pytest.fixture(scope="module")
def ran() -> tuple[Run, OverlayReport]:
    run = Run(Scenario(load([]), "built-in", 130, 2.0, 5, OverlayConfig(), searches=60), Lines())
    return run, run.go()


def test_searches_find_nearly_all_of_the_best(ran: tuple[Run, OverlayReport]) -> None:
    """130 nodes, of which each knows a sixth by links, and whose coordinates still move: news of them are soon old."""
    report = ran[1]
    for figures in (report.knn, report.usage_search):
        assert figures is not None
        assert figures.unfinished == 0
        assert figures.recall_at_10 >= 0.98
        assert figures.contacts_p99 <= MAX_CONTACTS
    assert report.peers_per_node_max <= MAX_REMEMBERED
    assert report.violations == ()


class Collector:
    """The hosts that searches found, and all that there were then, by (endpoint, search)."""

    def __init__(self, run: Run) -> None:
        self._population = run.population
        self.found: dict[tuple[int, int], set[NodeId]] = {}
        self.live: dict[tuple[int, int], list[NodeRecord]] = {}

    def happened(self, endpoint: int, event: Event, _at: float) -> None:
        if isinstance(event, SearchFinished):
            self.found[endpoint, event.search_id] = {record.node_id for record in event.found}
            live = [self._population.node(end).record for end in self._population.live()]
            self.live[endpoint, event.search_id] = live

    def broke(self, what: str, at: float) -> None:
        pass


def test_word_that_is_left_on_a_shelf_is_found_from_anywhere(ran: tuple[Run, OverlayReport]) -> None:
    """Who leaves it and who looks for it find a holder in common, though neither knows all nodes."""
    run = ran[0]
    population, world, collector = run.population, run.world, Collector(run)
    population.watchers.append(collector)
    rng, dimensions = random.Random(7), run.scenario.config.dimensions
    asked = []
    for shelf in range(SHELVES):
        ends = rng.sample(population.live(), 2)
        objectives = [NearestTo(place_of(shelf, dimensions)) for _ in ends]
        asked.append(
            [
                (end, population.node(end).search(objective, HOLDERS, world.clock(end)))
                for end, objective in zip(ends, objectives, strict=True)
            ]
        )
        for end in ends:
            world.settle(end)
        world.run(world.now + 1.0)
    world.run(world.now + PATIENCE_S)
    holders = [[collector.found[key] for key in keys] for keys in asked]
    assert all(left & looked for left, looked in holders)
    # Where regions are few and far apart shelves have nearest nodes in common: what is due follows from the places.
    due = []
    for shelf, keys in enumerate(asked):
        records = sorted(collector.live[keys[0]], key=NearestTo(place_of(shelf, dimensions)).cost)
        due.append({record.node_id for record in records[:HOLDERS]})
    found = [left for left, _ in holders]
    assert sum(len(left & nearest) for left, nearest in zip(found, due, strict=True)) >= 0.95 * HOLDERS * SHELVES
    assert len(set().union(*found)) >= len(set().union(*due)) > 3 * HOLDERS, "the shelves stand at different nodes"
