"""What can be asked over the control socket, and what is answered (docs/control-socket.md).

Each frame (:mod:`sbon.frames`) of a client is a :class:`Call`, each frame of the daemon an :class:`Answer` with the
same ``id``. The requests are a union tagged by ``type``; :data:`REPLIES` says what answers which.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar, get_args

import msgspec

from sbon.coordinate import Coordinate

CONTROL_VERSION = 1
MAX_CALL_BYTES = 1024 * 1024

R = TypeVar("R", bound=msgspec.Struct)

_NIL = msgspec.Raw(b"\xc0")


class Call(msgspec.Struct, frozen=True):
    """``request`` is one of :data:`Request`; ``id`` is the client's own."""

    version: int
    id: int
    request: msgspec.Raw


class Answer(msgspec.Struct, frozen=True):
    """``reply``, or one line ``error`` of the class ``error_kind``.

    More answers to the same call follow unless ``last``. ``id`` is 0 where the call could not be read.
    """

    version: int
    id: int
    reply: msgspec.Raw = _NIL
    error: str | None = None
    error_kind: str | None = None
    last: bool = True


# --- replies


class Done(msgspec.Struct, frozen=True):
    """Carried out; ``message`` says what, in one line."""

    message: str


class StatusReply(msgspec.Struct, frozen=True):
    """``peers`` are the names of the other members, ``operators`` the fragments that this node hosts.

    ``load`` is the load average per core, ``operators_cpu_cores`` what the operators here use of the processors, as far
    as that is measured. ``counters`` count datagrams and requests by fate and kind. ``trust`` is
    "authority", "member", "open" or "closed", ``cluster`` the first half of the cluster's id in hexadecimal.
    """

    name: str
    node_id: str
    address: str
    version: str
    coordinate: Coordinate
    load: float
    accepts_operators: bool
    peers: tuple[str, ...]
    operators: tuple[str, ...]
    engine: str
    uptime_s: float
    counters: dict[str, int]
    trust: str = "open"
    cluster: str | None = None
    certificate_expires_s: float | None = None
    operators_cpu_cores: float = 0.0


class TokenReply(msgspec.Struct, frozen=True):
    """``token`` is for one host, once, until ``expires_s`` (seconds since the epoch)."""

    token: str
    expires_s: float


class NodeInfo(msgspec.Struct, frozen=True):
    """A member as this node sees it; the round trips are from this node, or the one asked about."""

    name: str
    node_id: str
    address: str
    status: str
    coordinate: Coordinate
    load: float
    accepts_operators: bool
    predicted_rtt_ms: float
    measured_rtt_ms: float | None


class NodesReply(msgspec.Struct, frozen=True):
    nodes: tuple[NodeInfo, ...]


class NearestReply(msgspec.Struct, frozen=True):
    """``contacts``: so many hosts were asked to find them."""

    nodes: tuple[NodeInfo, ...]
    contacts: int


class LatencyReply(msgspec.Struct, frozen=True):
    """``measured_rtt_ms``: filtered round trip between the two, None if neither could tell; ``error`` is relative."""

    a: str
    b: str
    predicted_rtt_ms: float
    measured_rtt_ms: float | None
    samples: int
    error: float


class SubmitReply(msgspec.Struct, frozen=True):
    query_id: str


class QueryInfo(msgspec.Struct, frozen=True):
    """``keeper`` is the name of the node that keeps it, the owner of its sink.

    ``state``: deploying, running, moving, finished, failed or cancelled. Usages are in bytes in transit, of where its
    operators are now, and if all of them were at the consumer.
    """

    query_id: str
    state: str
    keeper: str
    fragments: int
    submitted_s: float
    sql: str
    error: str | None = None
    network_usage: float | None = None
    network_usage_at_consumer: float | None = None


class QueriesReply(msgspec.Struct, frozen=True):
    queries: tuple[QueryInfo, ...]


class OperatorInfo(msgspec.Struct, frozen=True):
    """A fragment: where it is, under which generation, and what was measured of it and at its links.

    ``selectivity``: bytes out per byte in, and as it was estimated before; ``cpu_cores``: processor seconds per second.
    """

    fragment_id: str
    query_id: str
    kind: str
    node: str
    generation: int
    state: str
    input_rate_bytes_per_s: float = 0.0
    input_rate_rows_per_s: float = 0.0
    output_rate_bytes_per_s: float = 0.0
    output_rows: int = 0
    late_rows: int = 0
    state_bytes: int = 0
    selectivity: float | None = None
    watermark_ms: int | None = None
    error: str | None = None
    output_rate_rows_per_s: float = 0.0
    estimated_selectivity: float | None = None
    cpu_cores: float | None = None


