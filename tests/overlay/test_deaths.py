"""Where neighbours have died lately: searches ask more, and exchanges are not rare."""

from __future__ import annotations

import pytest

from overlay.config import OverlayConfig
from overlay.identity import NodeId
from overlay.lately import LATELY_S, MAX_COUNTED
from overlay.messages import Exchange, Message, SearchRequest
from overlay.neighbourhood import DEATHS_EXCHANGE_INTERVAL_S
from overlay.node import Overlay
from overlay.search import MOST_MORE, PER_DEAD, SILENT_S, Search
from sbon.objectives import NearestTo
from tests import truth
from tests.overlay.fake_network import FakeNetwork, full_mesh
from tests.overlay.test_search import TARGET, asked, finish, host

ASKER, NODES = 0, 8


@pytest.mark.parametrize(("deaths", "more"), [(0, 0), (1, PER_DEAD), (3, 3 * PER_DEAD), (100, MOST_MORE)])
def test_for_each_neighbour_that_died_two_more_are_asked(deaths: int, more: int) -> None:
    search = Search(TARGET, 40, 1.0, 5, deaths=deaths)
    for index in range(1, 60):
        search.know(host(index, float(index)))
    assert finish(search) == 5 + more


@pytest.mark.parametrize(("deaths", "is_left_out"), [(1, False), (2, True)])
def test_where_neighbours_died_the_silent_are_dead_from_the_beginning(deaths: int, is_left_out: bool) -> None:
    now = 100.0
    search = Search(TARGET, 1, 1.0, deaths=deaths)
    search.know(host(1, 10.0), now - SILENT_S - 1.0)
    search.know(host(2, 20.0), now - SILENT_S + 1.0)
    search.expire(now)
    assert asked(search, now) == [host(2 if is_left_out else 1, 0.0).node_id]


@pytest.fixture
def network() -> FakeNetwork:
    """In which nodes have come to exchange rarely."""
    network = full_mesh(truth.cloud_regions(NODES), OverlayConfig())
    network.run(60.0)
    return network


def after_deaths(network: FakeNetwork, deaths: int) -> Overlay:
    for index in range(NODES - deaths, NODES):
        network.kill(index)
    asker = network.nodes[ASKER]
    network.run_until(lambda: len(asker._lost) == deaths, 15.0)
    return asker


def deaths_counted(asker: Overlay, now: float, *, is_lookup: bool = False) -> int:
    place = NearestTo(asker.record.coordinate)
    return asker._searches[asker.search(place, 3, now, is_lookup=is_lookup)]._deaths


def test_a_search_counts_the_neighbours_that_died_lately(network: FakeNetwork) -> None:
    asker = after_deaths(network, 2)
    assert deaths_counted(asker, network.now) == 2
    assert deaths_counted(asker, network.now, is_lookup=True) == 0, "its own nearest it looks for as ever"
    network.run(LATELY_S / 2)
    assert deaths_counted(asker, network.now) == 2, "that they are tried again does not make them more"
    network.run(LATELY_S + 1.0)
    assert deaths_counted(asker, network.now) == 0


def test_a_search_counts_those_that_could_not_be_reached_lately(network: FakeNetwork) -> None:
    """Who has come lately has lost no neighbour yet."""
    asker = network.nodes[ASKER]
    for index in range(1, MAX_COUNTED + 3):
        asker._say(host(NODES + index, 9.0), SearchRequest(index, TARGET), network.now)
        network.run_until(lambda: not asker._waiting, 30.0)
        assert deaths_counted(asker, network.now) == min(index, MAX_COUNTED)
    network.run(LATELY_S + 1.0)
    assert deaths_counted(asker, network.now) == 0


@pytest.mark.parametrize("deaths", [0, 1])
def test_who_has_lost_a_neighbour_exchanges_often_for_a_while(
    network: FakeNetwork, deaths: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asker = after_deaths(network, deaths)
    start, exchanges, send = network.now, list[float](), asker._send

    def count(node_id: NodeId, body: Message | None, extra: object = None) -> None:
        if isinstance(body, Exchange):
            exchanges.append(network.now - start)
        send(node_id, body, extra)

    monkeypatch.setattr(asker, "_send", count)
    network.run(2 * LATELY_S)
    span_s = LATELY_S - 10.0  # what follows is a while of change
    soon = sum(at < span_s for at in exchanges)
    later = sum(at >= 2 * LATELY_S - span_s for at in exchanges)
    often = span_s / (1.25 * DEATHS_EXCHANGE_INTERVAL_S + 1.0)
    assert soon >= often if deaths else soon < often / 2
    assert later < often / 2


@pytest.mark.parametrize(("least_s", "most_s"), [(1.0, 2.0), (5.0, 10.0)])
def test_what_is_configured_bounds_exchanges_all_the_same(least_s: float, most_s: float) -> None:
    config = OverlayConfig(min_exchange_interval_s=least_s, max_exchange_interval_s=most_s)
    network = full_mesh(truth.cloud_regions(NODES), config)
    asker = after_deaths(network, 1)
    for _ in range(5):
        asker._exchange(network.now)
        assert least_s <= asker._exchange_interval_s <= most_s
