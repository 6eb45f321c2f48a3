"""The book of a host: whatever is asked of it, no more is promised than there is."""

from __future__ import annotations

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sbon.errors import SbonError
from sbon.placement.capacity import Demand, Resources
from sbon.placement.reservations import COMMITTED_S, MAX_QUERIES, RESERVED_S, Reservations

ROOM = Resources(cpu_cores=1.0)


def cores(count: float) -> Demand:
    return Demand(cpu_cores=count)


def test_a_reservation_holds_room_until_its_time_is_over() -> None:
    book = Reservations(ROOM)
    assert book.reserve("q1", {"q1-a": cores(0.7)}, {}, 0.0) == ()
    assert book.reserve("q2", {"q2-a": cores(0.4)}, {}, 1.0) == ("cpu_cores",)
    assert book.reserve("q2", {"q2-a": cores(0.4)}, {}, RESERVED_S + 0.1) == ()


def test_a_committed_one_holds_for_longer() -> None:
    book = Reservations(ROOM)
    book.reserve("q1", {"q1-a": cores(0.7)}, {}, 0.0)
    book.commit("q1", 5.0)
    assert book.reserve("q2", {"q2-a": cores(0.4)}, {}, RESERVED_S + 6.0) == ("cpu_cores",)
    assert book.reserve("q2", {"q2-a": cores(0.4)}, {}, COMMITTED_S + 5.0) == ()


def test_asking_twice_is_asking_once_and_the_last_word_counts() -> None:
    book = Reservations(ROOM)
    for _ in range(3):
        assert book.reserve("q1", {"q1-a": cores(0.7)}, {}, 0.0) == ()
    assert book.reserve("q1", {"q1-b": cores(0.2)}, {}, 0.0) == ()
    assert book.reserve("q2", {"q2-a": cores(0.8)}, {}, 0.0) == ()
    book.drop("q2")
    assert book.reserve("q3", {"q3-a": cores(0.8)}, {}, 0.0) == ()


def test_a_refusal_changes_nothing() -> None:
    book = Reservations(ROOM)
    book.reserve("q1", {"q1-a": cores(0.7)}, {}, 0.0)
    assert book.reserve("q1", {"q1-a": cores(1.1)}, {}, 1.0) == ("cpu_cores",)
    assert book.room({}, 1.0).cpu_cores == ROOM.cpu_cores - 0.7


def test_what_has_arrived_is_counted_once() -> None:
    book = Reservations(ROOM)
    book.reserve("q1", {"q1-a": cores(0.4), "q1-b": cores(0.4)}, {}, 0.0)
    assert book.admit("q1", "q1-a", cores(0.4), {}, 1.0) == ()
    running = {"q1-a": cores(0.4)}
    assert abs(book.room(running, 1.0).cpu_cores - 0.2) < 1e-9
    assert book.admit("q2", "q2-a", cores(0.3), running, 1.0) == ("cpu_cores",)  # nothing was reserved, nothing is free
    assert abs(book.room(running, RESERVED_S).cpu_cores - 0.6) < 1e-9  # the other one never came
    assert book.admit("q1", "q1-a", cores(0.4), running, RESERVED_S) == ()  # its next generation is no second one


def test_a_host_without_limits_refuses_nobody_and_remembers_not_too_many() -> None:
    book = Reservations(Resources())
    for number in range(MAX_QUERIES):
        assert book.reserve(f"q{number}", {f"q{number}-a": cores(1e9)}, {}, 0.0) == ()
    assert book.reserve("one more", {"a": cores(1.0)}, {}, 0.0)
    assert book.reserve("one more", {"a": cores(1.0)}, {}, RESERVED_S + 1.0) == ()


@pytest.mark.parametrize("amount", [-1.0, math.nan, math.inf, -math.inf, 1e308])
def test_what_cannot_be_taken_is_refused_and_changes_nothing(amount: float) -> None:
    book = Reservations(Resources())
    book.reserve("q1", {"q1-a": Demand(memory_bytes=1.0)}, {}, 0.0)
    for name in Demand.__struct_fields__:
        demand = Demand(**{name: amount})
        with pytest.raises(SbonError, match=name):
            book.reserve("q1", {"q1-b": cores(1.0), "q1-c": demand}, {}, 0.0)
        with pytest.raises(SbonError, match=name):
            book.admit("q1", "q1-a", demand, {}, 0.0)
    assert book._by_query["q1"].taken == {"q1-a": Demand(memory_bytes=1.0)}


def test_nothing_is_held_for_what_runs_here_already() -> None:
    book = Reservations(ROOM)
    running = {"a": cores(0.1)}
    assert book.reserve("q1", {"a": cores(0.6)}, running, 0.0) == ()
    assert book.reserve("q2", {"b": cores(0.6)}, running, 0.0) == ()
    assert book.room({}, 0.0).cpu_cores == pytest.approx(0.4), "q1's fragment has left, and has left nothing behind"


class Book(RuleBasedStateMachine):
    """Queries reserve, change their minds, arrive, leave and are forgotten, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.book = Reservations(ROOM)
        self.running: dict[str, Demand] = {}
        self.now_s = 0.0

    queries = st.sampled_from(["q1", "q2", "q3"])
    fragments = st.sampled_from(["a", "b"])
    amounts = st.sampled_from([0.1, 0.3, 0.6, 1.0])

    @rule(query=queries, fragments=st.sets(fragments), amount=amounts)
    def reserve(self, query: str, fragments: set[str], amount: float) -> None:
        taken = {f"{query}-{one}": cores(amount) for one in fragments}
        self.book.reserve(query, taken, self.running, self.now_s)

    @rule(query=queries)
    def commit(self, query: str) -> None:
        self.book.commit(query, self.now_s)

    @rule(query=queries, fragment=fragments, amount=amounts)
    def arrive(self, query: str, fragment: str, amount: float) -> None:
        name = f"{query}-{fragment}"
        held = self.book._by_query.get(query)
        promised = held is not None and held.until_s > self.now_s and name in held.taken
        demand = held.taken[name] if held is not None and promised else cores(amount)
        if name not in self.running and not self.book.admit(query, name, demand, self.running, self.now_s):
            self.running[name] = demand

    @rule(query=queries, fragment=fragments)
    def leave(self, query: str, fragment: str) -> None:
        self.running.pop(f"{query}-{fragment}", None)

    @rule(query=queries)
    def drop(self, query: str) -> None:
        self.book.drop(query)

    @rule(seconds=st.sampled_from([1.0, RESERVED_S, COMMITTED_S]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @invariant()
    def no_more_is_promised_than_there_is(self) -> None:
        assert self.book.room(self.running, self.now_s).cpu_cores >= -1e-9


TestBook = Book.TestCase
TestBook.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
