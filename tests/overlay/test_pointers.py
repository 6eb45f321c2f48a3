"""Nodes that are known of without a link."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from overlay.config import MAX_POINTERS
from overlay.packing import pack
from overlay.pointers import (
    DOUBTFUL_S,
    NEAREST,
    OLDEST_AT_REST_S,
    OLDEST_S,
    Pointer,
    Pointers,
    keep_s,
    worth_knowing,
)
from overlay.records import NodeRecord
from sbon.coordinate import Coordinate
from tests.overlay.fake_network import fake_record, id_of

HERE = Coordinate((0.0, 0.0), 0.0, 0.1)


def at(index: int, x_ms: float, y_ms: float = 0.0, load: float = 0.0, incarnation: int = 0) -> NodeRecord:
    place = Coordinate((x_ms, y_ms), 0.0, 0.1, (0.0, 0.0, 0.0))
    return msgspec.structs.replace(fake_record(index), coordinate=place, load=load, incarnation=incarnation)


def told(
    *records: NodeRecord, pointers: Pointers | None = None, alive_at: float = 0.0, neighbours: tuple[Pointer, ...] = ()
) -> Pointers:
    pointers = pointers or Pointers()
    for record in records:
        pointers.consider(record, pack(record), alive_at, HERE, neighbours)
        pointers.validate()
    return pointers


def neighbour(record: NodeRecord) -> Pointer:
    pointer = Pointer(record, b"", 0.0)
    pointer.seen_from(HERE)
    return pointer


def test_the_nearest_are_remembered_and_the_nearest_idle_ones() -> None:
    crowd = [at(index, 10.0 + index, load=float(index % 2)) for index in range(2 * MAX_POINTERS)]
    pointers = told(*crowd)
    nearest = [record.node_id for record in crowd[:NEAREST]]
    idle = [record.node_id for record in crowd[NEAREST:] if record.load == 0.0]
    assert pointers.table.keys() == {*nearest, *idle[: MAX_POINTERS - NEAREST]}


def test_one_whom_nobody_nearer_covers_is_remembered_however_far_it_is() -> None:
    crowd = [at(index, 10.0 + 0.1 * index) for index in range(2 * MAX_POINTERS)]
    behind, elsewhere = at(100, 19.0), at(101, 0.0, 300.0)
    pointers = told(*crowd, behind, elsewhere)
    assert elsewhere.node_id in pointers.table
    assert not pointers.table[elsewhere.node_id].covered
    assert behind.node_id not in pointers.table


def test_hubs_are_remembered_though_others_are_nearer() -> None:
    behind_lines = [
        msgspec.structs.replace(at(index, 0.0), coordinate=Coordinate((5.0 + 0.1 * index, 0.0), 20.0, 0.1))
        for index in range(2 * MAX_POINTERS)
    ]
    hub = at(100, 40.0)
    assert hub.node_id in told(*behind_lines, hub).table
    assert hub.node_id in told(hub, *behind_lines).table


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.booleans()), min_size=10, max_size=MAX_POINTERS),
    st.integers(0, 20),
)
def test_those_are_forgotten_that_a_sorted_table_would_have_last(
    places: list[tuple[int, int, bool]], most: int
) -> None:
    pointers = Pointers()
    for index, (away_ms, hub_ms, covered) in enumerate(places):
        pointer = pointers.table[at(index, 0.0).node_id] = Pointer(at(index, 0.0), b"", 0.0, covered)
        pointer.away_ms, pointer.hub_ms = float(away_ms), float(hub_ms)
    left = dict(pointers.table)
    while len(left) > most:
        by_distance = sorted(left, key=lambda node_id: (left[node_id].away_ms, node_id))
        hubs = sorted(by_distance[NEAREST:], key=lambda node_id: (left[node_id].covered, left[node_id].hub_ms, node_id))
        del left[[*by_distance[:NEAREST], *hubs][-1]]
    pointers.shrink(most)
    assert pointers.table.keys() == left.keys()


def test_whom_to_name_are_by_turns_the_alike_the_near_and_the_hubs() -> None:
    there = Coordinate((0.0, 0.0), 30.0, 0.1)

    def named(index: int, x_ms: float, height_ms: float) -> tuple[NodeRecord, bytes, float]:
        record = msgspec.structs.replace(at(index, 0.0), coordinate=Coordinate((x_ms, 0.0), height_ms, 0.1))
        return record, pack(record), 1.0

    alike, near, hub, nobody = named(1, 10.0, 28.0), named(2, 5.0, 10.0), named(3, 17.0, 0.0), named(4, 60.0, 9.0)
    assert worth_knowing([nobody, hub, near, alike], there, 3) == [alike, near, hub]
    assert worth_knowing([], there, 3) == []


def test_a_hub_that_another_covers_is_not_named_whoever_knows_that_one() -> None:
    def named(record: NodeRecord) -> tuple[NodeRecord, bytes, float]:
        return record, pack(record), 1.0

    crowd = [at(index, 1.0 + 0.1 * index) for index in range(NEAREST)]
    alike, hub, behind_it, elsewhere = at(100, 20.0), at(101, 0.0, 60.0), at(102, 0.0, 70.0), at(103, -300.0)
    known = [named(elsewhere), named(behind_it), named(alike)]
    assert worth_knowing([*known, named(hub)], HERE, 3, crowd) == [named(alike), named(hub), named(elsewhere)]
    assert worth_knowing(known, HERE, 3, [*crowd, hub]) == [named(alike), named(elsewhere)]
    assert worth_knowing(known, HERE, 3, [*crowd, hub], welcome=True)[2:] == [named(behind_it)]


def test_a_neighbour_covers_too() -> None:
    crowd = [at(index, 10.0 + 0.1 * index) for index in range(2 * MAX_POINTERS)]
    elsewhere = at(101, 0.0, 300.0)
    pointers = told(*crowd, elsewhere, neighbours=(neighbour(at(102, 0.0, 200.0)),))
    assert elsewhere.node_id not in pointers.table


def test_one_that_comes_between_covers_those_behind_it() -> None:
    pointers = told(at(1, 100.0), at(2, 60.0))
    assert pointers.table[id_of(1)].covered
    assert not pointers.table[id_of(2)].covered
    pointers.remove(id_of(2))
    pointers.refresh(HERE, (), 0.0, OLDEST_S)
    assert not pointers.table[id_of(1)].covered


def test_one_that_is_hardly_more_alike_covers_nobody() -> None:
    """It would hide the second best of the next region from all who are not there."""
    pointers = told(at(1, 100.0), at(2, 15.0))
    assert not pointers.table[id_of(1)].covered


def test_news_replace_what_is_known_and_old_news_do_not() -> None:
    pointers = told(at(1, 100.0, incarnation=2), at(1, 10.0, incarnation=1))
    assert pointers.table[id_of(1)].away_ms == 100.0
    told(at(1, 20.0, incarnation=3), pointers=pointers)
    assert pointers.table[id_of(1)].away_ms == 20.0


def test_of_the_nearest_the_one_is_asked_that_nothing_was_heard_of_for_longest() -> None:
    hub = at(100, 300.0)
    pointers = told(hub)
    for index in range(NEAREST):
        told(at(index, 10.0 + index), pointers=pointers, alive_at=20.0 - index)
    assert sorted(pointers.nearest()) == sorted(map(id_of, range(NEAREST)))
    asked: list[str] = []
    while (pointer := pointers.nearest_to_ask(asked.__contains__)) is not None:
        asked.append(pointer.record.node_id)
    assert asked == [id_of(index) for index in reversed(range(NEAREST))]
    assert hub.node_id in pointers.table


def test_what_nothing_is_heard_of_is_doubted_and_then_forgotten() -> None:
    pointers = told(at(1, 100.0))
    assert pointers.most_doubtful(DOUBTFUL_S) is None
    doubtful = pointers.most_doubtful(DOUBTFUL_S + 1.0)
    assert doubtful is not None
    assert doubtful.record.node_id == id_of(1)
    pointers.hear(id_of(1), 10.0)
    pointers.refresh(HERE, (), OLDEST_S + 5.0, OLDEST_S)
    assert id_of(1) in pointers.table
    pointers.refresh(HERE, (), OLDEST_S + 11.0, OLDEST_S)
    assert id_of(1) not in pointers.table


def test_the_more_has_changed_the_sooner_one_is_forgotten() -> None:
    kept_s = [keep_s(changes) for changes in range(10)]
    assert kept_s[0] == OLDEST_AT_REST_S
    assert kept_s == sorted(kept_s, reverse=True)
    assert kept_s[-1] == OLDEST_S


def test_only_who_knows_it_as_it_is_can_say_that_it_was_there() -> None:
    pointers = told(at(1, 100.0, incarnation=2), alive_at=10.0)
    told(at(1, 100.0, incarnation=1), pointers=pointers, alive_at=50.0)
    assert pointers.table[id_of(1)].alive_at == 10.0, "where it was is no news of where it is"
    told(at(1, 100.0, incarnation=2), pointers=pointers, alive_at=30.0)
    assert pointers.table[id_of(1)].alive_at == 30.0
    told(at(1, 90.0, incarnation=3), pointers=pointers, alive_at=20.0)
    assert (pointers.table[id_of(1)].alive_at, pointers.table[id_of(1)].away_ms) == (30.0, 90.0)
