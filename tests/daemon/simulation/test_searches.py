"""Searches inside a running overlay, against brute force: links, pointers and searches together."""

from __future__ import annotations

import pytest

from daemon.simulation.latency import load
from daemon.simulation.progress import Silent
from daemon.simulation.scenario import Run, Scenario
from overlay.config import MAX_REMEMBERED, OverlayConfig
from overlay.search import MAX_CONTACTS


@pytest.fixture(scope="module")
def run() -> Run:
    return Run(Scenario(load([]), "built-in", 130, 2.0, 5, OverlayConfig(), searches=60), Silent())


def test_searches_find_nearly_all_of_the_best(run: Run) -> None:
    """130 nodes, of which each knows a sixth by links, and whose coordinates still move: news of them are soon old."""
    report = run.go()
    for figures in (report.knn, report.usage_search):
        assert figures is not None
        assert figures.unfinished == 0
        assert figures.recall_at_10 >= 0.98
        assert figures.contacts_p99 <= MAX_CONTACTS
    assert report.peers_per_node_max <= MAX_REMEMBERED
    assert report.violations == ()
