"""What nodes answer to each other's questions after third ones: who lives, and where."""

from __future__ import annotations

import msgspec
import pytest

from overlay.config import OverlayConfig
from overlay.messages import (
    Exchange,
    ExchangeReply,
    LinkReply,
    LinkRequest,
    Message,
    SearchReply,
    SearchRequest,
)
from overlay.naming import NOT_KNOWN, id_end, with_ages
from overlay.neighbourhood import NEWS_INTERVAL_S, SETTLING_NEWS_INTERVAL_S
from overlay.node import AFTER_DEATH_S, LOOKUP_S, MAX_LOOKUP_S, SETTLED_LONGER, SETTLING_LOOKUP_S, Overlay
from overlay.packing import pack, packed_node_id, unpack
from overlay.pointers import OLDEST_AT_REST_S
from overlay.records import NodeRecord
from overlay.wire import decode
from sbon.coordinate import Coordinate
from sbon.coordinate_estimator import SETTLED_PROBES
from sbon.objectives import Endpoint, LeastUsage, NearestTo, heaviest
from tests import truth
from tests.overlay.fake_network import FakeNetwork, fake_record, full_mesh, id_of

FIVE = truth.cloud_regions(5)
ANSWERER, ASKER = 0, 1
PLACE = Coordinate((1.0, 2.0, 3.0, 4.0), 1.0, 0.1)


def asked(network: FakeNetwork, question: Message) -> Message:
    """What node 0 answers to node 1."""
    answerer, asker = network.nodes[ANSWERER], network.nodes[ASKER]
    answerer._dispatch(id_of(ASKER), question, network.now)
    ((answer, _),) = answerer.datagrams_to_send(network.now)
    received = asker._sessions.receive(answer, answerer.record.address, network.now)
    assert received is not None
    return decode(received.body)


def question(network: FakeNetwork, **known: int) -> Exchange:
    """Node 1 asks about nodes, of which it knows these incarnations."""
    ids = [id_of(int(name[1:])) for name in known]
    packed = pack(network.nodes[ASKER].record)
    return Exchange(packed, b"".join(map(id_end, ids)), bytes(known.values()))


def named(answer: Message) -> set[str]:
    assert isinstance(answer, (ExchangeReply, SearchReply))
    return {unpack(packed, 4).node_id for packed in answer.records}


def heard_of(node: Overlay, record: NodeRecord, age_s: float) -> None:
    """Somebody told the node of one that is there no more, so that it is a pointer."""
    packed = pack(record)
    node._point_to(record, packed, node._now - age_s)
    assert record.node_id in node._pointers


def a_pointer(incarnation: int) -> NodeRecord:
    return msgspec.structs.replace(fake_record(20), coordinate=PLACE, incarnation=incarnation)


def test_who_is_asked_tells_of_itself_if_that_is_news() -> None:
    network = full_mesh(FIVE)
    incarnation = network.nodes[ANSWERER].record.incarnation % 256
    assert id_of(ANSWERER) in named(asked(network, question(network, n0=incarnation - 1)))
    answer = asked(network, question(network, n0=incarnation))
    assert id_of(ANSWERER) not in named(answer)
    assert isinstance(answer, ExchangeReply)
    assert answer.alive == b"\0", "it is there, and as it is known"


def test_only_who_knows_the_same_version_says_how_long_ago_it_was_true() -> None:
    network = full_mesh(FIVE)
    heard_of(network.nodes[ANSWERER], a_pointer(7), 30.0)
    same, older, newer = (asked(network, question(network, n20=incarnation)) for incarnation in (7, 8, 6))
    assert isinstance(same, ExchangeReply)
    assert isinstance(older, ExchangeReply)
    assert isinstance(newer, ExchangeReply)
    assert (same.alive[0], older.alive[0]) == (30, NOT_KNOWN)
    assert id_of(20) not in named(same) | named(older)
    assert id_of(20) in named(newer)


