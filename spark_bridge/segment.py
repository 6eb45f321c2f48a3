"""A segment: what one micro-batch of a fragment put out, as it lies in a link log and travels to consumers.

Layout: magic, header length, header (msgpack), body (an Arrow IPC stream, empty if there are no rows). A segment
without rows still carries the watermark and the end of the stream (DESIGN: Engine and links).
"""

from __future__ import annotations

import hashlib
import struct

import msgspec
import pyarrow as pa

from sbon.errors import RemoteProtocolError
from sbon.frames import decode_body

_MAGIC = b"SBS1"
_PREFIX = struct.Struct(">4sI")
_MAX_HEADER_BYTES = 64 * 1024


class SegmentHeader(msgspec.Struct, frozen=True):
    """What a consumer needs to know before it looks at the rows. Times are event times in ms since the epoch.

    ``newest_before_ms``: no row of any earlier segment is later than this, None if there is no such row.
    ``watermark_ms``: every row of every later segment has event time >= this; None while nothing is known yet.
    ``checksum`` is BLAKE2b-128 of the body, ``schema_id`` of its schema.
    """

    version: int
    fragment_id: str
    generation: int
    batch_id: int
    schema_id: str
    rows: int
    min_event_time_ms: int | None
    max_event_time_ms: int | None
    newest_before_ms: int | None
    watermark_ms: int | None
    end_of_stream: bool
    checksum: str

    @property
    def newest_ms(self) -> int | None:
        """No row of this segment or of an earlier one is later; None if there is no row."""
        known = (at_ms for at_ms in (self.newest_before_ms, self.max_event_time_ms) if at_ms is not None)
        return max(known, default=None)


_HEADERS = msgspec.msgpack.Decoder(SegmentHeader)


def encode_segment(
    fragment_id: str,
    generation: int,
    batch_id: int,
    table: pa.Table,
    *,
    event_time: str | None,
    watermark_ms: int | None,
    end_of_stream: bool,
    newest_before_ms: int | None = None,
) -> tuple[SegmentHeader, bytes]:
    """Return the header and the whole segment for ``table``, whose ``event_time`` column is a timestamp."""
    body = _table_bytes(table) if table.num_rows else b""
    first_ms, last_ms = _event_time_range_ms(table, event_time)
    header = SegmentHeader(
        version=1,
        fragment_id=fragment_id,
        generation=generation,
        batch_id=batch_id,
        schema_id=_digest(table.schema.serialize().to_pybytes()),
        rows=table.num_rows,
        min_event_time_ms=first_ms,
        max_event_time_ms=last_ms,
        newest_before_ms=newest_before_ms,
        watermark_ms=watermark_ms,
        end_of_stream=end_of_stream,
        checksum=_digest(body),
    )
    encoded = msgspec.msgpack.encode(header)
    return header, _PREFIX.pack(_MAGIC, len(encoded)) + encoded + body


def decode_segment(data: bytes) -> tuple[SegmentHeader, bytes]:
    """Return header and body. RemoteProtocolError if the bytes are not a whole, undamaged segment."""
    header, start = decode_header(data)
    body = data[start:]
    if _digest(body) != header.checksum:
        raise RemoteProtocolError(
            f"segment {header.batch_id} of {header.fragment_id} is damaged: its checksum does not match"
        )
    return header, body


def decode_header(data: bytes) -> tuple[SegmentHeader, int]:
    """Return the header and where the body starts; the body is not looked at."""
    if len(data) < _PREFIX.size:
        raise RemoteProtocolError("not a segment: too short")
    magic, length = _PREFIX.unpack_from(data)
    if magic != _MAGIC or length > _MAX_HEADER_BYTES or _PREFIX.size + length > len(data):
        raise RemoteProtocolError("not a segment: bad prefix")
    return decode_body(_HEADERS, data[_PREFIX.size : _PREFIX.size + length]), _PREFIX.size + length


def body_table(body: bytes) -> pa.Table | None:
    """The rows of a segment's body, None if it has none."""
    return pa.ipc.open_stream(body).read_all() if body else None


def rows_between(body: bytes, event_time: str, from_ms: int | None, until_ms: int | None) -> tuple[int, bytes]:
    """How many of the rows have an event time from ``from_ms`` on and before ``until_ms``, and a body with these."""
    table = body_table(body)
    if table is None:
        return 0, b""
    times_us = table[event_time].cast(pa.timestamp("us"), safe=False).cast(pa.int64())
    if from_ms is not None:
        kept = pa.compute.greater_equal(times_us, from_ms * 1000)
        table, times_us = table.filter(kept), times_us.filter(kept)
    if until_ms is not None:
        table = table.filter(pa.compute.less(times_us, until_ms * 1000))
    return table.num_rows, _table_bytes(table) if table.num_rows else b""


def _table_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _event_time_range_ms(table: pa.Table, event_time: str | None) -> tuple[int | None, int | None]:
    if event_time is None or table.num_rows == 0:
        return None, None
    limits = pa.compute.min_max(table[event_time].cast(pa.timestamp("us"), safe=False).cast(pa.int64()))
    first, last = limits["min"].as_py(), limits["max"].as_py()
    return (None, None) if first is None else (first // 1000, last // 1000)


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
