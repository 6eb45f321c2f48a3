"""Who hears of a node that is new, and from whom."""

from __future__ import annotations

import msgspec
import pytest

from overlay.config import MAX_POINTERS
from overlay.identity import NodeId
from overlay.messages import Message, Newcomer, SearchRequest
from overlay.naming import NOT_KNOWN
from overlay.node import Overlay
from overlay.packing import pack
from overlay.pointers import NEAREST, OLDEST_S
from overlay.records import NodeRecord
from overlay.telling import NEWCOMER_TOLD, NEWCOMERS_AT_ONCE
from sbon.coordinate import Coordinate
from sbon.coordinate_estimator import SETTLED_PROBES
from sbon.objectives import NearestTo
from tests import truth
from tests.overlay.fake_network import FakeNetwork, fake_record, full_mesh, id_of

NODE, TELLER = 0, 1
NEW = 20


@pytest.fixture
def network() -> FakeNetwork:
    network = full_mesh(truth.cloud_regions(10))
    for link in network.nodes[NODE]._links.table.values():
        link.far = False
    return network


@pytest.fixture
def node(network: FakeNetwork) -> Overlay:
    return network.nodes[NODE]


@pytest.fixture
def told(node: Overlay, monkeypatch: pytest.MonkeyPatch) -> list[NodeId]:
    """Whom the node tells of a newcomer."""
    others: list[NodeId] = []

    def send(node_id: NodeId, body: Message | None, extra: object = None) -> None:
        if isinstance(body, Newcomer):
            others.append(node_id)

    monkeypatch.setattr(node, "_send", send)
    return others


def new_one(node: Overlay, away_ms: float, index: int = NEW, incarnation: int = 1) -> NodeRecord:
    """In one direction, at that round trip beside both access lines."""
    here = node.record.coordinate
    vector = (here.vector_ms[0] + away_ms, *here.vector_ms[1:])
    place = Coordinate(vector, 0.0, 0.1, here.factors)
    return msgspec.structs.replace(fake_record(index), coordinate=place, incarnation=incarnation)


def hear(node: Overlay, record: NodeRecord, now: float, teller: int = TELLER) -> None:
    node._take_newcomer(id_of(teller), Newcomer(pack(record), 3), now)


def test_who_looks_for_its_nearest_is_told_on_to_some_neighbours_once(
    node: Overlay, told: list[NodeId], network: FakeNetwork
) -> None:
    record = new_one(node, 5.0)
    request = SearchRequest(1, NearestTo(record.coordinate), record=pack(record), is_new=True)
    node._answer_search(record.node_id, request, network.now)
    assert len(set(told)) == len(told) == NEWCOMER_TOLD
    node._answer_search(record.node_id, request, network.now)
    assert len(told) == NEWCOMER_TOLD


def test_one_whose_place_is_settled_is_kept_in_mind_and_not_told_on(
    node: Overlay, told: list[NodeId], network: FakeNetwork
) -> None:
    record = new_one(node, 5.0)
    request = SearchRequest(1, NearestTo(record.coordinate), record=pack(record))
    node._answer_search(record.node_id, request, network.now)
    assert record.node_id in node._pointers
    assert not told


def test_a_lookup_says_whether_its_node_is_new(
    node: Overlay, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[bool] = []

    def say(record: NodeRecord, body: Message, now: float) -> None:
        assert isinstance(body, SearchRequest)
        said.append(body.is_new)

    monkeypatch.setattr(node, "_say", say)
    for probes, is_lookup in ((SETTLED_PROBES - 1, True), (SETTLED_PROBES, True), (0, False)):
        said.clear()
        node._estimator.updates = probes
        node.search(NearestTo(node.record.coordinate), 4, network.now, is_lookup=is_lookup)
        assert said
        assert set(said) == {is_lookup and probes < SETTLED_PROBES}


def test_who_is_told_knows_of_it_as_of_then_and_tells_others(
    node: Overlay, told: list[NodeId], network: FakeNetwork
) -> None:
    record = new_one(node, 5.0)
    hear(node, record, network.now)
    assert node._pointers.table[record.node_id].alive_at == network.now - 3.0
    assert len(told) == NEWCOMER_TOLD
    assert id_of(TELLER) not in told


def test_one_that_is_clearly_nearer_or_further_is_news(node: Overlay, told: list[NodeId], network: FakeNetwork) -> None:
    moves = ((80.0, True), (75.0, False), (30.0, True), (90.0, True), (95.0, False))
    for count, (away_ms, is_news) in enumerate(moves, start=1):
        told.clear()
        hear(node, new_one(node, away_ms, incarnation=count), network.now)
        assert bool(told) is is_news


def test_one_that_is_kept_only_while_there_is_room_is_not_told_on(
    node: Overlay, told: list[NodeId], network: FakeNetwork
) -> None:
    for index in range(NEAREST):
        near = new_one(node, 5.0 + index, 40 + index)
        node._point_to(near, pack(near), network.now)
    hear(node, new_one(node, 60.0), network.now)
    assert node._pointers.table[id_of(NEW)].covered
    assert not told


def test_those_who_may_take_one_for_near_hear_that_it_is_far(
    node: Overlay, told: list[NodeId], network: FakeNetwork
) -> None:
    hear(node, new_one(node, 3.0, incarnation=1), network.now)
    for index in range(NEAREST):
        near = new_one(node, 5.0 + index, 40 + index)
        node._point_to(near, pack(near), network.now)
    told.clear()
    hear(node, new_one(node, 60.0, incarnation=2), network.now)
    assert told
    told.clear()
    node._pointers.refresh(node.record.coordinate, node._links.table.values(), network.now, OLDEST_S)
    hear(node, new_one(node, 90.0, incarnation=3), network.now)
    assert not told, "nobody wants it where it was, nor where it is"


def test_one_that_is_not_kept_in_mind_is_not_told_on(node: Overlay, told: list[NodeId], network: FakeNetwork) -> None:
    for index in range(MAX_POINTERS):
        near = new_one(node, 5.0 + index, 40 + index)
        node._point_to(near, pack(near), network.now)
    hear(node, new_one(node, 40.0), network.now)
    assert id_of(NEW) not in node._pointers
    assert not told
    hear(node, new_one(node, 3.0, NEW + 1), network.now)
    assert told


def test_strangers_and_impossible_neighbours_are_not_believed(
    node: Overlay, told: list[NodeId], network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = new_one(node, 5.0)
    hear(node, record, network.now, teller=30)
    node._take_newcomer(id_of(TELLER), Newcomer(pack(record), NOT_KNOWN), network.now)
    monkeypatch.setattr(node, "_is_odd", lambda node_id: True)
    hear(node, record, network.now)
    assert record.node_id not in node._pointers
    assert not told


def test_a_crowd_of_new_ones_is_not_told_on_without_end(
    node: Overlay, told: list[NodeId], network: FakeNetwork
) -> None:
    for index in range(3 * NEWCOMERS_AT_ONCE):
        hear(node, new_one(node, 50.0 - index, NEW + index), network.now)
    assert len(told) == NEWCOMERS_AT_ONCE * NEWCOMER_TOLD
