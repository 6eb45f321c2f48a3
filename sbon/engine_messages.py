"""The engine socket: what a daemon and the engine beside it say to each other (DESIGN: The picture).

Both import this module and nothing of each other. Each message is one frame (:mod:`sbon.frames`) of msgpack. The
daemon sends :class:`EngineCall`, the engine answers each with a :class:`EngineReply` of the same ``call_id``, in any
order, and sends :class:`Hello` once, :class:`FragmentStatus` every second, and :class:`LinkLost` when it needs to know
where a producer is now. Commands carry (fragment, generation, owner); the engine refuses generations lower than it
knows.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec

from sbon.fragment import FragmentSpec, PortSpec, Start

PROTOCOL_VERSION = 7


def cursor_name(consumer_fragment_id: str, port: str) -> str:
    """Name of the cursor that one port of a consumer holds on the logs of its producers."""
    return f"{consumer_fragment_id}:{port}"


class _Message(msgspec.Struct, frozen=True, tag_field="type", tag=True):
    pass


class FlightAddress(NamedTuple):
    """Where an engine serves its link logs, with what it takes to pull from it: the engine's own X.509 certificate
    (DER), by which it is known, and the secret that it asks for. Both are new at each start of the engine, and go from
    daemon to daemon only."""

    host: str
    port: int
    certificate: bytes = b""
    secret: bytes = b""


class Hello(_Message, frozen=True):
    """First message of an engine, once Spark is up. ``flight_address`` is that of its link logs."""

    protocol_version: int
    pid: int
    flight_address: FlightAddress
    spark_version: str
    java_version: str


class Bounds(msgspec.Struct, frozen=True):
    """What a fragment may let out: serve of its output, and acknowledge of its input.

    ``until_s``: nothing at all from then on, on the host's monotonic clock, None for no end. ``safe_batch``: output up
    to that batch, and what it and those before it have read; None for all. ``snapshots``: the folder to which the
    fragment's state is to be linked after each batch (:class:`SnapshotTaken`), None if nobody needs it.
    """

    until_s: float | None = None
    safe_batch: int | None = None
    snapshots: str | None = None


UNBOUNDED = Bounds()


class Owned(_Message, frozen=True):
    """Base of commands about one fragment: who says so, under which generation."""

    fragment_id: str
    generation: int
    owner: str


class Instantiate(Owned, frozen=True):
    """Start a fragment in ``folder``, from its checkpoint there if it has one. Reply: ``output_schema``.

    ``port_schemas`` are the ``output_schema`` of each port's producers, in the order of ``spec.ports``.
    ``consumers`` are the cursors (:func:`cursor_name`) that must have acknowledged a segment before it is trimmed;
    empty for a sink. ``bounds`` hold from the start. Reply: ``newest_batch`` as well.
    """

    spec: FragmentSpec
    folder: str
    port_schemas: tuple[str, ...] = ()
    consumers: tuple[str, ...] = ()
    bounds: Bounds = UNBOUNDED


class Rehearse(Owned, frozen=True):
    """Run the fragment for a moment in ``folder``, without input and state: it is about to arrive, and starts faster
    then. Nothing of it is left. ``port_schemas`` as in :class:`Instantiate`.

    ``state``: a folder with a copy of its state, or None: it is run on that, too, and the copy deleted."""

    spec: FragmentSpec
    folder: str
    port_schemas: tuple[str, ...] = ()
    state: str | None = None


class Permit(Owned, frozen=True):
    """From now on these ``bounds`` hold. Reply: ``newest_batch``: nothing later was let out before."""

    bounds: Bounds


class SetReaders(Owned, frozen=True):
    """From now on ``consumers`` are all cursors on the fragment's log; who is new begins with the oldest segment there.

    Reply: ``starts``, of each of them.
    """

    consumers: tuple[str, ...]


class Connect(Owned, frozen=True):
    """Feed ``port`` from ``producer``, which runs under ``producer_generation`` at ``address``; newer wins.

    ``through``: the engine of another reader, which relays it; what it has not is pulled from ``address``.
    """

    port: str
    producer: str
    producer_generation: int
    address: FlightAddress
    through: FlightAddress | None = None


class SetPort(Owned, frozen=True):
    """A port is fed as ``port`` says from now on: another producer may come, or have come, in the place of one."""

    port: PortSpec


class AwaitOutput(Owned, frozen=True):
    """The fragment is about to be stopped. Reply: when it has just let rows out, or if it does not do so often, at
    once."""


class Migrate(Owned, frozen=True):
    """Stop the fragment and let go of its folder, which is then all of its state. Reply: ``state_bytes``."""


class Destroy(Owned, frozen=True):
    """Stop the fragment if it runs and delete its folder. Unknown fragments are already destroyed: no error."""

    folder: str


Command = Instantiate | Rehearse | Permit | SetReaders | Connect | SetPort | AwaitOutput | Migrate | Destroy


class EngineCall(_Message, frozen=True):
    call_id: int
    command: Command


class EngineReply(_Message, frozen=True):
    """``error`` is None, or one line for the user. ``stale`` marks a refused generation, ``damaged`` a fragment whose
    files are not what was written: it can run from a copy, and from these never again."""

    call_id: int
    error: str | None = None
    stale: bool = False
    damaged: bool = False
    output_schema: str | None = None
    state_bytes: int = 0
    newest_batch: int = -1
    starts: dict[str, Start] = {}


class FragmentState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"  # end of stream reached and committed
    FAILED = "failed"
    STOPPED = "stopped"


class PortStatus(msgspec.Struct, frozen=True):
    """Measured at the link: smoothed rates of what was pulled from ``producer``, and rows pulled in all.

    ``settled``: the rates stand on enough seconds of flow to decide by. ``passed``: another producer has come in its
    place, and all that was to be read of it is here.
    """

    port: str
    producer: str
    rate_bytes_per_s: float
    rate_rows_per_s: float
    rows: int
    settled: bool = True
    passed: bool = False


class FragmentStatus(_Message, frozen=True):
    """How one fragment does. Rates are smoothed over some ten seconds; ``selectivity`` is bytes out per byte in.

    ``stream_rows_per_s``: what a source reads, before its filters, None while that is not known, and of all others.
    ``cpu_cores``: processor seconds per second, None until it has run long enough to tell.
    ``damaged``: as in :class:`EngineReply`. ``waited_for_s``: cursors that have read nothing for so long, although all
    who read the same wait for them, as the log is full.
    """

    fragment_id: str
    generation: int
    state: FragmentState
    ports: tuple[PortStatus, ...] = ()
    output_rate_bytes_per_s: float = 0.0
    output_rate_rows_per_s: float = 0.0
    output_rows: int = 0
    late_rows: int = 0
    batch_id: int = -1
    watermark_ms: int | None = None
    selectivity: float | None = None
    state_bytes: int = 0
    error: str | None = None
    stream_rows_per_s: float | None = None
    cpu_cores: float | None = None
    damaged: bool = False
    waited_for_s: dict[str, float] = {}


class LinkLost(_Message, frozen=True):
    """Pulls of ``producer`` fail or are refused; the daemon should :class:`Connect` again when it knows better."""

    fragment_id: str
    generation: int
    port: str
    producer: str
    reason: str


class SnapshotTaken(_Message, frozen=True):
    """The fragment's state after ``batch_id`` lies in ``folder``, complete; whoever is done with it deletes it.

    Its files must not be changed in place: they may be the fragment's own.
    """

    fragment_id: str
    generation: int
    batch_id: int
    folder: str


FromEngine = Hello | EngineReply | FragmentStatus | LinkLost | SnapshotTaken


class ClassArchive(msgspec.Struct, frozen=True):
    """What ``python -m spark_bridge.class_training`` prints, as JSON: the archive of Java's classes, new or there
    before."""

    archive: str
    bytes: int
    is_new: bool
