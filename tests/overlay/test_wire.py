"""Bodies of datagrams: there and back, mutated, of newer nodes, of kinds that we do not know."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.messages import (
    HEARTBEAT,
    KIND_OF,
    Beat,
    Exchange,
    ExchangeReply,
    Join,
    JoinReply,
    Leave,
    LinkReply,
    LinkRequest,
    Message,
    Newcomer,
    Ping,
    Pong,
    Relay,
    Relayed,
    SearchReply,
    SearchRequest,
    Surroundings,
    Unlink,
)
from overlay.naming import id_end, id_ends
from overlay.session_wire import MAX_BODY_BYTES
from overlay.wire import decode, encode
from sbon.coordinate import FACTORS, MAX_DIMENSIONS, Coordinate
from sbon.errors import RemoteProtocolError, UnknownKindError
from sbon.objectives import Endpoint, HasProperty, LeastUsage, NearestTo

places = st.floats(-1e4, 1e4)
coordinates = st.builds(
    Coordinate,
    st.lists(places, min_size=1, max_size=MAX_DIMENSIONS).map(tuple),
    st.floats(0, 1e4),
    st.floats(0, 1),
    st.just(()) | st.tuples(*[st.floats(-12, 12)] * FACTORS),
)
nonces = st.integers(0, 2**48)
records = st.binary(max_size=120)
several = st.lists(records, max_size=5).map(tuple)
objectives = st.one_of(
    st.builds(NearestTo, coordinates),
    st.builds(LeastUsage, st.lists(st.builds(Endpoint, coordinates, places), max_size=3).map(tuple)),
    st.builds(HasProperty, coordinates),
)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(Ping, nonces, st.booleans(), records),
    st.builds(Pong, nonces, st.integers(0, 2**31), records, st.booleans(), records),
    st.builds(Beat, records),
    st.builds(Join, nonces, st.integers(1, 8), records),
    st.builds(JoinReply, nonces, records, several, st.text(max_size=100)),
    st.builds(LinkRequest, records, st.booleans()),
    st.builds(LinkReply, st.booleans(), records),
    st.builds(Unlink, st.booleans()),
    st.builds(Leave),
    st.builds(Exchange, records, st.binary(max_size=54)),
    st.builds(ExchangeReply, several),
    st.builds(Relay, nonces, records),
    st.builds(Relayed, nonces),
    st.builds(SearchRequest, nonces, objectives),
    st.builds(SearchReply, nonces, records, several),
    st.builds(Newcomer, records, st.integers(0, 300)),
    st.builds(Surroundings, several),
)


@given(messages)
def test_what_is_encoded_is_decoded(body: Message) -> None:
    assert decode(encode(body)) == body


@given(messages, st.data())
def test_mutated_bodies_are_another_message_or_refused(body: Message, data: st.DataObject) -> None:
    mutated = bytearray(encode(body))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(mutated) - 1))
        match data.draw(st.sampled_from(("change", "cut", "insert"))):
            case "change":
                mutated[position] = data.draw(st.integers(0, 255))
            case "cut":
                del mutated[position + 1 :]
            case _:
                mutated[position:position] = data.draw(st.binary(max_size=8))
    try:
        message = decode(bytes(mutated))
    except RemoteProtocolError:
        return
    assert type(message) in KIND_OF


@given(st.binary(max_size=1300).filter(lambda data: data[:1] < b"\x90"))
def test_what_is_no_array_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(data)


def test_deep_nesting_is_refused() -> None:
    for nested in (b"\x91" * 1200, b"\x92\x0e" + b"\x81\xa1x" * 300):
        with pytest.raises(RemoteProtocolError):
            decode(nested)


def test_an_unknown_kind_is_told_apart_from_a_broken_message() -> None:
    with pytest.raises(UnknownKindError):
        decode(msgspec.msgpack.encode([99, "of tomorrow"]))
    for broken in ([1, "no nonce"], [], [None]):
        with pytest.raises(RemoteProtocolError) as raised:
            decode(msgspec.msgpack.encode(broken))
        assert not isinstance(raised.value, UnknownKindError)


def test_newer_nodes_may_say_more() -> None:
    assert decode(msgspec.msgpack.encode([1, 7, True, b"", {"of": "tomorrow"}])) == Ping(7, True)


def test_a_body_that_is_too_long_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match=str(MAX_BODY_BYTES)):
        encode(ExchangeReply((b"x" * 120,) * 10))


def test_no_message_is_taken_for_a_heartbeat() -> None:
    with pytest.raises(RemoteProtocolError):
        decode(HEARTBEAT)


def test_ends_of_ids_are_found_again() -> None:
    ids = [f"{i:032x}" for i in range(40)]
    assert id_ends(b"".join(map(id_end, ids))) == list(map(id_end, ids))
