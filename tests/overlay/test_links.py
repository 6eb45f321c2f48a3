"""Whom a node is linked with: the table of neighbours and of those that may become some."""

from __future__ import annotations

import math
import random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from overlay.config import MAX_CANDIDATES, PLACES_LEFT, OverlayConfig
from overlay.links import ANSWER_S, ASKS_AT_ONCE, ASKS_PER_S, FAR_ACCEPTED, NEARER, REFUSED_S, Links
from overlay.packing import pack
from overlay.records import NodeRecord, Status
from sbon.coordinate import Coordinate
from tests.overlay.fake_network import fake_record, id_of

CONFIG = OverlayConfig(dimensions=2, near_links=3, far_links=2, few_links=4, max_links=12)
HERE = Coordinate((0.0, 0.0), 0.0, 0.1)


def at(index: int, x_ms: float, y_ms: float = 0.0, incarnation: int = 0) -> NodeRecord:
    place = Coordinate((x_ms, y_ms), 0.0, 0.1, (0.0, 0.0, 0.0))
    return msgspec.structs.replace(fake_record(index), coordinate=place, incarnation=incarnation)


def linked(*near: NodeRecord, far: tuple[NodeRecord, ...] = (), seed: int = 1) -> Links:
    """Links made one second after the other, the near ones first."""
    links = Links(CONFIG, random.Random(seed))
    for second, record in enumerate([*near, *far]):
        links.add(record, pack(record), record in far, HERE, float(second))
        links.validate()
    return links


def wants(links: Links, record: NodeRecord) -> bool:
    """Whether it would ask that one for a near link; changes nothing."""
    wanted = links.propose(record, pack(record), HERE, 100.0)
    links.candidates.pop(record.node_id, None)
    return wanted


#: As many as may be near: three beside us, and others that nobody leads to.
BESIDE = [(1.0, 0.0), (2.0, 0.0), (3.0, 0.0)]
AROUND = BESIDE + [
    (50.0 * math.cos(math.tau * step / 5), 50.0 * math.sin(math.tau * step / 5))
    for step in range(CONFIG.max_links - PLACES_LEFT - len(BESIDE))
]
ROW = tuple(at(index, 10.0 * (index + 1)) for index in range(6))
FAR = (at(20, 0.0, 400.0), at(21, 0.0, 500.0), at(22, 0.0, 600.0))


# --- whom it wants


def test_with_few_links_everybody_is_wanted() -> None:
    assert wants(linked(*ROW[:3]), at(9, 9000.0))


def test_one_that_nobody_nearer_covers_is_wanted_and_one_behind_another_is_not() -> None:
    links = linked(*ROW)
    assert not wants(links, at(9, 200.0)), "all in the row are nearer to it than we are"
    assert wants(links, at(9, -200.0)), "nobody leads there"
    assert wants(links, at(9, 1.0)), "among the nearest"


def test_those_alike_are_wanted_and_not_the_hubs_that_are_near_to_all() -> None:
    here = Coordinate((0.0, 0.0), 30.0, 0.1)
    links = Links(CONFIG, random.Random(1))
    for index in range(CONFIG.few_links):
        alike = msgspec.structs.replace(at(index, 0.0), coordinate=Coordinate((float(index), 0.0), 30.0, 0.1))
        links.add(alike, pack(alike), False, here, 0.0)
    hub = at(9, 2.0)
    another = msgspec.structs.replace(at(10, 0.0), coordinate=Coordinate((0.5, 0.0), 30.0, 0.1))
    assert here.rtt_ms(hub.coordinate) < here.rtt_ms(another.coordinate)
    assert not links.propose(hub, pack(hub), here, 1.0)
    assert links.propose(another, pack(another), here, 1.0)


def test_one_is_as_good_as_another_that_is_hardly_nearer() -> None:
    links = linked(at(0, 100.0), at(1, 101.0), at(2, 102.0), at(3, 103.0))
    assert wants(links, at(9, 101.0 * NEARER, 5.0)), "those at its distance do not count against it"
    assert not wants(links, at(9, 120.0))


