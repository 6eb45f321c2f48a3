from __future__ import annotations

import random
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.simulation.plain_suite import FakeSuite
from overlay.session import WINDOW
from overlay.session_events import Received
from overlay.session_output import HINTS_PER_S
from overlay.session_wire import HELLO, MAX_BODY_BYTES, MAX_SEALED_BYTES, REFUSED, RESET, SEAL_BYTES, SEALED, WELCOME
from overlay.sessions import (
    GIVE_UP_S,
    HELLOS_PER_S,
    MAX_ATTEMPTS,
    MAX_TENTATIVE,
    TENTATIVE_S,
)
from sbon.errors import RemoteProtocolError, UnavailableError, UnknownKindError
from tests.overlay.session_nodes import (
    MakeNode,
    SessionNode,
    Wire,
    address_of,
    cluster_trust,
    member,
    open_node,
    pair,
)


def test_two_datagrams_and_a_confirmation_open_a_session(make: MakeNode) -> None:
    a, b, wire = pair(make)
    assert [data[0] for _, data, _ in wire.sent] == [HELLO, WELCOME, SEALED]
    assert [(event.node_id, event.boot_id, event.address) for event in a.opened()] == [(b.node_id, 1, b.address)]
    assert [(event.node_id, event.boot_id, event.address) for event in b.opened()] == [(a.node_id, 1, a.address)]
    for sender, receiver in ((a, b), (b, a)):
        data = sender.say(receiver, b"hello", 0.0)
        assert len(data) == 5 + SEAL_BYTES
        receiver.take(data, sender.address, 0.0)
        assert receiver.heard == [Received(sender.node_id, 1, b"hello")]
    assert max(len(data) for _, data, _ in wire.sent) <= 400


def test_names_are_those_of_the_certificates() -> None:
    a, b, _ = pair(member)
    assert (a.sessions.certified_name(b.node_id), b.sessions.certified_name(a.node_id)) == ("node-2", "node-1")
    a, b, _ = pair(open_node)
    assert a.sessions.certified_name(b.node_id) == ""
    assert a.sessions.certified_name("f" * 32) == ""


def test_a_welcome_is_hardly_larger_than_the_hello() -> None:
    _, _, wire = pair(member)
    hello, welcome = (len(data) for _, data, _ in wire.sent[:2])
    assert welcome <= 1.1 * hello


@given(st.binary(min_size=1, max_size=MAX_BODY_BYTES))
@settings(max_examples=30)
def test_whatever_is_sealed_is_opened(body: bytes) -> None:
    a, b, _ = pair(open_node)
    data = a.say(b, body, 0.0)
    assert len(data) <= MAX_SEALED_BYTES
    b.take(data, a.address, 0.0)
    assert [received.body for received in b.heard] == [body]


def test_our_own_mistakes() -> None:
    a, b, _ = pair()
    with pytest.raises(ValueError, match="1175"):
        a.say(b, bytes(MAX_BODY_BYTES + 1), 0.0)
    with pytest.raises(UnavailableError, match="shake hands"):
        a.sessions.seal("f" * 32, b"", 0.0)


def test_what_was_sealed_cannot_be_read_or_changed() -> None:
    a, b, _ = pair(open_node)
    data = a.say(b, b"a secret that is long enough", 0.0)
    assert b"secret" not in data
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1
        b.take(bytes(changed), a.address, 0.0)
    assert b.heard == []
    b.take(data, a.address, 0.0)
    assert len(b.heard) == 1


def test_nothing_can_be_sent_back_to_its_sender(make: MakeNode) -> None:
    a, b, _ = pair(make)
    data = a.say(b, b"hello", 0.0)
    index_at_a = int.from_bytes(b.say(a, b"", 0.0)[1:5], "big")
    a.take(data[:1] + index_at_a.to_bytes(4, "big") + data[5:], b.address, 0.0)
    assert a.heard == []


# --- replay and order


