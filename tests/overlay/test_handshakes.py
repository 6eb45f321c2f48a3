"""How sessions are opened, renewed and closed: lost handshakes, both at once, restarts, forged resets, moves."""

from __future__ import annotations

import pytest

from overlay.session_events import Received
from overlay.session_wire import HELLO, RESET, SEALED, WELCOME
from overlay.sessions import (
    GIVE_UP_S,
    IN_USE_S,
    RENEW_COUNTER,
    RETIRED_S,
)
from sbon.errors import UnavailableError
from tests.overlay.session_nodes import (
    MakeNode,
    Wire,
    address_of,
    pair,
)


@pytest.mark.parametrize("lost", [{HELLO}, {WELCOME}, {SEALED}, {HELLO, WELCOME}])
def test_lost_handshakes_are_repeated(make: MakeNode, lost: set[int]) -> None:
    a, b = make(1), make(2)
    wire = Wire(a, b)
    a.sessions.connect(b.address, 0.0)
    to_lose = set(lost)
    while wire.now < GIVE_UP_S:
        for source, data, to in wire.collect():
            if data[0] in to_lose:
                to_lose.remove(data[0])
            else:
                wire.deliver(source, data, to)
        wire.now += 0.05
        for node in (a, b):
            node.sessions.handle_timer(wire.now)
    assert a.sessions.is_open(b.node_id)
    b.take(a.say(b, b"hello", wire.now), a.address, wire.now)  # confirms, too, if the confirmation was lost
    assert b.sessions.is_open(a.node_id)
    a.take(b.say(a, b"hello", wire.now), b.address, wire.now)
    assert [len(node.heard) for node in (a, b)] == [1, 1]


def test_nobody_there(make: MakeNode) -> None:
    a = make(1)
    wire = Wire(a)
    a.sessions.connect(address_of(9), 0.0)
    a.sessions.connect(address_of(9), 0.0)
    wire.advance(GIVE_UP_S + 0.2)
    assert [event.reason for event in a.failed()] == ["it does not answer"]
    assert len(wire.sent) == 4
    assert a.sessions.next_timer() == float("inf")


@pytest.mark.parametrize("latency_steps", [0, 1, 3])
def test_both_at_once_converge_to_one_session(make: MakeNode, latency_steps: int) -> None:
    a, b = make(1), make(2)
    wire = Wire(a, b)
    a.sessions.connect(b.address, 0.0, b.node_id)
    b.sessions.connect(a.address, 0.0, a.node_id)
    flying: list[tuple[float, tuple[tuple[str, int], bytes, tuple[str, int]]]] = []
    while wire.now < 6.0:
        flying += [(wire.now + 0.1 * latency_steps, item) for item in wire.collect()]
        for due in [entry for entry in flying if entry[0] <= wire.now]:
            flying.remove(due)
            wire.deliver(*due[1])
        wire.now += 0.1
        for node in (a, b):
            node.sessions.handle_timer(wire.now)
    assert not a.failed()
    assert not b.failed()
    assert len(a.opened()) == len(b.opened()) == 1
    b.take(a.say(b, b"x", wire.now), a.address, wire.now)
    a.take(b.say(a, b"y", wire.now), b.address, wire.now)
    assert [len(node.heard) for node in (a, b)] == [1, 1]


def test_who_must_be_found_is_said_hello_to_more_often(make: MakeNode) -> None:
    a, b = make(1), make(2)
    wire = Wire(a, b)
    a.sessions.knock(b.address, 0.0, b.node_id)
    assert len(wire.collect()) == 1, "as if it had been asked to connect"
    for _ in range(5):
        a.sessions.knock(b.address, 0.0, b.node_id)
    assert {data for _, data, _ in wire.collect()} == {wire.sent[0][1]}
    assert len(wire.sent) == 6, "none of them has come"
    a.sessions.knock(b.address, 0.0, b.node_id)
    wire.settle()
    assert a.sessions.is_open(b.node_id)
    before = len(wire.sent)
    a.sessions.knock(b.address, 0.0, b.node_id)
    wire.settle()
    assert len(wire.sent) == before, "it was found"


def test_a_hello_that_counts_less_tells_that_ours_was_lost(make: MakeNode) -> None:
    a, b = sorted((make(1), make(2)), key=lambda node: node.node_id)
    wire = Wire(a, b)
    a.sessions.connect(b.address, 0.0, b.node_id)
    wire.collect()
    b.sessions.connect(a.address, 0.0, a.node_id)
    wire.settle()
    assert [len(node.opened()) for node in (a, b)] == [1, 1], "at once, not when the HELLO was to be repeated"


def test_a_restarted_peer_is_met_again(make: MakeNode) -> None:
    a, b, wire = pair(make)
    wire.nodes[b.address] = b = make(2, boot=2)
    wire.deliver(a.address, a.say(b, b"are you there?", 0.0), b.address)  # answered with a reset
    assert b.heard == []
    wire.settle()
    assert wire.sent[3][1][0] == RESET
    assert a.opened()[-1].boot_id == 2
    b.take(a.say(b, b"hello", 0.0), a.address, 0.0)
    assert b.heard == [Received(a.node_id, 1, b"hello")]
    a.take(b.say(a, b"hello", 0.0), b.address, 0.0)
    assert a.heard == [Received(b.node_id, 2, b"hello")]