def test_a_random_link_covers_nobody() -> None:
    links = linked(*ROW[:3], far=(at(20, 0.0, 300.0), at(21, 0.0, 310.0)))
    assert wants(links, at(9, 0.0, 320.0))


def test_whom_it_knows_or_has_asked_is_not_asked_again() -> None:
    links = linked(*ROW)
    record = at(9, 1.0)
    assert not links.propose(ROW[0], pack(ROW[0]), HERE, 50.0)
    assert links.propose(record, pack(record), HERE, 50.0)
    assert not links.propose(record, pack(record), HERE, 50.0)
    links.expire(50.0 + ANSWER_S)
    assert links.propose(record, pack(record), HERE, 54.0)


def test_one_that_refused_is_left_alone_for_a_while() -> None:
    links = linked(*ROW)
    record = at(9, 1.0)
    links.refused(record, pack(record), 50.0)
    links.expire(50.0 + REFUSED_S - 1.0)
    assert not links.propose(record, pack(record), HERE, 109.0)
    links.expire(50.0 + REFUSED_S)
    assert links.propose(record, pack(record), HERE, 110.0)


def test_one_that_refused_makes_room_for_one_that_may_accept() -> None:
    links = linked()
    for index in range(MAX_CANDIDATES):
        record = at(30 + index, 10.0)
        links.refused(record, pack(record), 0.0)
    newcomer = at(9, 1.0)
    assert links.propose(newcomer, pack(newcomer), HERE, 1.0)
    links.validate()
    assert id_of(30) not in links.candidates


def test_random_links_are_looked_for_until_there_are_enough() -> None:
    links = linked(*ROW)
    assert links.propose_far(FAR[0], pack(FAR[0]), 1.0)
    assert links.propose_far(FAR[1], pack(FAR[1]), 1.0)
    assert not links.propose_far(FAR[2], pack(FAR[2]), 1.0), "two are asked"
    links.expire(1.0 + ANSWER_S)
    assert links.propose_far(FAR[2], pack(FAR[2]), 5.0)


def test_who_asks_and_asks_is_bounded() -> None:
    links = linked(*ROW)
    times = [0.1 * step for step in range(6000)]
    asked = 0
    for number, now in enumerate(times):
        record = at(100 + number, 1.0)
        asked += links.propose(record, pack(record), HERE, 1000.0 + now)
        links.candidates.clear()
    assert ASKS_AT_ONCE + 0.9 * ASKS_PER_S * times[-1] <= asked <= ASKS_AT_ONCE + 1.0 + ASKS_PER_S * times[-1]


def test_a_full_one_that_has_nobody_to_part_with_does_not_ask() -> None:
    crowd = [at(index, *place) for index, place in enumerate(AROUND)]
    links = linked(*crowd)
    assert links._surplus() is None, "nobody covers anybody"
    assert not wants(links, at(90, 1.0))


# --- whom it accepts


def test_a_place_or_some_are_kept_for_random_links() -> None:
    crowd = [at(index, 50.0 + index) for index in range(CONFIG.max_links - PLACES_LEFT)]
    links = linked(*crowd)
    assert links.accepts(at(30, 300.0), False, HERE) == (False, None)
    assert links.accepts(at(30, 300.0), True, HERE) == (True, None)


def test_a_nearer_one_is_taken_in_and_one_that_leads_nowhere_goes_for_it() -> None:
    crowd = [at(index, 50.0 + index) for index in range(CONFIG.max_links - PLACES_LEFT)]
    links = linked(*crowd)
    assert links.accepts(at(30, 1.0), False, HERE) == (True, crowd[-1].node_id)


def test_random_links_are_not_given_to_everybody() -> None:
    far = tuple(at(20 + index, 0.0, 300.0 + index) for index in range(FAR_ACCEPTED * CONFIG.far_links))
    links = linked(*ROW[:1], far=far)
    assert links.accepts(at(30, 10.0), True, HERE) == (False, None)
    assert links.accepts(far[0], True, HERE) == (True, None), "it is one already"


