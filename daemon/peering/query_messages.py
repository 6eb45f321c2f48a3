"""What daemons say to each other about queries (requests of :mod:`daemon.peering.requests`), and what they write down.

Roles: the *keepers* of a query, three where there are as many nodes, keep its record and grant generations by majority;
the first of them owns its sink and watches over it, the others stand in. A *host* runs fragments, and a *replica* holds
a copy of a fragment's state that it can be restarted from. Whoever is asked to *submit*, *migrate* or *cancel* finds a
keeper and passes it on. Everything about one fragment carries its generation, and both sides refuse lower ones
(DESIGN: Ownership).
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from daemon.peering.well_formed import MalformedError, check_counts, check_keepers, check_spec
from overlay.records import NodeRecord
from sbon.engine_messages import FlightAddress, FragmentStatus
from sbon.errors import SbonError
from sbon.fragment import FragmentSpec, Start, Switch
from sbon.network_usage import Link
from sbon.placement.capacity import Demand
from sbon.placement.choice import OperatorChoice


class Location(msgspec.Struct, frozen=True):
    """Where a fragment runs, and under which generation. ``flight_address`` is None until its engine is up."""

    fragment_id: str
    generation: int
    node_id: str
    flight_address: FlightAddress | None = None


class KeptBy(msgspec.Struct, frozen=True):
    """Who keeps a query, by node id, after so many ``changes`` of them."""

    keepers: tuple[str, ...]
    changes: int = 0

    def __post_init__(self) -> None:
        check_keepers(self.keepers)
        check_counts(self.changes)


class Assignment(msgspec.Struct, frozen=True):
    """All that a host needs to run a fragment under ``generation``.

    ``keepers`` and ``replicas`` are node ids; ``port_schemas`` are in the order of ``spec.ports``; ``consumers`` are
    the cursors on the fragment's link log, which have changed ``consumer_changes`` times; ``producers`` is where its
    ports were last known to be fed from. ``taken``: what it is reckoned to take of a host.
    """

    spec: FragmentSpec
    generation: int
    keepers: tuple[str, ...]
    port_schemas: tuple[str, ...] = ()
    consumers: tuple[str, ...] = ()
    producers: tuple[Location, ...] = ()
    replicas: tuple[str, ...] = ()
    replica_changes: int = 0
    taken: Demand = Demand()
    consumer_changes: int = 0
    keeper_changes: int = 0

    def __post_init__(self) -> None:
        check_spec(self.spec)
        check_keepers(self.keepers)
        check_counts(self.generation, self.replica_changes, self.consumer_changes, self.keeper_changes)

    @property
    def fragment_id(self) -> str:
        return self.spec.fragment_id

    @property
    def query_id(self) -> str:
        return self.spec.query_id

    def read_by(self, other: Assignment) -> Assignment:
        """The same with the consumers of ``other``, if these are newer."""
        if other.consumer_changes <= self.consumer_changes:
            return self
        return msgspec.structs.replace(self, consumers=other.consumers, consumer_changes=other.consumer_changes)

    def fed_by(self, other: Assignment) -> Assignment:
        """The same with the ports of ``other``, if these are newer."""
        if other.spec.port_changes <= self.spec.port_changes:
            return self
        spec = msgspec.structs.replace(self.spec, ports=other.spec.ports)
        return msgspec.structs.replace(self, spec=spec, producers=other.producers)

    def under(self, kept_by: KeptBy) -> Assignment:
        """The same, kept by others; unchanged if that is an old word."""
        if kept_by.changes <= self.keeper_changes:
            return self
        return msgspec.structs.replace(self, keepers=kept_by.keepers, keeper_changes=kept_by.changes)

    @property
    def is_leased(self) -> bool:
        """Whether the owner needs a lease, because the fragment may be taken over (DESIGN: Ownership)."""
        return may_be_taken_over(self.spec, self.keepers)

    def check_keeper(self, sender: str) -> None:
        """Raises SbonError for anybody else."""
        if sender not in self.keepers:
            raise SbonError(f"only a keeper of query {self.query_id} may do that")


def may_be_taken_over(spec: FragmentSpec, keepers: tuple[str, ...]) -> bool:
    """What is pinned waits for its host; and with a single keeper there is no majority without it.

    There are three where there are as many nodes, and two for a moment while one of them is replaced.
    """
    return not spec.pinned and len(keepers) > 1


# --- to keepers


class Claim(msgspec.Struct, frozen=True):
    """May the sender run this fragment under this generation? The one compare-and-set that decides ownership.

    From the owner it revokes a move that has not been committed; from the target of such a move, which by then has the
    fragment's folder durably, it commits the move. ``keepers`` are those that the sender knows.
    """

    query_id: str
    fragment_id: str
    generation: int
    keepers: tuple[str, ...]

    def __post_init__(self) -> None:
        check_keepers(self.keepers)


class Claimed(msgspec.Struct, frozen=True):
    """``assignment`` is None if the claim is refused for good: the claimant deletes what it has of the fragment."""

    assignment: Assignment | None


class Locate(msgspec.Struct, frozen=True):
    """Where does this fragment run?"""

    query_id: str
    fragment_id: str


class FragmentReport(msgspec.Struct, frozen=True):
    """A fragment that the sender runs. ``error`` is set when it cannot be started there. ``relays``: nodes through
    which it reads, by producer."""

    fragment_id: str
    generation: int
    flight_address: FlightAddress | None
    status: FragmentStatus | None
    error: str | None = None
    consumer_changes: int = 0
    port_changes: int = 0
    relays: dict[str, str] = {}


class Report(msgspec.Struct, frozen=True):
    """How the fragments of one query do that the sender runs; every second or so, and when one starts.

    ``rtt_ms`` are the sender's measured round trips to the nodes that feed them.
    """

    query_id: str
    fragments: tuple[FragmentReport, ...]
    rtt_ms: dict[str, float] = {}


class Reported(msgspec.Struct, frozen=True):
    """``not_yours``: fragments that the sender no longer owns, or of a query that has ended. ``kept_by``, if known."""

    not_yours: tuple[str, ...] = ()
    kept_by: KeptBy | None = None


# --- fragments of one query that others read (daemon.queries.subscribing)


class Reader(msgspec.Struct, frozen=True):
    """Who is behind a cursor on ``fragment_id`` that belongs to another query, kept by ``keepers``."""

    fragment_id: str
    query_id: str
    keepers: tuple[str, ...]

    def __post_init__(self) -> None:
        check_keepers(self.keepers)


class Reused(msgspec.Struct, frozen=True):
    """A fragment of the query ``query_id`` that a fragment of this query reads; ``location`` is the latest known.

    ``computes``: in words, for people. It is read from ``start`` on. ``keepers``: of that query, as far as known.
    """

    query_id: str
    keepers: tuple[str, ...]
    computes: str
    output_schema: str
    location: Location
    start: Start
    keeper_changes: int = 0

    def __post_init__(self) -> None:
        check_keepers(self.keepers)
        check_counts(self.keeper_changes)

    @property
    def fragment_id(self) -> str:
        return self.location.fragment_id


# --- queries as a whole


class PortChange(msgspec.Struct, frozen=True):
    """``consumer``, a sink, is to read at ``port`` what another fragment puts out."""

    consumer: str
    port: str
    switch: Switch


class NewPlan(msgspec.Struct, frozen=True):
    """Fragments of a running query that are to come in the place of others.

    ``changes``: of the sinks that read them, those that need the old ones still. ``decided``: it is done, sooner or
    later; before, it may be called off.
    """

    changes: tuple[PortChange, ...]
    fragments: tuple[str, ...]
    decided: bool = False

    def __post_init__(self) -> None:
        if not self.fragments:
            raise MalformedError("a new plan without fragments")

    @property
    def name(self) -> str:
        """Fragments are called so once."""
        return self.fragments[-1]


class SubmitQuery(msgspec.Struct, frozen=True):
    """To the owner of the query's sink. ``until_s``: when it ends, in seconds since the epoch; None: not by itself.
    ``from_s``: from which event time on; None: all there is."""

    sql: str
    until_s: float | None = None
    from_s: float | None = None


class Submitted(msgspec.Struct, frozen=True):
    query_id: str


class CancelQuery(msgspec.Struct, frozen=True):
    query_id: str


class QueryStatus(StrEnum):
    DEPLOYING = "deploying"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self in (QueryStatus.FINISHED, QueryStatus.FAILED, QueryStatus.CANCELLED)


class FragmentView(msgspec.Struct, frozen=True):
    """A fragment as its keeper sees it. ``state`` is the engine's word, or what comes before and after it."""

    spec: FragmentSpec
    node_id: str
    generation: int
    state: str
    status: FragmentStatus | None = None
    #: It runs no longer, or is about to end.
    released: bool = False