def test_a_search_names_those_that_the_asker_does_not_know_as_they_are() -> None:
    network = full_mesh(FIVE)
    versions = {index: network.nodes[index].record.incarnation % 256 for index in (2, 3)}
    versions[3] = (versions[3] - 1) % 256
    known = b"".join(id_end(id_of(index)) for index in versions)
    request = SearchRequest(1, NearestTo(PLACE), known, bytes(versions.values()))
    assert named(asked(network, request)) == {id_of(3), id_of(4)}


def test_a_search_tells_how_long_ago_those_were_alive_that_it_names() -> None:
    network = full_mesh(FIVE)
    heard_of(network.nodes[ANSWERER], a_pointer(7), 30.0)
    answer = asked(network, SearchRequest(1, NearestTo(PLACE)))
    assert isinstance(answer, SearchReply)
    ages = {packed_node_id(packed): age_s for packed, age_s in with_ages(answer.records, answer.ages)}
    assert ages.pop(id_of(20)) == 30.0
    assert max(ages.values()) < OverlayConfig().silence_s, "neighbours"


def test_who_looks_for_its_own_nearest_becomes_known_to_them() -> None:
    network = full_mesh(FIVE)
    answerer, asker = network.nodes[ANSWERER], network.nodes[ASKER]
    answerer._drop_link(id_of(ASKER))
    for record, is_known in ((b"", False), (pack(asker.record), True)):
        answerer._dispatch(id_of(ASKER), SearchRequest(1, NearestTo(PLACE), record=record), network.now)
        known = {**answerer._pointers.table, **answerer._links.candidates}
        assert (id_of(ASKER) in known) is is_known


@pytest.mark.parametrize(
    ("is_lookup", "age_s", "is_taken_in"), [(True, 5, True), (True, OLDEST_AT_REST_S + 1, False), (False, 5, False)]
)
def test_who_looks_for_its_own_nearest_takes_in_whom_they_name(
    is_lookup: bool, age_s: float, is_taken_in: bool
) -> None:
    network = full_mesh(FIVE)
    asker = network.nodes[ASKER]
    search_id = asker.search(NearestTo(PLACE), 12, network.now, is_lookup=is_lookup)
    search = asker._searches[search_id]
    (asked_id,) = search._waiting
    search._max_contacts = 0  # it ends with this answer
    answerer = next(node for node in network.nodes.values() if node.record.node_id == asked_id)
    reply = SearchReply(search_id, pack(answerer.record), (pack(a_pointer(1)),), bytes([int(age_s)]))
    asker._dispatch(asked_id, reply, network.now)
    assert (id_of(20) in asker._pointers) is is_taken_in


