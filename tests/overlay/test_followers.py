"""Who was asked in a search, and is elsewhere before the search is over, says so."""

from __future__ import annotations

import msgspec
import pytest

from overlay.followers import FOLLOWED_S, MAX_FOLLOWERS
from overlay.identity import NodeId
from overlay.messages import Message, SearchReply, SearchRequest
from overlay.node import Overlay
from overlay.packing import pack, unpack
from overlay.records import NodeRecord
from sbon.coordinate import Coordinate
from sbon.objectives import NearestTo
from tests import truth
from tests.overlay.fake_network import FakeNetwork, full_mesh, id_of

ASKER, ASKED = 0, 1
PLACE = Coordinate((1.0, 2.0, 3.0, 4.0), 1.0, 0.1)


@pytest.fixture
def network() -> FakeNetwork:
    return full_mesh(truth.cloud_regions(5))


@pytest.fixture
def asker(network: FakeNetwork) -> Overlay:
    return network.nodes[ASKER]


@pytest.fixture
def asked(network: FakeNetwork) -> Overlay:
    return network.nodes[ASKED]


@pytest.fixture
def told(asked: Overlay, monkeypatch: pytest.MonkeyPatch) -> list[tuple[NodeId, SearchReply]]:
    """Whom the one that was asked answers from now on."""
    replies: list[tuple[NodeId, SearchReply]] = []

    def send(node_id: NodeId, body: Message | None, extra: object = None) -> None:
        if isinstance(body, SearchReply):
            replies.append((node_id, body))

    monkeypatch.setattr(asked, "_send", send)
    return replies


def question(search_id: int, introduction: bytes = b"") -> SearchRequest:
    return SearchRequest(search_id, NearestTo(PLACE), record=introduction)


def moved(record: NodeRecord) -> NodeRecord:
    return msgspec.structs.replace(record, coordinate=PLACE, incarnation=record.incarnation + 1)


# --- the one that was asked


def test_who_was_asked_tells_the_asker_what_has_changed_for_as_long_as_searches_take(
    network: FakeNetwork, asked: Overlay, told: list[tuple[NodeId, SearchReply]]
) -> None:
    now = network.now
    asked._dispatch(id_of(ASKER), question(7), now)
    told.clear()
    asked.set_load(1.0, now + 1.0)
    ((asker_id, reply),) = told
    assert (asker_id, reply.search_id, reply.records) == (id_of(ASKER), 7, ())
    assert unpack(reply.record, 4) == asked.record
    told.clear()
    asked.set_load(2.0, now + FOLLOWED_S + 0.1)
    assert not told


def test_each_search_hears_of_it_once(
    network: FakeNetwork, asked: Overlay, told: list[tuple[NodeId, SearchReply]]
) -> None:
    for search_id in (7, 8, 7):
        asked._dispatch(id_of(ASKER), question(search_id), network.now)
    told.clear()
    asked.set_load(1.0, network.now)
    assert sorted(reply.search_id for _, reply in told) == [7, 8]


def test_the_latest_searches_are_told_if_there_are_too_many(
    network: FakeNetwork, asked: Overlay, told: list[tuple[NodeId, SearchReply]]
) -> None:
    for search_id in range(MAX_FOLLOWERS + 3):
        asked._dispatch(id_of(ASKER), question(search_id), network.now)
    told.clear()
    asked.set_load(1.0, network.now)
    assert [reply.search_id for _, reply in told] == list(range(3, MAX_FOLLOWERS + 3))


def test_who_has_no_session_any_more_is_forgotten(
    network: FakeNetwork, asked: Overlay, told: list[tuple[NodeId, SearchReply]]
) -> None:
    asked._dispatch(id_of(ASKER), question(7), network.now)
    asked._dispatch(id_of(ASKER + 2), question(8), network.now)
    asked._close(id_of(ASKER))
    told.clear()
    asked.set_load(1.0, network.now)
    assert [asker_id for asker_id, _ in told] == [id_of(ASKER + 2)]


def test_who_looks_for_its_own_nearest_is_not_told(
    network: FakeNetwork, asker: Overlay, asked: Overlay, told: list[tuple[NodeId, SearchReply]]
) -> None:
    asked._dispatch(id_of(ASKER), question(7, pack(asker.record)), network.now)
    told.clear()
    asked.set_load(1.0, network.now)
    assert not told


# --- the one that asks


def test_a_search_takes_in_what_those_say_of_themselves_that_have_answered(
    network: FakeNetwork, asker: Overlay, asked: Overlay
) -> None:
    search_id = asker.search(NearestTo(PLACE), 2, network.now)
    search, there = asker._searches[search_id], moved(asked.record)
    before = search._found[id_of(ASKED)].cost
    news = SearchReply(search_id, pack(there), ())
    search._waiting.pop(id_of(ASKED), None)
    search._found[id_of(ASKED)].asked = False
    asker._dispatch(id_of(ASKED), news, network.now)
    assert search._found[id_of(ASKED)].cost == before, "it was not asked: who knows why it speaks"
    search._found[id_of(ASKED)].asked = True
    asker._dispatch(id_of(ASKED), news, network.now)
    assert search._found[id_of(ASKED)].record.incarnation == there.incarnation
    assert search._found[id_of(ASKED)].cost < before


@pytest.mark.parametrize("is_lookup", [False, True])
def test_a_search_concerns_those_that_it_has_found_and_who_has_asked(
    network: FakeNetwork, asker: Overlay, asked: Overlay, *, is_lookup: bool
) -> None:
    assert not asker._concerned_by_searches()
    search_id = asker.search(NearestTo(PLACE), 2, network.now, is_lookup=is_lookup)
    found = {record.node_id for record in asker._searches[search_id].result()}
    assert found
    assert asker._concerned_by_searches() == (set() if is_lookup else found)
    asked._dispatch(id_of(ASKER), question(7, pack(asker.record) if is_lookup else b""), network.now)
    assert asked._concerned_by_searches() == (set() if is_lookup else {id_of(ASKER)})


def test_those_that_a_search_concerns_make_room_last(
    network: FakeNetwork, asker: Overlay, monkeypatch: pytest.MonkeyPatch
) -> None:
    strangers = [id_of(index) for index in range(20, 20 + asker._config.max_strangers)]
    for node_id in strangers:
        asker._meet(node_id, boot_id=1)
    monkeypatch.setattr(asker, "_concerned_by_searches", lambda: set(strangers[:2]))
    asker._meet(id_of(40), boot_id=1)
    assert set(strangers) - asker._strangers.keys() == {strangers[2]}
