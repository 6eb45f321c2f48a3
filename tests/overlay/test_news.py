"""What a node tells its neighbours of itself, and when."""

from __future__ import annotations

import msgspec
import pytest

from overlay.config import OverlayConfig
from overlay.neighbourhood import NEWS_INTERVAL_S
from sbon.cost_space import MAX_LOAD
from sbon.update_filter import FOUND_ERROR
from tests import truth
from tests.overlay.fake_network import full_mesh

FIVE = truth.cloud_regions(5)
#: No news but ours, and a second from one tick to the next: longer than a datagram takes.
QUIET = OverlayConfig(probe_interval_s=100.0)
ONE_WAY_S = max(map(max, FIVE)) / 2000.0 + 0.001


def test_load_is_advertised_when_it_really_changed() -> None:
    network = full_mesh(FIVE, QUIET)
    network.run(10.0)
    node = network.nodes[0]
    before = node.record.incarnation
    node.set_load(0.05, network.now)
    assert (node.record.load, node.record.incarnation) == (0.0, before)
    node.set_load(1.5, network.now)
    network.settle(0)
    network.run(ONE_WAY_S)
    for other in range(1, 5):
        seen = network.nodes[other].find("n0")
        assert seen is not None
        assert seen.load == 1.5
    node.set_load(1e9, network.now)
    assert node.record.load == MAX_LOAD
    node.validate()
    with pytest.raises(ValueError, match="load"):
        node.set_load(float("nan"), network.now)


def test_a_place_that_was_found_stays_until_those_who_were_told_of_it_have_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those far from it have, too: a newcomer is told on."""
    network = full_mesh(FIVE, QUIET)
    node = network.nodes[0]
    monkeypatch.setattr(node._update_filter, "is_news", lambda *_: True)
    for probes, found_error, moves in ((2, FOUND_ERROR / 2, 1), (2, 2 * FOUND_ERROR, 3)):
        unsure = msgspec.structs.replace(node._estimator.coordinate, error=found_error)
        monkeypatch.setattr(node._estimator, "coordinate", unsure)
        monkeypatch.setattr(node._estimator, "updates", probes)
        node._update_filter.has_found, node._moved_at = False, network.now
        before = node.record.incarnation
        for now in (network.now, network.now + 1.0, network.now + NEWS_INTERVAL_S - 0.1):
            node._advertise_if_moved(now)
        assert node.record.incarnation - before == moves


def test_neighbours_hear_of_another_place_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    network = full_mesh(FIVE, QUIET)
    network.run(20.0)
    node = network.nodes[0]
    before = node.record.incarnation
    monkeypatch.setattr(node._update_filter, "is_news", lambda *_: True)
    node._moved_at = network.now
    node._advertise_if_moved(network.now)
    assert node.record.incarnation == before + 1
    network.settle(0)
    network.run(ONE_WAY_S)
    for other in range(1, 5):
        known = network.nodes[other].known(node.record.node_id)
        assert known is not None
        assert known.incarnation == before + 1
