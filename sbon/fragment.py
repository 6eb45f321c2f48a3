"""The fragment: the unit of a query that runs, moves and is shared (DESIGN: Queries, fragments, ports).

A fragment is one SQL text over ordered, named inputs, its *ports*; on the engine it is one Structured Streaming query.
Text and order are frozen for its life: a restored join whose inputs were swapped would be silently wrong, so
:meth:`FragmentSpec.signature` is checked before a checkpoint is opened.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum

import msgspec

from sbon.streams import SinkSpec, StreamSpec

#: Watermark of a stream that has ended, in ms since the epoch (9999-01-01): far enough to close every window.
END_OF_STREAM_MS = 253_370_764_800_000


class FragmentKind(StrEnum):
    SOURCE = "source"  # reads an external stream; pinned to its owner
    FILTER = "filter"  # a chain of stateless operators
    UNION = "union"
    JOIN = "join"
    AGGREGATE = "aggregate"
    SINK = "sink"  # writes to an external sink; pinned to its owner


class Switch(msgspec.Struct, frozen=True):
    """A port changes its producer at a point T of event time: rows from before T are those of ``old``, the later ones
    those of ``new``. Both give the same rows, so it makes no difference where T is.

    T is chosen where the port is: later than all that was taken of ``old``, and not before ``from_ms`` (ms since the
    epoch), from which on ``new`` has all rows; None: it has all there are. ``event_time`` is the column of both.
    """

    old: str
    new: str
    event_time: str
    from_ms: int | None = None


class PortSpec(msgspec.Struct, frozen=True):
    """One input. ``name`` is the view that the fragment's SQL reads; ``producers`` are fragment ids.

    ``first_batches``: of producers that ran before there was this port, the batch with which it begins to read.
    ``switch``: how it came, or is about to come, from one producer to another one. ``changes``: how often what feeds it
    was changed.
    """

    name: str
    producers: tuple[str, ...]
    first_batches: dict[str, int] = {}
    switch: Switch | None = None
    changes: int = 0


class Start(msgspec.Struct, frozen=True):
    """Where a consumer begins to read a fragment that has been running: with a batch, and with an event time in ms
    since the epoch, None if there is no row before that batch."""

    first_batch: int = 0
    from_ms: int | None = None


class WatermarkSteps(msgspec.Struct, frozen=True):
    """The watermarks that make a difference to a fragment: ``phase_ms`` + n * ``every_ms``. The others it takes for the
    last of these."""

    every_ms: int
    phase_ms: int = 0

    def reached_ms(self, watermark_ms: int) -> int:
        """The last step that is not after ``watermark_ms``."""
        return watermark_ms - (watermark_ms - self.phase_ms) % self.every_ms

    def next_ms(self, watermark_ms: int) -> int:
        """The first step that is after ``watermark_ms``."""
        return self.reached_ms(watermark_ms) + self.every_ms


class Computes(msgspec.Struct, frozen=True):
    """What a fragment's output is, in terms that do not depend on how its query is written: others may read it, too.

    ``body`` and ``filters`` are those of a :class:`sbon.planning.signature.Signature`; ``columns`` are the names of the
    output's columns, by what they are called there; ``event_time`` is one of these. ``streams``: names of those that it
    is made of. ``from_ms``: it has all rows of event times from then on, in ms since the epoch; None: all there are.
    """

    body: str
    filters: tuple[str, ...]
    columns: dict[str, str]
    event_time: str
    streams: tuple[str, ...] = ()
    from_ms: int | None = None

    @property
    def text(self) -> str:
        """For people."""
        return f"{self.body} WHERE {' AND '.join(self.filters)}" if self.filters else self.body


class FragmentSpec(msgspec.Struct, frozen=True):
    """What a fragment computes; where it runs is not part of it.

    ``sql`` reads the views named by ``ports``; that of a source reads the one view ``source``.
    ``event_time`` is the output column that later operators window or join on, None if there is none.
    ``watermark_lag_ms``: every later output row has event time >= (input watermark - lag).
    ``watermark_steps``: of an aggregate, where its windows end; None: any watermark counts.
    ``stateful``: its windows or join buffers close with Spark's own watermark, one batch behind the input's.
    ``output_interval_ms``: of a sink, how often it writes; 0: as rows come.
    ``selectivity``: estimated bytes out per byte in, until it has been measured.
    ``computes``: None for what nobody else can read. That of a source is for its own query alone: others read the
    stream at a source of their own, which costs no more, and it is whole.
    """

    fragment_id: str
    query_id: str
    kind: FragmentKind
    sql: str
    ports: tuple[PortSpec, ...] = ()
    event_time: str | None = None
    watermark_lag_ms: int = 0
    watermark_steps: WatermarkSteps | None = None
    stateful: bool = False
    selectivity: float = 1.0
    stream: StreamSpec | None = None
    sink: SinkSpec | None = None
    output_interval_ms: int = 0
    computes: Computes | None = None

    @property
    def pinned(self) -> bool:
        """Sources and sinks stay with the node that owns them; everything else may run anywhere."""
        return self.kind in (FragmentKind.SOURCE, FragmentKind.SINK)

    @property
    def port_changes(self) -> int:
        """How often what feeds its ports was changed."""
        return sum(port.changes for port in self.ports)

    def signature(self) -> str:
        """Hash of what makes a checkpoint of this fragment readable: its SQL and its ports in order."""
        frozen = msgspec.msgpack.encode((self.sql, [port.name for port in self.ports], self.event_time))
        return hashlib.blake2b(frozen, digest_size=16).hexdigest()