@given(st.lists(st.integers(0, 60), max_size=120), st.randoms(use_true_random=False))
def test_each_datagram_is_taken_once_in_any_order(losses: list[int], rng: random.Random) -> None:
    a, b, _ = pair()
    data = [a.say(b, bytes([number]), 0.0) for number in range(61)]
    arriving = [number for number in range(61) if number not in losses] * 2
    rng.shuffle(arriving)
    for number in arriving:
        b.take(data[number], a.address, 0.0)
    assert sorted(received.body[0] for received in b.heard) == sorted(set(range(61)) - set(losses))
    assert b.sessions.counters["replayed"] == len(arriving) - len(b.heard)


@given(st.lists(st.integers(1, 3 * WINDOW), min_size=1, max_size=60))
def test_the_window_is_that_of_a_plain_model(counters: list[int]) -> None:
    """Against a set of all counters ever seen."""
    a, b, _ = pair()
    data = {}
    for counter in range(2, max(counters) + 2):
        sealed = a.say(b, b"x", 0.0)
        data[counter] = sealed
    seen, highest = {1}, 1
    for counter in [number + 1 for number in counters]:
        is_new = counter not in seen and counter > highest - WINDOW
        before = len(b.heard)
        b.take(data[counter], a.address, 0.0)
        assert len(b.heard) - before == is_new, counter
        seen.add(counter)
        highest = max(highest, counter)


def test_a_whole_recorded_conversation_played_again_does_nothing(make: MakeNode) -> None:
    a, b, wire = pair(make)
    wire.sent.append((a.address, a.say(b, b"pay", 0.0), b.address))
    wire.deliver(*wire.sent[-1])
    assert len(b.heard) == 1
    for source, data, to in wire.sent * 3:
        wire.deliver(source, data, to)
    assert len(b.heard) == 1
    assert len(b.opened()) == 1
    wire.advance(2 * TENTATIVE_S)
    b.take(a.say(b, b"more", wire.now), a.address, wire.now)
    a.take(b.say(a, b"less", wire.now), b.address, wire.now)
    assert (len(b.heard), len(a.heard)) == (2, 1)


# --- bounds


def test_the_least_used_makes_room_and_the_kept_stay() -> None:
    kept: set[str] = set()
    a = SessionNode(1, capacity=4)
    a.sessions.is_kept = kept.__contains__
    others = [SessionNode(number) for number in range(2, 12)]
    wire = Wire(a, *others)
    for number, other in enumerate(others[:4]):
        wire.now = number
        wire.open(a, other)
    kept |= {others[0].node_id, others[1].node_id}
    for number, other in enumerate(others[4:]):
        wire.now = 10.0 + number
        wire.open(other, a)
    assert set(a.sessions.peers()) == kept | {others[-1].node_id, others[-2].node_id}
    kept |= set(a.sessions.peers())
    others[5].sessions.close(a.node_id)
    others[5].sessions.connect(a.address, wire.now)
    a.sessions.connect(others[6].address, wire.now)
    wire.advance(GIVE_UP_S + 0.2)
    assert "no room" in others[5].failed()[0].reason
    assert "no room" in a.failed()[0].reason
    assert set(a.sessions.peers()) == kept


def test_no_room_any_more_when_the_confirmation_comes() -> None:
    a, b, c = SessionNode(1, capacity=1), SessionNode(2), SessionNode(3)
    wire = Wire(a, b, c)
    b.sessions.connect(a.address, 0.0)
    for _ in range(2):
        for item in wire.collect():
            wire.deliver(*item)
    a.sessions.is_kept = lambda node_id: True
    confirmation = wire.collect()
    a.sessions.connect(c.address, 0.0)
    hello = wire.collect()
    wire.deliver(*hello[0])
    wire.settle()
    wire.deliver(*confirmation[0])
    assert set(a.sessions.peers()) == {c.node_id}


