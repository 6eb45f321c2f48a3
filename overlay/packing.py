"""Records as compact bytes: what one node tells another about a third is most of what an overlay sends at rest.

The layout: node id, boot id, incarnation, port, load, flags, address, coordinate, name. Bytes after the name are
skipped, so that newer nodes may say more.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

from overlay.naming import ID_END_BYTES
from overlay.records import NodeRecord, Status
from sbon.coordinate import Coordinate
from sbon.errors import RemoteProtocolError

#: Node id, boot id, incarnation, port, load, flags, and the lengths of the coordinate and of the name.
_HEAD: Final = struct.Struct(">16sQIHfBBB")
_VERSION: Final = struct.Struct(">QI")
_ID_BYTES: Final = 16
_ACCEPTS_OPERATORS: Final = 1
_IPV6: Final = 2

_DECODING_ERRORS: Final = (struct.error, ValueError, OverflowError, OSError)
#: The same bytes come from many: so many different records at least, those read last, are kept as they were read, and
#: twice as many at most.
KEPT: Final = 256
#: Some 160 bytes at most, and room for what newer nodes may say. A longer record would not fit where it is handed on.
MAX_RECORD_BYTES: Final = 256


def pack(record: NodeRecord) -> bytes:
    """Everything but the status, which is each node's own opinion. Raises ValueError for a host that is not numeric."""
    is_ipv6 = ":" in record.host
    try:
        address = socket.inet_pton(socket.AF_INET6 if is_ipv6 else socket.AF_INET, record.host)
    except OSError as error:
        raise ValueError(f"{record.host!r} is not a numeric address") from error
    coordinate, name = record.coordinate.to_bytes(), record.name.encode()
    flags = record.accepts_operators * _ACCEPTS_OPERATORS + is_ipv6 * _IPV6
    head = _HEAD.pack(
        bytes.fromhex(record.node_id),
        record.boot_id,
        record.incarnation,
        record.port,
        record.load,
        flags,
        len(coordinate),
        len(name),
    )
    return head + address + coordinate + name


class _Unpacked:
    """Records that were read lately, by their bytes. When ``most`` are fresh, those that are not are forgotten."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._fresh: dict[bytes, NodeRecord] = {}
        self._stale: dict[bytes, NodeRecord] = {}

    def get(self, data: bytes) -> NodeRecord | None:
        record = self._fresh.get(data)
        if record is None:
            record = self._stale.get(data)
            if record is not None:
                self.put(data, record)
        return record

    def put(self, data: bytes, record: NodeRecord) -> None:
        if len(self._fresh) >= self.most:
            self._stale, self._fresh = self._fresh, {}
        self._fresh[data] = record


_unpacked: Final = _Unpacked(KEPT)


def keep_unpacked(most: int) -> None:
    """For processes of many nodes, which hear of each other: keep so many different records, if that is more."""
    _unpacked.most = max(_unpacked.most, most)


def unpack(data: bytes, dimensions: int) -> NodeRecord:
    """The record, checked. Raises RemoteProtocolError for anything that it cannot be."""
    record = _unpacked.get(data)
    if record is None or record.coordinate.dimensions != dimensions:
        record = _read(data, dimensions)
        _unpacked.put(data, record)
    return record


def _read(data: bytes, dimensions: int) -> NodeRecord:
    if len(data) > MAX_RECORD_BYTES:
        raise RemoteProtocolError(f"a record of {len(data)} bytes")
    try:
        node_id, boot_id, incarnation, port, load, flags, coordinate_size, name_size = _HEAD.unpack_from(data)
        family, address_size = (socket.AF_INET6, 16) if flags & _IPV6 else (socket.AF_INET, 4)
        at = _HEAD.size + address_size
        host = socket.inet_ntop(family, data[_HEAD.size : at])
        coordinate = Coordinate.from_bytes(data[at : at + coordinate_size], dimensions)
        at += coordinate_size
        if len(data) < at + name_size:
            raise RemoteProtocolError("a record that ends too early")
        name = data[at : at + name_size].decode()
    except _DECODING_ERRORS as error:
        raise RemoteProtocolError(f"not a record: {error}") from error
    record = NodeRecord(
        node_id=node_id.hex(),
        name=name,
        host=host,
        port=port,
        boot_id=boot_id,
        coordinate=coordinate,
        incarnation=incarnation,
        load=load,
        accepts_operators=bool(flags & _ACCEPTS_OPERATORS),
        status=Status.ALIVE,
    )
    record.check(dimensions)
    return record


def packed_node_id(data: bytes) -> str:
    """The node that a packed record is about, without reading the rest. Empty if it is no record."""
    return data[:_ID_BYTES].hex() if len(data) > _HEAD.size else ""


def packed_id_end(data: bytes) -> bytes:
    """The end of the id of the node that a packed record is about, as :func:`overlay.naming.id_end` makes it."""
    return data[_ID_BYTES - ID_END_BYTES : _ID_BYTES]


def packed_version(data: bytes) -> tuple[int, int]:
    """The boot id and the incarnation in a packed record, without reading the rest; lowest of all if it is none."""
    return _VERSION.unpack_from(data, _ID_BYTES) if len(data) > _HEAD.size else (-1, -1)