class Measured(msgspec.Struct, frozen=True):
    """Of one link, smoothed. ``rows_per_s`` is None for a reader of another query: its keeper tells bytes only."""

    bytes_per_s: float
    rows_per_s: float | None = None


class LinkFlow(msgspec.Struct, frozen=True):
    """What flows from one fragment to another one, or to a cursor of another query: as estimated before the query
    started, and as ``measured`` since, None until it is. ``rtt_ms``: between the two, measured or else predicted."""

    source: str
    target: str
    estimated_bytes_per_s: float
    measured: Measured | None = None
    rtt_ms: float = 0.0


class MoveReport(msgspec.Struct, frozen=True):
    """A move that was carried out; nodes by name.

    ``downtime_ms``: from the stop at the source until the first batch at the target was done (until the fragment ran
    there, if there was nothing to do). ``steps_s``: seconds of each step; ``sent_bytes``: what travelled in which.
    """

    query_id: str
    fragment_id: str
    generation: int
    source: str
    target: str
    reason: str
    state_bytes: int
    downtime_ms: float
    steps_s: dict[str, float]
    sent_bytes: dict[str, int] = {}


class QueryView(msgspec.Struct, frozen=True):
    """A query as its keeper sees it. ``flows`` are its links, and those to what others read of this query.

    ``reused`` are fragments of other queries that it reads, ``readers`` the cursors of others on its own;
    ``elsewhere`` says on which nodes these are, by fragment id.
    ``network_usage`` and ``network_usage_at_consumer`` are bytes in transit, now, and if all unpinned operators ran at
    the consumer; None once the query has ended. ``moving`` is a fragment id.
    """

    query_id: str
    sql: str
    keepers: tuple[str, ...]
    status: QueryStatus
    submitted_at_s: float
    age_s: float
    since_last_move_s: float
    fragments: tuple[FragmentView, ...]
    flows: tuple[LinkFlow, ...]
    choices: tuple[OperatorChoice, ...]
    moves: tuple[MoveReport, ...] = ()
    moving: str | None = None
    error: str | None = None
    network_usage: float | None = None
    network_usage_at_consumer: float | None = None
    #: Of the nodes that run its fragments, as far as they are known.
    hosts: tuple[NodeRecord, ...] = ()
    reused: tuple[Reused, ...] = ()
    readers: dict[str, Reader] = {}
    elsewhere: dict[str, str] = {}
    #: How long it goes on, None if that is not known.
    remaining_s: float | None = None
    new_plan: NewPlan | None = None

    @property
    def is_measured(self) -> bool:
        """Whether its placement goes by measured rates: once all are.

        Never by some of each: what counts is how they compare, and an estimate may be off by any factor.
        """
        return all(flow.measured is not None for flow in self.flows)

    @property
    def links(self) -> tuple[Link, ...]:
        """With the rates that its placement goes by."""
        if not self.is_measured:
            return tuple(Link(flow.source, flow.target, flow.estimated_bytes_per_s) for flow in self.flows)
        return tuple(Link(flow.source, flow.target, flow.measured.bytes_per_s) for flow in self.flows if flow.measured)


class DescribeQuery(msgspec.Struct, frozen=True):
    query_id: str


class ListQueries(msgspec.Struct, frozen=True):
    """All queries that the node keeps."""


class QueryViews(msgspec.Struct, frozen=True):
    queries: tuple[QueryView, ...]