def test_a_flood_of_hellos_is_bounded_and_counted() -> None:
    a, b, wire = pair()
    for number in range(100, 1100):
        flooding = SessionNode(number)
        flooding.sessions.connect(a.address, 0.0)
        a.take(flooding.sessions.datagrams_to_send(0.0)[0][0], flooding.address, 0.0)
    assert a.sessions.counters["over_budget"] > 1000 - HELLOS_PER_S - 2
    assert len(a.sessions._answers) == MAX_TENTATIVE
    assert a.sessions.counters["tentative_evicted"] > 0
    assert a.sessions.is_open(b.node_id)
    wire.advance(TENTATIVE_S + 1)
    assert not a.sessions._answers
    assert a.sessions.next_timer() == float("inf")


def test_a_flood_for_unknown_sessions_is_hardly_answered() -> None:
    a, _, wire = pair()
    for number in range(1000):
        a.take(bytes((SEALED,)) + number.to_bytes(4, "big") + bytes(40), address_of(9), 0.0)
    assert len(wire.collect()) == HINTS_PER_S
    assert a.sessions.counters["unknown_index"] == 1000


def test_attempts_are_bounded() -> None:
    a = SessionNode(1)
    for number in range(2, MAX_ATTEMPTS + 4):
        a.sessions.connect(address_of(number), 0.0)
    a.sessions.validate()
    assert ["too many" in event.reason for event in a.sessions.events() if hasattr(event, "reason")] == [True] * 2


def test_an_index_that_is_taken_is_not_given_again() -> None:
    class Stuck(random.Random):
        """Draws every number of 32 bits many times over."""

        def __init__(self) -> None:
            super().__init__(1)
            self.drawn = 0

        def getrandbits(self, k: int, /) -> int:
            self.drawn += 1
            return self.drawn // 5

    a = SessionNode(1)
    a.sessions._rng = Stuck()
    others = [SessionNode(number) for number in range(2, 8)]
    wire = Wire(a, *others)
    for other in others[:3]:
        wire.open(a, other)
    for other in others[3:]:
        wire.open(other, a)
    for other in others:
        other.take(a.say(other, b"x", 0.0), a.address, 0.0)
        a.take(other.say(a, other.node_id.encode(), 0.0), other.address, 0.0)
    assert [received.sender.encode() for received in a.heard] == [received.body for received in a.heard]
    assert len(a.heard) == 6


def test_the_same_index_at_two_peers() -> None:
    a, b, c = SessionNode(1), SessionNode(2), SessionNode(3)
    b.sessions._rng = random.Random(5)
    c.sessions._rng = random.Random(5)
    wire = Wire(a, b, c)
    wire.open(b, a)
    wire.open(c, a)
    for other in (b, c):
        other.take(a.say(other, other.node_id.encode(), 0.0), a.address, 0.0)
        assert other.heard[0].body == other.node_id.encode()


# --- other bytes


@given(st.binary(max_size=400))
def test_any_bytes_are_refused_in_the_right_way(data: bytes) -> None:
    a, _, _ = pair()
    with suppress(RemoteProtocolError):
        assert a.sessions.receive(data, address_of(9), 0.0) is None
    a.sessions.validate()


def test_other_versions_and_kinds_are_told_apart() -> None:
    a, _, _ = pair()
    for first in (0x11, 0x31, 0x96, 0x2F, 0x20):
        with pytest.raises(UnknownKindError):
            a.sessions.receive(bytes((first,)) + bytes(50), address_of(9), 0.0)
    for data in (b"", bytes((HELLO,)), bytes((WELCOME,)) * 30, bytes((REFUSED,)), bytes((SEALED,)), bytes((RESET,))):
        with pytest.raises(RemoteProtocolError) as caught:
            a.sessions.receive(data, address_of(9), 0.0)
        assert not isinstance(caught.value, UnknownKindError)


def test_the_fake_suite_has_the_sizes_of_the_real_one() -> None:
    real = SessionNode(1234567890, trust=cluster_trust(12345))
    assert len(FakeSuite("0" * 32, 1, random.Random(1)).credentials) == len(real.sessions._suite.credentials)
