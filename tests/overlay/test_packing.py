"""Records as compact bytes, and what no record can be."""

from __future__ import annotations

import contextlib
import ipaddress
import socket

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.packing import MAX_RECORD_BYTES, pack, packed_node_id, packed_version, unpack
from overlay.records import MAX_BOOT_ID, MAX_HOST_BYTES, MAX_INCARNATION, MAX_NAME_BYTES, NodeRecord
from sbon.coordinate import FACTORS, MAX_DIMENSIONS, Coordinate
from sbon.errors import RemoteProtocolError
from tests.overlay.fake_network import fake_record

DIMENSIONS = fake_record(0).coordinate.dimensions


def as_written(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """The one spelling that packing keeps: "::ffff:0:1" is "::ffff:0.0.0.1" afterwards."""
    return socket.inet_ntop(socket.AF_INET if address.version == 4 else socket.AF_INET6, address.packed)


#: What single precision (ms) and half precision (error, factors) hold exactly.
exact = st.integers(-4000, 4000).map(lambda n: n / 8)
records = st.builds(
    NodeRecord,
    node_id=st.text("0123456789abcdef", min_size=32, max_size=32),
    name=st.text(st.characters(categories=("L", "N")), min_size=1, max_size=16),
    host=st.ip_addresses().map(as_written).filter(lambda host: host not in ("0.0.0.0", "::")),
    port=st.integers(1, 65535),
    boot_id=st.integers(0, MAX_BOOT_ID),
    coordinate=st.builds(
        Coordinate,
        st.tuples(*[exact] * DIMENSIONS),
        exact.map(abs),
        st.integers(0, 8).map(lambda n: n / 8),
        st.tuples(*[st.integers(-96, 96).map(lambda n: n / 8)] * FACTORS),
    ),
    incarnation=st.integers(0, MAX_INCARNATION),
    load=st.integers(0, 800).map(lambda n: n / 8),
    accepts_operators=st.booleans(),
)


@given(records)
def test_what_is_packed_is_unpacked(record: NodeRecord) -> None:
    data = pack(record)
    assert unpack(data, DIMENSIONS) == record
    assert packed_node_id(data) == record.node_id
    assert packed_version(data) == record.version
    assert unpack(data + b"of tomorrow", DIMENSIONS) == record


@given(records, st.data())
def test_mutated_records_are_other_possible_ones_or_refused(record: NodeRecord, data: st.DataObject) -> None:
    mutated = bytearray(pack(record))
    for _ in range(data.draw(st.integers(1, 4))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    del mutated[data.draw(st.integers(0, len(mutated))) :]
    with contextlib.suppress(RemoteProtocolError):
        unpack(bytes(mutated), DIMENSIONS).check(DIMENSIONS)
    packed_node_id(bytes(mutated)), packed_version(bytes(mutated))


@given(records)
def test_records_of_other_dimensions_are_refused(record: NodeRecord) -> None:
    with pytest.raises(RemoteProtocolError, match="dimensions"):
        unpack(pack(record), DIMENSIONS + 1)


def test_a_record_that_would_not_fit_where_it_is_handed_on_is_refused() -> None:
    data = pack(fake_record(0))
    assert unpack(data.ljust(MAX_RECORD_BYTES, b"."), DIMENSIONS) == unpack(data, DIMENSIONS)
    with pytest.raises(RemoteProtocolError, match="bytes"):
        unpack(data.ljust(MAX_RECORD_BYTES + 1, b"."), DIMENSIONS)
    place = Coordinate((1.0,) * MAX_DIMENSIONS, 1.0, 0.5, (0.0,) * FACTORS)
    largest = msgspec.structs.replace(fake_record(0), name="n" * MAX_NAME_BYTES, host="2001:db8::1", coordinate=place)
    assert len(pack(largest)) <= MAX_RECORD_BYTES - 64


def test_the_largest_coordinate_fits_in_its_budget() -> None:
    coordinate = Coordinate((1.5,) * MAX_DIMENSIONS, 1.5, 0.5, (1.0,) * FACTORS)
    assert len(coordinate.to_bytes()) <= 128
    assert len(fake_record(0).coordinate.to_bytes()) == 28


@pytest.mark.parametrize(
    "change",
    [
        {"node_id": "me"},
        {"name": ""},
        {"name": "n" * (MAX_NAME_BYTES + 1)},
        {"name": "two\nlines"},
        {"host": "0.0.0.0"},
        {"host": "h" * (MAX_HOST_BYTES + 1)},
        {"port": 0},
        {"port": 65536},
        {"boot_id": -1},
        {"incarnation": MAX_INCARNATION + 1},
        {"load": float("nan")},
        {"load": -1.0},
        {"coordinate": Coordinate((1.0,), 0.0, 0.5)},
    ],
)
def test_records_that_cannot_be_true(change: dict[str, object]) -> None:
    record = fake_record(0)
    record.check(DIMENSIONS)
    with pytest.raises(RemoteProtocolError):
        msgspec.structs.replace(record, **change).check(DIMENSIONS)
