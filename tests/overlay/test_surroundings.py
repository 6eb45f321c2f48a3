"""Whom a node has found nearest to itself, and which neighbours it tells."""

from __future__ import annotations

import msgspec
import pytest

from overlay.config import OverlayConfig
from overlay.identity import NodeId
from overlay.lately import LATELY_S, MAX_COUNTED, Lately
from overlay.messages import Message, SearchReply, Surroundings
from overlay.naming import with_ages
from overlay.neighbourhood import USUAL_MOVES
from overlay.node import LOOKUP_CONTACTS, Overlay
from overlay.packing import pack, packed_node_id
from overlay.pointers import OLDEST_AT_REST_S, OLDEST_S
from overlay.records import NodeRecord
from overlay.telling import SURROUNDINGS_TOLD
from sbon.coordinate import Coordinate
from sbon.objectives import NearestTo
from tests import truth
from tests.overlay.fake_network import FakeNetwork, fake_record, full_mesh, id_of

NODE, TELLER = 0, 1
FOUND = 20


@pytest.fixture
def network() -> FakeNetwork:
    return full_mesh(truth.cloud_regions(8))


@pytest.fixture
def node(network: FakeNetwork) -> Overlay:
    return network.nodes[NODE]


def one_near(node: Overlay) -> NodeRecord:
    here = node.record.coordinate
    place = Coordinate((here.vector_ms[0] + 1.0, *here.vector_ms[1:]), 0.0, 0.1, here.factors)
    return msgspec.structs.replace(fake_record(FOUND), coordinate=place)


def happened(*at: float) -> Lately:
    lately = Lately()
    for now in at:
        lately.happened(now)
    return lately


def told_after_a_search(
    node: Overlay, now: float, monkeypatch: pytest.MonkeyPatch, *, is_lookup: bool
) -> dict[NodeId, Surroundings]:
    """The node looks for its nearest, and its first answer, which is the last, names one that was alive 5 s ago."""
    told: dict[NodeId, Surroundings] = {}

    def send(node_id: NodeId, body: Message | None, extra: object = None) -> None:
        if isinstance(body, Surroundings):
            told[node_id] = body

    monkeypatch.setattr(node, "_send", send)
    place = NearestTo(node.record.coordinate, node.record.node_id)
    search_id = node.search(place, LOOKUP_CONTACTS, now, LOOKUP_CONTACTS, is_lookup=is_lookup)
    search = node._searches[search_id]
    search._max_contacts = 0
    for asked_id in list(search._waiting):
        asked = node.known(asked_id)
        assert asked is not None
        reply = SearchReply(search_id, pack(asked), (pack(one_near(node)),), bytes([5]))
        node._dispatch(asked_id, reply, now)
    assert search_id not in node._searches
    return told


def test_those_most_alike_are_told_whom_a_node_has_found_around_itself(
    node: Overlay, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    node._links._config = OverlayConfig(few_links=1)
    here, links = node.record.coordinate, node._links.table
    alike = sorted(links, key=lambda node_id: here.unlike_ms(links[node_id].record.coordinate))
    told = told_after_a_search(node, network.now, monkeypatch, is_lookup=True)
    assert told.keys() == set(alike[:SURROUNDINGS_TOLD])
    for surroundings in told.values():
        ages = {packed_node_id(packed): s for packed, s in with_ages(surroundings.records, surroundings.ages)}
        assert ages[id_of(FOUND)] == 5
        assert node.record.node_id not in ages


def test_where_everybody_is_linked_with_everybody_nobody_is_told(
    node: Overlay, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert node._links.are_few
    assert not told_after_a_search(node, network.now, monkeypatch, is_lookup=True)


def test_what_others_look_for_is_told_to_nobody(
    node: Overlay, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    node._links._config = OverlayConfig(few_links=1)
    assert not told_after_a_search(node, network.now, monkeypatch, is_lookup=False)


@pytest.mark.parametrize(
    ("deaths", "age_s", "is_taken_in"),
    [
        (0, 3, True),
        (0, int(OLDEST_AT_REST_S), True),
        (0, int(OLDEST_AT_REST_S) + 1, False),
        (MAX_COUNTED, int(OLDEST_S), True),
        (MAX_COUNTED, int(OLDEST_S) + 1, False),
    ],
)
def test_who_is_told_keeps_in_mind_those_that_are_worth_it(
    node: Overlay, network: FakeNetwork, deaths: int, age_s: int, is_taken_in: bool
) -> None:
    record = one_near(node)
    node._moved, node._unreached = happened(), happened(*[network.now] * deaths)
    node._dispatch(id_of(TELLER), Surroundings((pack(record),), bytes([age_s])), network.now)
    assert (record.node_id in node._pointers) is is_taken_in
    if is_taken_in:
        assert node._pointers.table[record.node_id].alive_at == network.now - age_s


@pytest.mark.parametrize(
    ("deaths", "moves", "is_kept"),
    [(0, 0, True), (MAX_COUNTED, 0, False), (0, USUAL_MOVES, True), (0, MAX_COUNTED, False)],
)
def test_where_many_die_or_places_move_those_are_forgotten_sooner_that_nothing_is_heard_of(
    node: Overlay, network: FakeNetwork, deaths: int, moves: int, is_kept: bool
) -> None:
    record = one_near(node)
    node._point_to(record, pack(record), network.now - OLDEST_S - 1.0)
    node._unreached = happened(*[network.now] * deaths)
    node._moved = happened(*[network.now - LATELY_S - 1.0] * (MAX_COUNTED - moves), *[network.now] * moves)
    node._refresh_pointers(network.now)
    assert (record.node_id in node._pointers) is is_kept


def test_a_new_node_notices_that_places_move_and_that_they_have_settled(network: FakeNetwork, node: Overlay) -> None:
    assert node._keep_s(network.now) == OLDEST_S
    network.run(2 * LATELY_S)
    assert node._keep_s(network.now) == OLDEST_AT_REST_S


def test_strangers_and_impossible_neighbours_are_not_believed(
    node: Overlay, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = one_near(node)
    surroundings = Surroundings((pack(record),), bytes([3]))
    node._take_surroundings(id_of(30), surroundings, network.now)
    monkeypatch.setattr(node, "_is_odd", lambda node_id: True)
    node._take_surroundings(id_of(TELLER), surroundings, network.now)
    assert record.node_id not in node._pointers
