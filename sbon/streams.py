"""Streams and sinks as their owners declare them: what enters the overlay, and where results leave it."""

from __future__ import annotations

import msgspec


class StreamSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stream that one node owns, in the terms of Spark's ``readStream``.

    ``format`` is any streaming format that Spark knows, or ``replay`` (a file of past events played as a live stream).
    ``schema`` is a Spark DDL string. Rows more than ``watermark_delay_s`` older than the newest event seen are late:
    they are dropped at the source and counted there, and nowhere later.
    ``rate_bytes_per_s`` and ``row_bytes`` are estimates that only start things; measurements replace them.
    """

    name: str
    format: str
    schema: str
    event_time: str
    options: dict[str, str] = {}
    watermark_delay_s: float = 0.0
    rate_bytes_per_s: float = 10_000.0
    row_bytes: float = 100.0


class SinkSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A place at one node where results are written, in the terms of Spark's ``writeStream``.

    ``format = "parquet"`` with ``options = {path = "..."}`` is our own exactly-once file sink; every other format is
    handed to Spark batch by batch with (query, sink, batch) as its key, and is at-least-once without using it.
    """

    name: str
    format: str
    options: dict[str, str] = {}