class OperatorsReply(msgspec.Struct, frozen=True):
    operators: tuple[OperatorInfo, ...]


class LinkInfo(msgspec.Struct, frozen=True):
    """What flows from a fragment of ``query_id`` to another one, or to a reader of another query, between which nodes.

    Rates are None until they are measured. ``is_measured``: whether placement goes by what is measured, which is once
    all links of the query are. ``in_transit_bytes``: that rate times half the round trip.
    """

    query_id: str
    source: str
    source_node: str
    target: str
    target_node: str
    estimated_bytes_per_s: float
    bytes_per_s: float | None
    rows_per_s: float | None
    rtt_ms: float
    is_measured: bool
    in_transit_bytes: float


class LinksReply(msgspec.Struct, frozen=True):
    links: tuple[LinkInfo, ...]


class Candidate(msgspec.Struct, frozen=True):
    """A host that an operator could have; costs in bytes in transit, of the whole plan.

    ``measured`` is False where a round trip that the measured cost needs had to be predicted.
    """

    node: str
    load: float
    predicted_cost: float
    measured_cost: float
    measured: bool


class OperatorExplanation(msgspec.Struct, frozen=True):
    """Why a fragment is where it is. Pinned ones have no candidates; ``candidates`` ascend by measured cost."""

    fragment_id: str
    kind: str
    node: str
    pinned: bool
    sql: str
    reason: str
    virtual_point_ms: tuple[float, ...] | None = None
    candidates: tuple[Candidate, ...] = ()
    cost: float | None = None
    runner_up: str | None = None
    runner_up_cost: float | None = None


class StreamInfo(msgspec.Struct, frozen=True):
    """Something that a query can read, or write to, and the ``node`` that has it.

    ``kind``: stream, sink, or derived: the output of a running fragment of ``query_id``, called after it; ``computes``
    says of what. ``schema`` is a Spark DDL string of a stream, and the columns' names of what is derived. The rate of a
    stream is declared until a query has read it.
    """

    name: str
    kind: str
    node: str
    schema: str = ""
    event_time: str | None = None
    rate_bytes_per_s: float | None = None
    query_id: str | None = None
    computes: str | None = None
    rate_is_measured: bool = False


class StreamsReply(msgspec.Struct, frozen=True):
    """``silent``: names of nodes that were asked and did not answer."""

    streams: tuple[StreamInfo, ...]
    silent: tuple[str, ...] = ()


class RegionMember(msgspec.Struct, frozen=True):
    """``hosts``: below it, with itself."""

    name: str
    hosts: int


class RegionInfo(msgspec.Struct, frozen=True):
    """A cluster, as its coordinator knows it: ``members``, and what there is below them in all.

    ``generation`` counts its coordinators, ``takers`` hosts that take operators; ``names`` are streams and sinks.
    """

    level: int
    cluster: str
    generation: int
    coordinator: str
    standby: str | None
    members: tuple[RegionMember, ...]
    hosts: int
    takers: int
    names: tuple[str, ...]


class RegionsReply(msgspec.Struct, frozen=True):
    """From the node's own cluster up to the top. ``height`` and ``hosts`` are of the whole hierarchy."""

    regions: tuple[RegionInfo, ...]
    height: int
    hosts: int


class Reuse(msgspec.Struct, frozen=True):
    """A fragment of one query that another one reads. ``from_ms``: rows of event times from there on, in ms since the
    epoch; None for all rows. ``node`` is where the fragment runs, of a reader where that does; ``through``: the node
    of another reader that relays it."""

    fragment_id: str
    query_id: str
    node: str | None
    computes: str | None = None
    from_ms: int | None = None
    through: str | None = None


class Explanation(msgspec.Struct, frozen=True):
    """Usages are in bytes in transit, without load: of this placement, and of everything at the consumer.

    ``reused`` are fragments of other queries that it reads, ``readers`` the queries that read fragments of this one.
    """

    query_id: str
    sql: str
    operators: tuple[OperatorExplanation, ...]
    network_usage: float | None = None
    network_usage_at_consumer: float | None = None
    reused: tuple[Reuse, ...] = ()
    readers: tuple[Reuse, ...] = ()
    links: tuple[LinkInfo, ...] = ()


