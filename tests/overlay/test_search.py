"""One search under way: whom it asks, and when it is over. Whole searches over an overlay are in test_node."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.naming import id_end, id_ends
from overlay.records import NodeRecord
from overlay.search import (
    BY_COST,
    CHECKED,
    CHECKS,
    GOOD,
    MANY_DEAD,
    MAX_CONTACTS,
    MAX_FOUND,
    MAX_K,
    MOST_CHECKS,
    MOST_MORE,
    PARALLEL,
    PER_DEAD,
    Search,
)
from sbon.coordinate import Coordinate
from sbon.objectives import NearestTo
from tests.overlay.fake_network import fake_record, id_of

TARGET = NearestTo(Coordinate((0.0,), 0.0, 0.1))


def host(index: int, away_ms: float, incarnation: int = 0) -> NodeRecord:
    place = Coordinate((away_ms,), 0.0, 0.1)
    return msgspec.structs.replace(fake_record(index), coordinate=place, incarnation=incarnation)


def search_among(*hosts: NodeRecord, k: int = 1, max_contacts: int = MAX_CONTACTS) -> Search:
    search = Search(TARGET, k, 1.0, max_contacts)
    for record in hosts:
        search.know(record)
    return search


def asked(search: Search, now: float = 0.0) -> list[str]:
    return [record.node_id for record in search.to_ask(now)]


def finish(search: Search) -> int:
    """Everybody answers, and knows nobody new. Returns how many were asked."""
    while not search.is_over:
        for node_id in asked(search):
            assert search.answered(node_id)
    return search.contacts


def test_the_best_known_is_asked_first_and_alone() -> None:
    search = search_among(host(1, 30.0), host(2, 10.0), host(3, 20.0))
    assert asked(search) == [id_of(2)]
    assert asked(search) == [], "its answer may tell of a better one"
    assert not search.is_over


def test_one_that_comes_up_nearer_is_asked_next() -> None:
    search = search_among(host(1, 30.0))
    assert asked(search) == [id_of(1)]
    assert search.answered(id_of(1))
    search.know(host(2, 40.0))
    search.know(host(3, 5.0))
    assert asked(search) == [id_of(3)]


def test_as_long_as_answers_change_the_result_each_is_waited_for() -> None:
    search = search_among(*(host(index, 10.0 * index) for index in range(1, 20)), k=3)
    (best,) = asked(search)
    assert search.answered(best)
    (second,) = asked(search)
    assert second == id_of(2)
    assert asked(search) == [], "its answer may change the result, too"
    assert search.answered(second)
    waiting = asked(search)
    assert len(waiting) == 2, "it has not"
    while len(waiting) < PARALLEL:
        assert search.answered(waiting.pop())
        more = asked(search)
        assert len(more) == 2, "for the one that has answered, and since it has changed nothing"
        waiting += more
    assert search.answered(waiting.pop())
    search.know(host(20, 11.0))
    assert asked(search) == []
    for node_id in waiting:
        assert search.answered(node_id)
    assert id_of(20) in asked(search)


def test_a_lookup_and_a_search_where_hosts_die_ask_several_at_a_time_from_the_first_on() -> None:
    hosts = [host(index, 10.0 * index) for index in range(1, 20)]
    for search in (Search(TARGET, 3, 1.0, is_lookup=True), Search(TARGET, 3, 1.0, deaths=MANY_DEAD)):
        for record in hosts:
            search.know(record)
        (best,) = asked(search)
        assert search.answered(best)
        assert len(asked(search)) == PARALLEL


def test_where_hosts_die_the_one_of_the_result_not_heard_of_for_longest_is_asked_first() -> None:
    """It may be elsewhere by now, and there are not questions enough for all."""
    for deaths, first in ((MANY_DEAD, 3), (0, 2)):
        search = Search(TARGET, 3, 1.0, deaths=deaths)
        search.know(host(1, 10.0), 100.0)
        (best,) = asked(search, now=100.0)
        assert search.answered(best)
        for index, alive_at in ((2, 99.0), (3, 90.0), (4, 40.0)):
            search.know(host(index, 10.0 * index), alive_at)
        assert asked(search, now=100.0)[0] == id_of(first)


def test_at_first_it_walks_to_those_alike_one_by_one_and_then_asks_the_best() -> None:
    behind_a_line = NearestTo(Coordinate((0.0,), 30.0, 0.1))

    def at(index: int, x_ms: float, height_ms: float) -> NodeRecord:
        return msgspec.structs.replace(fake_record(index), coordinate=Coordinate((x_ms,), height_ms, 0.1))

    hub = at(1, 1.0, 0.0)
    search = Search(behind_a_line, 1, 1.0)
    search.know(hub)
    search.know(at(2, 8.0, 25.0))
    assert asked(search) == [id_of(2)], "the hub is nearer, but knows few of those behind such lines"
    search.know(at(3, 2.0, 29.0))
    assert asked(search) == []
    assert search.answered(id_of(2))
    assert asked(search) == [id_of(3)]
    search.know(at(4, 20.0, 30.0))
    assert search.answered(id_of(3))
    assert set(asked(search)) == {hub.node_id, id_of(4)}, "nobody is more alike"
    assert [record.node_id for record in search.result()] == [hub.node_id]


def test_one_that_does_not_answer_in_time_is_stepped_over_and_then_given_up() -> None:
    search = search_among(host(1, 10.0), host(2, 20.0))
    assert asked(search, now=5.0) == [id_of(1)]
    assert search.next_timer() == 6.0
    search.expire(5.9)
    assert asked(search, now=5.9) == []
    search.expire(6.0)
    assert asked(search, now=6.0) == [id_of(1), id_of(2)], "a datagram may have been lost: it is asked once more"
    assert search.contacts == 2
    assert search.answered(id_of(2))
    assert asked(search, now=6.0) == []
    assert not search.is_over, "it would be the result"
    search.expire(6.5)
    assert asked(search, now=6.5) == [id_of(1)], "two of them may have been lost"
    assert search.next_timer() == 7.0
    search.expire(7.0)
    search.know(host(1, 10.0))  # others still name it
    assert not search.answered(id_of(1)), "too late"
    assert search.is_over
    assert [record.node_id for record in search.result()] == [id_of(2)]


def test_a_late_answer_counts() -> None:
    search = search_among(host(1, 10.0), host(2, 20.0))
    assert asked(search, now=5.0) == [id_of(1)]
    search.expire(6.0)
    assert asked(search, now=6.0) == [id_of(1), id_of(2)]
    assert search.answered(id_of(2))
    assert search.answered(id_of(1))
    assert search.is_over
    assert [record.node_id for record in search.result()] == [id_of(1)]


def test_a_late_one_that_is_not_of_the_best_is_not_waited_for() -> None:
    search = search_among(host(1, 10.0))
    assert asked(search, now=5.0) == [id_of(1)]
    search.expire(6.0)
    search.know(host(2, 5.0), asked=True)
    assert search.is_over
    assert [record.node_id for record in search.result()] == [id_of(2)]


@pytest.mark.parametrize(
    ("deaths", "alive_at", "timers"),
    [(0, 80.0, [102.0, 103.0]), (2, 95.0, [102.0, 103.0]), (2, 80.0, [102.0])],
)
def test_where_hosts_die_one_that_was_silent_for_long_is_given_up_sooner(
    deaths: int, alive_at: float, timers: list[float]
) -> None:
    search = Search(TARGET, 1, 2.0, deaths=deaths)
    search.know(host(1, 10.0), alive_at)
    assert asked(search, now=100.0) == [id_of(1)]
    search.expire(101.0)
    for timer in timers:
        assert not search.is_over
        assert search.next_timer() == timer
        search.expire(timer)
    assert search.is_over


def test_one_that_has_answered_is_not_taken_for_dead_because_two_checks_were_lost() -> None:
    search = Search(TARGET, 1, 1.0)
    search.know(host(1, 10.0), 100.0)
    assert asked(search, now=100.0) == [id_of(1)]
    assert search.answered(id_of(1))
    checked_at = 102.0
    assert asked(search, now=checked_at) == [id_of(1)]
    for now in (103.0, 103.5):
        search.expire(now)
        assert asked(search, now=now) == [id_of(1)]
    assert search.answered(id_of(1))
    assert [record.node_id for record in search.result()] == [id_of(1)]


@pytest.mark.parametrize("dead", [1, 2])
def test_where_hosts_die_those_that_nobody_has_heard_of_for_long_are_left_out(dead: int) -> None:
    search, now = Search(TARGET, 2, 1.0), 100.0
    for index in range(1, dead + 1):
        search.know(host(index, 1.0 * index), 99.0)
    while not search.is_over:
        search.to_ask(now)
        now = search.next_timer()
        search.expire(now)
    silent, heard_of, was_asked = (host(index, 10.0 * index) for index in range(3, 6))
    search.know(silent, now - 21.0)
    search.know(heard_of, now - 19.0)
    search.know(was_asked, now - 21.0, asked=True)
    is_left_out = dead == 2
    assert (id_end(silent.node_id) not in id_ends(search.known()[0])) is is_left_out, "others may name it"
    assert (silent.node_id not in asked(search, now)) is is_left_out
    assert list(search.result()) == ([heard_of, was_asked] if is_left_out else [silent, heard_of])


@pytest.mark.parametrize("is_lookup", [False, True])
def test_the_best_that_were_heard_of_a_while_ago_are_checked_in_a_few_rounds(is_lookup: bool) -> None:
    search = Search(TARGET, 1, 1.0, is_lookup=is_lookup)
    for index, now in ((1, 100.0), (2, 103.0)):
        record = host(index, 10.0 * index)
        search.know(record, now)
        assert asked(search, now) == [id_of(index)]
        assert search.answered(id_of(index))
        search.know(record, now, asked=True)
    assert asked(search, now=103.0) == ([] if is_lookup else [id_of(1)])
    assert search.contacts == 2, "it counts once"
    assert search.is_over is is_lookup
    if not is_lookup:
        search.know(host(1, 30.0, incarnation=1), 103.0, asked=True)
        assert search.answered(id_of(1))
        assert asked(search, now=103.1) == [], "all are fresh"
        assert search.is_over
    assert [record.node_id for record in search.result()] == [id_of(1 if is_lookup else 2)]


def search_after(dead: int, k: int, max_contacts: int = MAX_CONTACTS) -> tuple[Search, float]:
    """A search that has found nobody but so many dead hosts, and the time."""
    search, now = Search(TARGET, k, 1.0, max_contacts), 100.0
    for index in range(dead):
        search.know(host(index, 1.0 + index), now)
    while not search.is_over:
        search.to_ask(now)
        now = min(search.next_timer(), now + 10.0)
        search.expire(now)
    assert search.contacts == dead
    return search, now


@pytest.mark.parametrize(("dead", "checks"), [(0, CHECKS), (1, CHECKS), (2, MOST_CHECKS)])
def test_checks_come_to_an_end_though_what_was_fresh_grows_old(dead: int, checks: int) -> None:
    search, now = search_after(dead, 1)
    record, rounds = host(5, 10.0), 0
    search.know(record, now)
    while asked(search, now):
        assert search.answered(record.node_id)
        search.know(record, now, asked=True)
        now, rounds = now + 10.0, rounds + 1
    assert rounds == 1 + checks
    assert search.is_over


def test_no_more_are_checked_at_a_time_than_there_are_sessions_for() -> None:
    search, now = Search(TARGET, 10, 1.0), 100.0
    records = {id_of(index): host(index, 10.0 + index) for index in range(CHECKED + 2)}
    for index, record in enumerate(records.values()):
        search.know(record, now - 5.0 + 0.1 * index, asked=True)
    first = asked(search, now)
    assert first == list(records)[:CHECKED], "first those that were not heard of for longest"
    for node_id in first:
        assert not search.is_over
        assert search.answered(node_id)
        search.know(records[node_id], now, asked=True)
    assert asked(search, now) == list(records)[CHECKED:]


@pytest.mark.parametrize("dead", [1, 2])
def test_where_many_were_dead_the_best_are_checked_though_enough_were_asked(dead: int) -> None:
    search, now = search_after(dead, 3, max_contacts=2)
    records = {id_of(index): host(index, 10.0 * index) for index in range(5, 13)}
    for record in records.values():
        search.know(record, now - 5.0)
    while not search.is_over or asked(search, now):
        for node_id in [*records]:
            asked(search, now)
            if search.answered(node_id):
                search.know(records[node_id], now, asked=True)
    enough = 2 + PER_DEAD * dead
    assert search.contacts == (enough if dead == 1 else dead + len(records))


def test_one_that_has_not_heard_is_asked_again() -> None:
    search = search_among(host(1, 10.0))
    assert asked(search) == [id_of(1)]
    search.was_not_heard(id_of(1))
    assert not search.is_over
    assert asked(search) == [id_of(1)]
    assert search.answered(id_of(1))
    assert search.is_over


def test_it_ends_when_all_that_are_known_were_asked_or_enough_were() -> None:
    crowd = [host(index, float(index)) for index in range(1, 60)]
    assert finish(search_among(*crowd[:5])) == 5
    assert finish(search_among(*crowd, max_contacts=7)) == 7
    assert finish(search_among(*crowd)) <= MAX_CONTACTS
    assert finish(search_among()) == 0


@pytest.mark.parametrize("is_lookup", [False, True])
def test_the_way_to_ones_own_nearest_is_not_counted(is_lookup: bool) -> None:
    search = Search(TARGET, 1, 1.0, max_contacts=3, is_lookup=is_lookup)
    steps = [host(index, 100.0 / index) for index in range(1, 6)]
    search.know(steps[0])
    for step in (*steps[1:], None):
        for node_id in asked(search):
            assert search.answered(node_id)
        for record in [step] if step is not None else [host(index, 20.0 + index) for index in range(10, 40)]:
            search.know(record)
    assert finish(search) == (len(steps) + 3 if is_lookup else 3)


@pytest.mark.parametrize(("dead", "contacts"), [(1, 9), (3, 13), (30, 7 + MOST_MORE)])
def test_for_each_that_is_dead_two_others_are_asked(dead: int, contacts: int) -> None:
    search = search_among(*[host(index, float(index)) for index in range(1, 60)], k=10, max_contacts=7)
    failures = 0
    while not search.is_over:
        for node_id in asked(search):
            if failures < dead:
                failures += 1
                search.failed(node_id)
            else:
                assert search.answered(node_id)
    assert search.contacts == contacts


def test_of_three_one_is_asked_that_is_far_from_those_who_were() -> None:
    crowd = [host(index, 10.0 + index / 100.0) for index in range(1, GOOD - 1)]
    elsewhere = host(50, -15.0)
    search = search_among(*crowd, elsewhere)
    order: list[str] = []
    while not search.is_over:
        order += asked(search)
        for node_id in order:
            search.answered(node_id)
    assert order.index(elsewhere.node_id) == BY_COST, "the first that is not one of the best"
    assert order[0] == crowd[0].node_id


def test_what_is_newer_of_a_host_counts() -> None:
    search = search_among(host(1, 10.0), host(2, 20.0))
    search.know(host(1, 90.0, incarnation=2), asked=True)
    search.know(host(1, 10.0, incarnation=1))
    assert [record.node_id for record in search.result()] == [id_of(2)]
    assert asked(search) == [id_of(2)]


def test_a_host_that_is_ruled_out_is_no_result_but_may_be_asked() -> None:
    lost = msgspec.structs.replace(host(1, 5.0), coordinate=Coordinate((5.0,), 0.0, 1.0))
    search = search_among(lost)
    assert asked(search) == [id_of(1)]
    assert search.answered(id_of(1))
    assert search.result() == ()
    assert search.is_over


@pytest.mark.parametrize("k", [0, MAX_K + 1])
def test_what_no_search_can_answer_is_refused(k: int) -> None:
    with pytest.raises(ValueError, match="are possible"):
        Search(TARGET, k, 1.0)


@given(st.integers(1, MAX_K), st.integers(0, 200), st.randoms(use_true_random=False))
def test_the_result_is_the_best_of_those_it_heard_of(k: int, hosts: int, rng: random.Random) -> None:
    """In order, none twice, none that is dead; whoever could be worth it was asked, within the bound."""
    known = [host(index, rng.uniform(0.0, 500.0)) for index in range(hosts)]
    search, dead = search_among(*known[:10], k=k), set()
    for record in rng.sample(known, len(known)):
        search.know(record)
        for node_id in asked(search):
            if rng.random() < 0.2:
                dead.add(node_id)
                search.failed(node_id)
            else:
                assert search.answered(node_id)
    finish(search)
    costs = [TARGET.cost(record) for record in search.result()]
    alive = sorted(TARGET.cost(record) for record in known if record.node_id not in dead)
    assert costs == alive[: len(costs)]
    assert len(costs) == min(k, len(alive)) or hosts > MAX_FOUND
    assert search.contacts <= MAX_CONTACTS + min(PER_DEAD * len(dead), MOST_MORE)


def test_who_is_near_is_waited_for_less_long() -> None:
    here = Coordinate((0.0,), 0.0, 0.1)
    search = Search(TARGET, 3, 1.0, here=here)
    near = msgspec.structs.replace(host(1, 10.0), coordinate=Coordinate((10.0,), 0.0, 0.1))
    search.know(near)
    assert asked(search) == [id_of(1)]
    assert search.next_timer() == pytest.approx(0.2 + 3 * 0.010)
    unsettled = Search(TARGET, 3, 1.0, here=msgspec.structs.replace(here, error=0.9))
    unsettled.know(near)
    assert asked(unsettled) == [id_of(1)]
    assert unsettled.next_timer() == 1.0
