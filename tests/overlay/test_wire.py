from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.config import OverlayConfig
from overlay.messages import KIND_OF, KINDS, Gossip, Join, JoinAccepted, JoinRefused, Message, Ping, Pong
from overlay.node import Overlay
from overlay.records import MAX_HOST_BYTES, MAX_NAME_BYTES, MAX_VERSION, NodeRecord, Status
from overlay.wire import ENVELOPE_BYTES, MAX_DATAGRAM_BYTES, WIRE_VERSION, UnknownKindError, decode, encode
from sbon.coordinate import MAX_DIMENSIONS, Coordinate
from sbon.errors import RemoteProtocolError
from tests.overlay.fake_network import fake_record

SENDER = "0" * 31 + "7"
versions = st.integers(0, MAX_VERSION)
places = st.floats(-1e4, 1e4)
coordinates = st.builds(
    Coordinate,
    st.lists(places, min_size=1, max_size=MAX_DIMENSIONS).map(tuple),
    st.floats(0, 1e4),
    st.floats(0, 1),
)
records = st.builds(
    NodeRecord,
    node_id=st.text("0123456789abcdef", min_size=32, max_size=32),
    name=st.text(min_size=1, max_size=10),
    host=st.text(min_size=1, max_size=40),
    port=st.integers(1, 65535),
    boot_id=versions,
    coordinate=coordinates,
    incarnation=versions,
    load=st.floats(0, 100),
    accepts_operators=st.booleans(),
    status=st.sampled_from(Status),
)
nonces = st.integers(0, 2**48)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(Ping, nonces, records),
    st.builds(Pong, nonces, records, coordinates, st.floats(0, 1e4)),
    st.builds(Gossip, st.lists(records, max_size=2).map(tuple)),
    st.builds(Join, nonces, records),
    st.builds(JoinAccepted, nonces, records),
    st.builds(JoinRefused, nonces, st.text(max_size=100)),
)


@given(messages, versions)
def test_what_is_encoded_is_decoded(body: Message, boot_id: int) -> None:
    data = encode(SENDER, boot_id, body)
    envelope, decoded = decode(data)
    assert decoded == body
    assert (envelope.version, envelope.sender, envelope.boot_id) == (WIRE_VERSION, SENDER, boot_id)
    assert KINDS[envelope.kind] is type(body)
    assert len(data) - len(msgspec.msgpack.encode(body)) <= ENVELOPE_BYTES


@given(messages, st.data())
def test_mutated_datagrams_are_refused_and_nothing_else(body: Message, data: st.DataObject) -> None:
    mutated = bytearray(encode(SENDER, 1, body))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(mutated) - 1))
        match data.draw(st.sampled_from(("change", "cut", "insert"))):
            case "change":
                mutated[position] = data.draw(st.integers(0, 255))
            case "cut":
                del mutated[position + 1 :]
            case _:
                mutated[position:position] = data.draw(st.binary(max_size=8))
    overlay = Overlay(fake_record(0), OverlayConfig(), random.Random(1), 0.0)
    try:
        decode(bytes(mutated))
    except RemoteProtocolError:
        overlay.receive(bytes(mutated), ("10.0.0.9", 1), 0.0)
        assert overlay.counters["dropped.malformed"] + overlay.counters["dropped.unknown"] == 1
        assert overlay.members() == []
    else:
        overlay.receive(bytes(mutated), ("10.0.0.9", 1), 0.0)  # it may be true, it must not raise
    overlay.validate()


@given(st.binary(max_size=1300))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(data)


def test_deep_nesting_is_refused() -> None:
    for nested in (b"\x91" * 1200, b"\x96\x01\xd9\x20" + SENDER.encode() + b"\x01\xa4ping" + b"\x81\xa1x" * 300):
        with pytest.raises(RemoteProtocolError):
            decode(nested)


def test_an_unknown_kind_or_version_is_told_apart_from_a_broken_one() -> None:
    for changed in ([WIRE_VERSION, SENDER, 1, "sealed", {}], [WIRE_VERSION + 1, SENDER, 1, "ping", {}]):
        with pytest.raises(UnknownKindError):
            decode(msgspec.msgpack.encode(changed))


def test_newer_nodes_may_say_more() -> None:
    body = msgspec.to_builtins(Ping(1, fake_record(0))) | {"new_field": [1, 2]}
    data = msgspec.msgpack.encode([WIRE_VERSION, SENDER, 1, "ping", body, {"seal": b"..."}, "something new"])
    assert decode(data)[1] == Ping(1, fake_record(0))


def test_the_largest_record_fits_in_every_datagram() -> None:
    record = msgspec.structs.replace(
        fake_record(0),
        name="n" * MAX_NAME_BYTES,
        host="h" * MAX_HOST_BYTES,
        port=65535,
        boot_id=MAX_VERSION,
        incarnation=MAX_VERSION,
        load=1.5,
        status=Status.SUSPECT,
        coordinate=Coordinate((1.5,) * MAX_DIMENSIONS, 1.5, 0.5),
    )
    record.check(MAX_DIMENSIONS)
    for body in (Pong(2**48, record, record.coordinate, 1.5), Gossip((record,)), Join(2**48, record)):
        assert len(encode(SENDER, MAX_VERSION, body)) <= MAX_DATAGRAM_BYTES


def test_a_datagram_that_is_too_long_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="1200"):
        encode(SENDER, 1, Gossip((fake_record(0),) * 10))


def test_every_kind_has_one_type() -> None:
    assert {KINDS[kind] for kind in KINDS} == set(KIND_OF)


@pytest.mark.parametrize(
    "change",
    [
        {"node_id": "me"},
        {"name": ""},
        {"name": "n" * 65},
        {"name": "two\nlines"},
        {"host": "0.0.0.0"},
        {"host": "h" * 256},
        {"port": 0},
        {"port": 65536},
        {"boot_id": -1},
        {"incarnation": MAX_VERSION + 1},
        {"load": float("nan")},
        {"load": -1.0},
        {"coordinate": Coordinate((1.0,), 0.0, 0.5)},
    ],
)
def test_records_that_cannot_be_true(change: dict[str, object]) -> None:
    record = fake_record(0)
    record.check(record.coordinate.dimensions)
    with pytest.raises(RemoteProtocolError):
        msgspec.structs.replace(record, **change).check(record.coordinate.dimensions)
