"""What daemons ask a host: what it has and measures, and to run fragments of queries.

Whoever asks knows of the fragment by an :class:`~daemon.peering.query_messages.Assignment`.
"""

from __future__ import annotations

import msgspec

from daemon.peering.query_messages import Assignment, Location
from daemon.peering.well_formed import check_keepers
from overlay.records import NodeRecord
from sbon.engine_messages import FlightAddress
from sbon.fragment import Computes
from sbon.placement.capacity import Demand, Resources
from sbon.placement.questions import KnownPath
from sbon.streams import SinkSpec, StreamSpec

# --- what a node has


class Describe(msgspec.Struct, frozen=True):
    """Which streams and sinks does the node own?"""


class DerivedStream(msgspec.Struct, frozen=True):
    """The output of a fragment that runs on a node: others may read it, by leave of its query's ``keepers``.

    ``rate_bytes_per_s`` is measured, 0.0 until it is. ``records`` are of the keepers, as far as the host knows them.
    """

    fragment_id: str
    query_id: str
    computes: Computes
    keepers: tuple[str, ...]
    rate_bytes_per_s: float
    records: tuple[NodeRecord, ...] = ()

    def __post_init__(self) -> None:
        check_keepers(self.keepers)


class Description(msgspec.Struct, frozen=True):
    """``measured``: names of those streams whose rates are not declared, but measured."""

    streams: tuple[StreamSpec, ...]
    sinks: tuple[SinkSpec, ...]
    derived: tuple[DerivedStream, ...] = ()
    measured: tuple[str, ...] = ()


class MeasureLatency(msgspec.Struct, frozen=True):
    """What are the round trips from the node to these? It measures those that it does not know, for some seconds.

    ``records`` are of those that it may not have heard of. ``afresh``: what it knows does not count.
    """

    node_ids: tuple[str, ...]
    records: tuple[NodeRecord, ...] = ()
    afresh: bool = False


class Latencies(msgspec.Struct, frozen=True):
    """Filtered round trips by node id, without those that could not be measured."""

    rtt_ms: dict[str, float]


class TellMeasuredPaths(msgspec.Struct, frozen=True):
    """Which paths has the node measured lately, for its coordinate?"""


class MeasuredPaths(msgspec.Struct, frozen=True):
    """What the node says about itself, and the paths from it."""

    record: NodeRecord
    paths: tuple[KnownPath, ...]


# --- to hosts


class TellRoomLeft(msgspec.Struct, frozen=True):
    """What has the node left for operators?"""


class RoomLeft(msgspec.Struct, frozen=True):
    room: Resources


class Reserve(msgspec.Struct, frozen=True):
    """Hold room for these fragments of a query (fragment id -> what it takes) for some seconds, in place of whatever is
    held for the query there. None: hold nothing for it any more."""

    query_id: str
    taken: dict[str, Demand]


class Reserved(msgspec.Struct, frozen=True):
    """``refusal``: why not, empty if it is held; ``room`` is then what there is."""

    refusal: str = ""
    room: Resources = Resources()


class PrepareEngine(msgspec.Struct, frozen=True):
    """Have an engine running for this query. Answered when it is ready. What was reserved for the query stays so for
    minutes from now on, until its fragments are here."""

    query_id: str
    #: The fragment that is on its way, if it comes from another host: it is rehearsed. There must be room for its
    #: state, and the same Spark.
    coming: Assignment | None = None
    state_bytes: int = 0
    spark_version: str = ""


class HostFragment(msgspec.Struct, frozen=True):
    """Start a new fragment. Answered when it runs."""

    assignment: Assignment


class Hosted(msgspec.Struct, frozen=True):
    flight_address: FlightAddress
    output_schema: str


class ReleaseFragment(msgspec.Struct, frozen=True):
    """Stop the fragment and delete its folder, if its generation there is not above ``generation``."""

    fragment_id: str
    generation: int


class ConnectTo(msgspec.Struct, frozen=True):
    """A producer of ``consumer`` runs at ``producer`` now."""

    consumer: str
    producer: Location


class SetPorts(msgspec.Struct, frozen=True):
    """To the owner of a fragment: its ports are fed as in this assignment now. Nothing else of it is news."""

    assignment: Assignment
