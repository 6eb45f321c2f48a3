"""Nodes that come one after the other, and what a run shows by the minute."""

from __future__ import annotations

import pytest

from daemon.simulation.latency import load
from daemon.simulation.progress import Lines
from daemon.simulation.scenario import Run, Scenario
from overlay.config import OverlayConfig
from overlay.search import MAX_CONTACTS

#: Of 16 nodes that come within a minute there are twice as many each quarter of it.
ARRIVALS = Scenario(
    load([]), "built-in", 16, 2.0, 4, OverlayConfig(), searches_per_minute=3, searches=1, arrival_minutes=1.0
)


def test_twice_as_many_are_there_after_each_equal_time() -> None:
    run = Run(ARRIVALS, Lines())
    report = run.go()
    assert [run.population.started_at[index] for index in (0, 1, 3, 7, 15)] == pytest.approx([0, 15, 30, 45, 60])
    assert report.nodes_live == 16
    assert report.violations == ()
    assert len(report.relative_error_by_minute) == len(report.bytes_per_node_per_s_by_minute) == 2
    assert min(report.bytes_per_node_per_s_by_minute) > 0.0
    assert report.knn is not None
    for recalls in report.recall_by_minute.values():
        assert len(recalls) == 1, "of the last minute are the figures at the end"
    for contacts in report.contacts_p99_by_minute.values():
        assert contacts[0] is not None
        assert 1 <= contacts[0] <= MAX_CONTACTS