def test_an_older_boot_does_not_replace_a_newer_one(make: MakeNode) -> None:
    old, b = make(1, boot=1), make(2)
    new = make(1, boot=5)
    wire = Wire(new, b)
    wire.open(new, b)
    wire.nodes[new.address] = old
    old.sessions.connect(b.address, 0.0)
    wire.advance(GIVE_UP_S + 0.2)
    assert "a later start of this node" in old.failed()[0].reason
    b.take(new.say(b, b"still here", wire.now), new.address, wire.now)
    assert b.heard == [Received(new.node_id, 5, b"still here")]
    wire.advance(IN_USE_S)  # the clock was set back, and the newer start is gone
    old.sessions.connect(b.address, wire.now)
    wire.settle()
    assert b.opened()[-1].boot_id == 1


def test_a_forgotten_session_comes_back_with_other_keys(make: MakeNode) -> None:
    a, b, wire = pair(make)
    first = a.say(b, b"secret", 0.0)
    b.sessions.close(a.node_id)
    wire.deliver(a.address, first, b.address)
    wire.settle()
    assert b.sessions.is_open(a.node_id)
    again = a.say(b, b"secret", 0.0)
    assert again[5:] != first[5:]
    b.take(again, a.address, 0.0)
    assert [received.body for received in b.heard] == [b"secret"]


def test_what_was_on_its_way_when_keys_were_renewed_is_still_read(make: MakeNode) -> None:
    a, b, wire = pair(make)
    late = (
        [a.say(b, bytes([number]), 0.0) for number in range(3)],
        [b.say(a, bytes([number]), 0.0) for number in range(3)],
    )
    a.sessions.connect(b.address, 0.0, b.node_id)
    wire.settle()
    for data in late[0]:
        b.take(data, a.address, 0.0)
    for data in late[1]:
        a.take(data, b.address, 0.0)
    assert [len(node.heard) for node in (a, b)] == [3, 3]
    wire.advance(RETIRED_S + 1)
    assert len(b.sessions._by_index) == 1


def test_a_forged_reset_closes_nothing(make: MakeNode) -> None:
    a, b, wire = pair(make)
    data = a.say(b, b"x", 0.0)
    for _ in range(100):
        a.take(bytes((RESET,)) + data[1:9], b.address, 0.0)
    hellos = [item for item in wire.collect() if item[1][0] == HELLO]
    assert len(hellos) == 1  # and lost
    wire.now = GIVE_UP_S + 1
    a.sessions.handle_timer(wire.now)
    b.take(a.say(b, b"y", wire.now), a.address, wire.now)
    assert [received.body for received in b.heard] == [b"y"]


def test_resets_that_were_guessed_are_ignored() -> None:
    a, b, wire = pair()
    data = a.say(b, b"x", 0.0)
    for guess in (bytes((RESET,)) + bytes(8), bytes((RESET,)) + data[1:5] + b"\0\0\xff\xff"):
        a.take(guess, b.address, 0.0)
    a.take(bytes((RESET,)) + data[1:9], address_of(7), 0.0)
    assert wire.collect() == []
    assert a.sessions.counters["unexpected_reset"] == 3


def test_the_counter_is_never_used_up() -> None:
    a, b, wire = pair()
    session = a.sessions._peers[b.node_id]
    session.sent = RENEW_COUNTER - 2
    for number in range(3):
        wire.deliver(a.address, a.say(b, bytes([number]), 0.0), b.address)
        wire.settle()
    assert len(b.heard) == 3
    assert a.sessions._peers[b.node_id].sent < 10
    a.sessions._peers[b.node_id].sent = 2**32 - 2
    with pytest.raises(UnavailableError, match="used up"):
        a.say(b, b"", 0.0)
    a.sessions.validate()


def test_the_wrong_node_at_an_address(make: MakeNode) -> None:
    a, b, c = make(1), make(2), make(3)
    wire = Wire(a, b)
    a.sessions.connect(b.address, 0.0, c.node_id)
    wire.advance(GIVE_UP_S + 0.2)
    assert "another node" in a.failed()[0].reason
    assert not a.sessions.peers()
    a.sessions.connect(a.address, wire.now)
    wire.advance(GIVE_UP_S + 0.2)
    assert "own address" in a.failed()[1].reason
    a.sessions.connect(a.address, wire.now, a.node_id)
    wire.settle()
    assert "own address" in a.failed()[2].reason


def test_a_peer_that_moves(make: MakeNode) -> None:
    a, b, wire = pair(make)
    del wire.nodes[b.address]
    b.address = address_of(8)
    wire.nodes[b.address] = b
    b.sessions.connect(a.address, 0.0)
    wire.settle()
    assert a.opened()[-1].address == b.address


def test_closing(make: MakeNode) -> None:
    a, b, wire = pair(make)
    a.sessions.connect(b.address, 0.0, b.node_id)
    a.sessions.close(b.node_id)
    a.sessions.validate()
    wire.settle()
    assert not a.sessions.is_open(b.node_id)
    a.sessions.connect(b.address, 0.0)
    wire.settle()
    assert a.sessions.is_open(b.node_id)