class Event(msgspec.Struct, frozen=True):
    """Something that happened at ``node``. ``time_s`` is in seconds since the epoch, ``fields`` are by kind.

    ``sequence`` counts from 0 at each start of the daemon.
    """

    sequence: int
    time_s: float
    node: str
    kind: str
    fields: dict[str, Any] = {}


# --- requests


class RequestFor(msgspec.Struct, Generic[R], frozen=True, tag_field="type", tag=str.lower):
    """A request that is answered by an R."""


# --- the overlay


class Join(RequestFor[Done], frozen=True):
    """Enter the overlay of the node at ``address``, "HOST:PORT". Answered once that node has agreed.

    With a ``token``, a certificate of its cluster is fetched first.
    """

    address: str
    token: str | None = None


class Leave(RequestFor[Done], frozen=True):
    """Say goodbye to all members. Refused while operators run here."""


class Status(RequestFor[StatusReply], frozen=True):
    """How this node is."""


class Nodes(RequestFor[NodesReply], frozen=True):
    """This node and its neighbours: in an overlay of up to two dozen nodes, all of them."""


class Latency(RequestFor[LatencyReply], frozen=True):
    """What is known about the path between two nodes, by name or id."""

    a: str
    b: str


class Nearest(RequestFor[NearestReply], frozen=True):
    """The ``k`` nodes nearest to ``node`` (None: this one) by predicted round trip."""

    k: int = 10
    node: str | None = None


class Emulate(RequestFor[Done], frozen=True):
    """From now on the round trip between two nodes takes ``rtt_ms``: set at both ends, which need ``[emulation]``."""

    a: str
    b: str
    rtt_ms: float


# --- trust


class MakeToken(RequestFor[TokenReply], frozen=True, tag="token"):
    """Let one host join, of that ``name`` if one is given. Only on the host of the cluster's authority."""

    name: str | None = None
    ttl_s: float = 3600.0


class Renew(RequestFor[Done], frozen=True):
    """Fetch a new certificate for this host now; it happens by itself in time."""


class Revoke(RequestFor[Done], frozen=True):
    """Void the certificates of a host, by name or id. Only on the host of the cluster's authority."""

    node: str


# --- queries


class Submit(RequestFor[SubmitReply], frozen=True):
    """Plan, place and start ``INSERT INTO sink SELECT ...``. Answered when its operators run.

    ``until_s``: when it ends by itself, in seconds since the epoch; None: never. ``from_s``: of the streams only what
    has an event time from then on; None: all there is.
    """

    sql: str
    until_s: float | None = None
    from_s: float | None = None


class Streams(RequestFor[StreamsReply], frozen=True):
    """What queries can name, and what running operators put out."""


class Regions(RequestFor[RegionsReply], frozen=True):
    """The clusters that this node is in, from the lowest to the top."""


class Queries(RequestFor[QueriesReply], frozen=True):
    """The queries of all nodes that can be reached."""


class Operators(RequestFor[OperatorsReply], frozen=True):
    """The fragments of all queries, and how they do."""


class Links(RequestFor[LinksReply], frozen=True):
    """What flows between the fragments of all queries that run."""


class Explain(RequestFor[Explanation], frozen=True):
    """Why each operator of ``query`` is where it is."""

    query: str


class Migrate(RequestFor[Done], frozen=True):
    """Move a fragment to ``node``. Answered when it runs there."""

    fragment: str
    node: str


class Cancel(RequestFor[Done], frozen=True):
    """End a query and delete its operators' state. What its sink wrote stays."""

    query: str


class Watch(RequestFor[Event], frozen=True, tag="events"):
    """The latest events of this node, an answer each, and those to come if ``follow``."""

    follow: bool = False


Request = (
    Join
    | Leave
    | Status
    | Nodes
    | Latency
    | Nearest
    | Emulate
    | MakeToken
    | Renew
    | Revoke
    | Submit
    | Streams
    | Regions
    | Queries
    | Operators
    | Links
    | Explain
    | Migrate
    | Cancel
    | Watch
)


#: Request type -> type of its reply, of each one if it has many.
REPLIES: dict[type[Any], type[msgspec.Struct]] = {
    kind: get_args(kind.__orig_bases__[0])[0] for kind in get_args(Request)
}
