"""The table by itself: random words about a few nodes, in any order, must leave it consistent and convergent."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.config import OverlayConfig
from overlay.events import (
    Event,
    MemberFailed,
    MemberJoined,
    MemberLeft,
    MemberRecovered,
    MemberRestarted,
    MemberSuspected,
)
from overlay.membership import Membership
from overlay.records import NodeRecord, Status
from tests.overlay.fake_network import fake_record

CONFIG = OverlayConfig(max_members=3, suspicion_s=3.0, forget_after_s=60.0)


def word(index: int, boot_id: int = 1, incarnation: int = 0, status: Status = Status.ALIVE) -> NodeRecord:
    return msgspec.structs.replace(fake_record(index, boot_id=boot_id), incarnation=incarnation, status=status)


def table() -> Membership:
    return Membership(fake_record(0), CONFIG)


words = st.builds(word, st.integers(0, 5), st.integers(0, 3), st.integers(0, 3), st.sampled_from(Status))


@given(st.lists(st.tuples(words, st.floats(0, 30)), max_size=40))
def test_no_sequence_of_words_breaks_the_table(heard: list[tuple[NodeRecord, float]]) -> None:
    members, now = table(), 0.0
    for record, passed in heard:
        now += passed
        members.expire(now)
        members.merge(record, now)
        members.validate()
        members.news(random.Random(1), 1000)
        members.validate()


@given(st.lists(st.builds(word, st.just(1), st.integers(1, 2), st.integers(0, 2), st.sampled_from(Status)), max_size=5))
def test_the_order_of_words_does_not_matter_once_a_member_is_known(heard: list[NodeRecord]) -> None:
    ends = set()
    for order in itertools.islice(itertools.permutations(heard), 24):
        members = table()
        members.merge(word(1, boot_id=0), 0.0)
        for record in order:
            members.merge(record, 0.0)
        known = members.get(fake_record(1).node_id)
        assert known is not None
        ends.add((known.version, known.status))
    assert len(ends) <= 1


@pytest.mark.parametrize(
    ("first", "second", "events"),
    [
        (word(1), word(1), []),
        (word(1), word(1, incarnation=1), []),
        (word(1), word(1, status=Status.SUSPECT), [MemberSuspected]),
        (word(1), word(1, status=Status.DEAD), [MemberFailed]),
        (word(1), word(1, status=Status.LEFT), [MemberLeft]),
        (word(1), word(1, boot_id=2), [MemberRestarted]),
        (word(1, status=Status.SUSPECT), word(1), []),
        (word(1, status=Status.SUSPECT), word(1, incarnation=1), [MemberRecovered]),
        (word(1, status=Status.SUSPECT), word(1, boot_id=2), [MemberRestarted]),
        (word(1, boot_id=2), word(1, incarnation=9), []),
    ],
)
def test_what_a_newer_word_means(first: NodeRecord, second: NodeRecord, events: list[type[Event]]) -> None:
    members = table()
    members.merge(first, 0.0)
    assert [type(event) for event in members.merge(second, 0.0)] == events


def test_a_word_about_ourselves_is_refuted() -> None:
    members = table()
    members.merge(msgspec.structs.replace(members.own, status=Status.DEAD, incarnation=7), 0.0)
    assert members.own.version == (1, 8)
    assert members.own.status is Status.ALIVE
    assert members.has_rumors
    # The clock of the host went back between two starts: the old process had a higher boot id.
    members.merge(msgspec.structs.replace(members.own, boot_id=50), 0.0)
    assert members.own.version == (51, 0)


def test_the_suspected_are_given_up_and_the_dead_are_forgotten_in_time() -> None:
    members = table()
    members.merge(word(1), 0.0)
    assert [type(event) for event in members.suspect(word(1).node_id, 1.0)] == [MemberSuspected]
    assert members.suspect(word(1).node_id, 2.0) == []
    assert members.next_timer() == 4.0
    assert members.expire(3.9) == []
    assert [type(event) for event in members.expire(4.0)] == [MemberFailed]
    assert members.present() == []
    assert members.merge(word(1), 5.0) == []  # old news does not revive it
    assert [type(event) for event in members.merge(word(1, incarnation=1), 5.0)] == [MemberJoined]
    members.merge(word(1, incarnation=1, status=Status.LEFT), 6.0)
    members.expire(66.0)
    assert members.get(word(1).node_id) is None


def test_the_table_is_bounded_and_the_gone_make_room() -> None:
    members = table()
    for index in (1, 2, 3, 4):
        members.merge(word(index), 0.0)
    assert (len(members.present()), members.refused) == (3, 1)
    members.merge(word(2, status=Status.LEFT), 1.0)
    members.merge(word(4), 2.0)
    assert [record.name for record in members.present()] == ["n1", "n3", "n4"]


def test_news_is_sent_a_bounded_number_of_times() -> None:
    members = table()
    members.merge(word(1), 0.0)
    rounds = 0
    while members.has_rumors:
        assert members.news(random.Random(1), 1000)
        rounds += 1
    assert 2 <= rounds <= 10
    assert members.news(random.Random(1), 10) == ()  # no room, no news