def test_who_only_asks_is_not_probed_and_makes_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or those nearby, who ask much while places settle, would be all that a node measures."""
    network = full_mesh(FIVE)
    node, now = network.nodes[ANSWERER], network.now
    strangers = [id_of(index) for index in range(20, 20 + node._config.max_strangers)]
    for node_id in strangers:
        node._meet(node_id, boot_id=1)
        node._note_probed(node_id)
    node._strangers[strangers[3]].is_probed = False
    probed: list[str] = []
    monkeypatch.setattr(node, "_ping", lambda node_id, *, is_probe: probed.append(node_id))
    node._samples.clear()
    for _ in range(2 * len(strangers)):  # neighbours have every other turn
        node._probe(now + 60.0)
        node._prober.sent(probed[-1], now + 60.0, is_probe=True)
    assert set(strangers) - set(probed) == {strangers[3]}
    node._meet(id_of(40), boot_id=1)
    assert set(strangers) - node._strangers.keys() == {strangers[3]}
    node._note_probed(id_of(40))
    node._meet(id_of(41), boot_id=1)
    assert set(strangers) - node._strangers.keys() == {strangers[3], strangers[0]}, "the one not heard of for longest"


def test_who_moves_while_its_place_settles_looks_again_but_not_at_once() -> None:
    network = full_mesh(FIVE)
    node, now = network.nodes[ASKER], network.now
    for looked_at, looks_at in ((now - 2.0 * LOOKUP_S, now), (now - 1.0, now - 1.0 + LOOKUP_S)):
        node._lookup_at, node._looked_up_at = now + 30.0, looked_at
        node._place_changed(now)
        assert node._lookup_at == looks_at


def test_who_loses_a_neighbour_looks_for_its_nearest_soon_and_now_and_then_from_then_on() -> None:
    network = full_mesh(FIVE)
    node, now = network.nodes[ASKER], network.now
    for index, looked_at, looks_at in ((2, now - 2.0 * AFTER_DEATH_S, now), (3, now - 1.0, now - 1.0 + AFTER_DEATH_S)):
        node._lookup_at, node._lookup_interval_s, node._looked_up_at = now + 300.0, MAX_LOOKUP_S, looked_at
        node._give_up(id_of(index), now)
        assert node._lookup_at == looks_at
        node._look_up_own_place(now)
        assert node._lookup_at < now + 2.0 * AFTER_DEATH_S


def test_looks_grow_rare_up_to_a_bound_once_a_place_is_settled_and_up_to_a_lesser_one_until_then() -> None:
    network = full_mesh(FIVE)
    node = network.nodes[ASKER]

    def intervals(probes: int) -> list[float]:
        node._estimator.updates = probes
        seen = []
        for _ in range(5):
            node._look_up_own_place(network.now)
            seen.append(node._lookup_interval_s)
        return seen

    node._lookup_interval_s = LOOKUP_S
    assert intervals(SETTLED_PROBES - 1) == [10.0, 20.0, 40.0, SETTLING_LOOKUP_S, SETTLING_LOOKUP_S]
    longer = SETTLED_LONGER * SETTLING_LOOKUP_S
    settled = [longer, SETTLED_LONGER * longer, MAX_LOOKUP_S, MAX_LOOKUP_S, MAX_LOOKUP_S]
    assert intervals(SETTLED_PROBES) == settled


@pytest.mark.parametrize(
    ("probes", "interval_s"), [(SETTLED_PROBES - 1, SETTLING_NEWS_INTERVAL_S), (SETTLED_PROBES, NEWS_INTERVAL_S)]
)
def test_a_neighbour_hears_news_now_and_then_and_more_often_while_a_place_settles(
    probes: int, interval_s: float
) -> None:
    network = full_mesh(FIVE)
    node, now = network.nodes[ASKER], network.now
    node._estimator.updates = probes
    link = node._links.table[id_of(ANSWERER)]
    for ago_s, is_told in ((interval_s - 0.1, False), (interval_s + 0.1, True)):
        link.news_at, link.told_incarnation = now - ago_s, -1
        node._tell_news(now)
        assert (link.told_incarnation == node.record.incarnation) is is_told


def test_what_is_asked_fits_a_datagram_and_what_cannot_is_refused_at_once() -> None:
    network = full_mesh(FIVE)
    ends = [Endpoint(PLACE, 1000.0 / 3.0, id_of(ANSWERER)) for _ in range(20)]
    found = network.search(ASKER, LeastUsage(heaviest(ends)), 2)
    assert len(found.found) == 2
    assert found.contacts > 0
    with pytest.raises(ValueError, match="over the limit"):
        network.nodes[ASKER].search(LeastUsage(tuple(ends)), 2, network.now)


def test_one_at_odds_with_what_is_measured_is_told_that_it_is_no_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    network = full_mesh(FIVE)
    answerer = network.nodes[ANSWERER]
    request = LinkRequest(pack(network.nodes[ASKER].record), far=False)
    monkeypatch.setattr(answerer, "_is_odd", lambda node_id: node_id == id_of(ASKER))
    answer = asked(network, request)
    assert isinstance(answer, LinkReply)
    assert answer.accepted, "it is one already: both shall think the same of it"
    answerer._drop_link(id_of(ASKER))
    answer = asked(network, request)
    assert isinstance(answer, LinkReply)
    assert not answer.accepted
    assert id_of(ASKER) not in {record.node_id for record in answerer.members()}