# --- what is kept


def test_a_newer_record_replaces_an_older_one_and_never_the_other_way() -> None:
    links = linked(*ROW)
    moved = at(0, 70.0, incarnation=2)
    link = links.add(moved, pack(moved), False, HERE, 9.0)
    assert (link.record, link.away_ms, link.since) == (moved, 70.0, 0.0)
    old = at(0, 5.0, incarnation=1)
    assert links.add(old, pack(old), False, HERE, 9.0).record == moved


def test_distances_follow_when_we_move() -> None:
    links = linked(*ROW)
    links.moved(Coordinate((60.0, 0.0), 0.0, 0.1))
    assert [round(links.table[record.node_id].away_ms) for record in ROW] == [50, 40, 30, 20, 10, 0]


def test_a_suspect_is_shown_as_one() -> None:
    links = linked(*ROW)
    links.table[id_of(0)].suspect = True
    assert links.table[id_of(0)].shown.status is Status.SUSPECT
    assert links.table[id_of(1)].shown.status is Status.ALIVE


# --- whom it parts with


def test_with_too_many_links_the_farthest_that_leads_nowhere_goes() -> None:
    crowd = [at(index, 50.0 + index) for index in range(8)]
    links = linked(*crowd, at(8, -500.0))
    assert links.to_drop(10.0) == crowd[-1].node_id


def test_the_oldest_random_link_goes_once_it_has_lived_long_enough() -> None:
    links = linked(*ROW[:4], far=FAR[:2])
    since = links.table[FAR[0].node_id].since
    assert links.to_drop(since + CONFIG.far_link_lifetime_s) is None
    assert links.to_drop(since + CONFIG.far_link_lifetime_s + 1.0) == FAR[0].node_id
    assert linked(*ROW[:1], far=FAR[:2]).to_drop(1000.0) is None, "few links are kept"


# --- for others


def test_others_are_told_of_those_alike_to_them_but_not_of_suspects() -> None:
    links = linked(*ROW, far=FAR)
    links.table[id_of(5)].suspect = True
    near = links.most_alike(Coordinate((60.0, 0.0), 0.0, 0.1), 3, lambda node_id: node_id == id_of(3))
    assert [link.record.node_id for link in near] == [id_of(4), id_of(2), id_of(1)]


def test_a_walk_goes_over_random_links_as_long_as_there_are_any() -> None:
    links = linked(*ROW, far=FAR)
    for _ in range(50):
        step = links.random_far()
        assert step is not None
        assert step.far
    step = linked(*ROW).random_far()
    assert step is not None
    assert step.record in ROW
    assert linked().random_far() is None


places = st.tuples(st.floats(-500.0, 500.0), st.floats(-500.0, 500.0))


@given(st.lists(st.tuples(places, st.booleans(), st.booleans()), max_size=60))
def test_the_table_is_bounded_whatever_others_ask(requests: list[tuple[tuple[float, float], bool, bool]]) -> None:
    """Who is refused has no place; whoever has to go for another is a neighbour, and not among the nearest."""
    links = Links(CONFIG, random.Random(1))
    for index, ((x_ms, y_ms), far, ours) in enumerate(requests):
        record = at(index, x_ms, y_ms)
        if ours:
            links.propose_far(record, pack(record), 0.0) if far else links.propose(record, pack(record), HERE, 0.0)
        accepted, instead = links.accepts(record, far, HERE)
        if instead is not None:
            assert accepted
            gone = links.remove(instead)
            assert gone is not None
            kept = sorted(link.away_ms for link in links.table.values() if not link.far)
            assert gone.far or gone.away_ms >= kept[CONFIG.near_links - 1]
        if accepted:
            links.add(record, pack(record), far, HERE, float(index))
        links.validate()
