"""The record of a query: what its keepers must not forget (DESIGN: Ownership: never lost, never twice).

The keeper makes a record durable before it answers, so what an answer says survives a crash. By which rules it changes
stands in :mod:`daemon.peering.query_rules`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec

from daemon.peering.query_messages import (
    Assignment,
    KeptBy,
    Location,
    MoveReport,
    NewPlan,
    QueryStatus,
    Reader,
    Reused,
)
from daemon.peering.well_formed import MalformedError, check_counts, check_keepers, check_spec
from sbon.engine_messages import FlightAddress, cursor_name
from sbon.errors import SbonError
from sbon.fragment import FragmentSpec
from sbon.network_usage import Link
from sbon.placement.capacity import Demand
from sbon.placement.choice import OperatorChoice
from sbon.sql.query_plan import QueryPlan

FIRST_GENERATION = 1
#: Of each query, where there are as many nodes. An odd number: one may be lost.
KEEPERS = 3


class FragmentRecord(msgspec.Struct, frozen=True):
    """``owner`` (a node id) runs it under ``generation``; ``granted`` is the highest generation ever granted.

    ``replicas``: hosts, by node id, that it may be restarted from. ``taken_over``: the last generation that was granted
    without the consent of the one before, 0 for none. ``replica_changes`` counts how often ``replicas`` was set,
    ``consumer_changes`` how often those that read it were. ``taken``: what it is reckoned to take of a host.
    ``released``: nobody needs it any more, for good.
    """

    spec: FragmentSpec
    owner: str
    generation: int = FIRST_GENERATION
    granted: int = FIRST_GENERATION
    flight_address: FlightAddress | None = None
    output_schema: str | None = None
    finished: bool = False
    replicas: tuple[str, ...] = ()
    replica_changes: int = 0
    taken_over: int = 0
    taken: Demand = Demand()
    consumer_changes: int = 0
    released: bool = False

    def __post_init__(self) -> None:
        check_spec(self.spec)
        check_counts(self.generation, self.granted, self.taken_over, self.replica_changes, self.consumer_changes)


class PendingMove(msgspec.Struct, frozen=True):
    """``committed``: the target owns the fragment, and the query stays locked until it runs there."""

    fragment_id: str
    generation: int
    target: str
    committed: bool = False


class QueryRecord(msgspec.Struct, frozen=True):
    """Everything that the keepers must not forget. ``fragments`` come producers first, the sink last.

    ``keepers`` are node ids; the first owns the sink, until it is replaced. ``keeper_changes`` counts their changes.
    ``former_keepers`` have the record as it was, for those who still ask there. ``reused`` are fragments of other
    queries that this one reads, by id, and ``readers`` the cursors of others on its own: what these need lives on when
    the query has ended.
    """

    query_id: str
    sql: str
    keepers: tuple[str, ...]
    submitted_at_s: float
    status: QueryStatus
    fragments: dict[str, FragmentRecord]
    links: tuple[Link, ...]
    choices: tuple[OperatorChoice, ...] = ()
    move: PendingMove | None = None
    moves: tuple[MoveReport, ...] = ()
    running_at_s: float | None = None
    last_move_at_s: float | None = None
    error: str | None = None
    reused: dict[str, Reused] = {}
    readers: dict[str, Reader] = {}
    #: When the query ends by itself, in seconds since the epoch.
    until_s: float | None = None
    keeper_changes: int = 0
    former_keepers: tuple[str, ...] = ()
    new_plan: NewPlan | None = None

    def __post_init__(self) -> None:
        """Raises MalformedError unless all that is needed of the query is in it, under its own id."""
        check_keepers(self.keepers)
        check_counts(self.keeper_changes)
        if not self.fragments or self.fragments.keys() & self.reused.keys():
            raise MalformedError(f"query {self.query_id[:100]!r} has no fragments, or others' as its own")
        for fragment_id, fragment in self.fragments.items():
            if (fragment.spec.fragment_id, fragment.spec.query_id) != (fragment_id, self.query_id):
                raise MalformedError(f"{fragment_id[:100]!r} is another fragment, or of another query")
        if any(fragment_id != reused.fragment_id for fragment_id, reused in self.reused.items()):
            raise MalformedError(f"query {self.query_id} reads something under the name of something else")
        if not all(math.isfinite(link.rate_bytes_per_s) for link in self.links):
            raise MalformedError(f"query {self.query_id} has a link with a rate that is no number")
        missing = self._mentioned() - self.fragments.keys() - self.reused.keys()
        if missing or not self.fragments.keys() >= {reader.fragment_id for reader in self.readers.values()}:
            raise MalformedError(f"query {self.query_id} is about fragments that it does not have")

    def _mentioned(self) -> set[str]:
        """The ends of all links, and what feeds ports, but of what is released: that may be forgotten in part."""
        running = [fragment for fragment in self.fragments.values() if not fragment.released]
        links = [
            link for link in self.links if link.target not in self.fragments or not self.fragments[link.target].released
        ]
        ends = {end for link in links for end in (link.source, link.target)}
        return ends.union(*(port.producers for fragment in running for port in fragment.spec.ports))

    def fragment(self, fragment_id: str) -> FragmentRecord:
        """Raises SbonError if it is not one of this query's."""
        fragment = self.fragments.get(fragment_id)
        if fragment is None:
            raise SbonError(f"query {self.query_id} has no fragment {fragment_id}: see `sbon operators`")
        return fragment

    @property
    def keeper(self) -> str:
        """The first keeper, who watches over the query while he is there."""
        return self.keepers[0]

    @property
    def is_over(self) -> bool:
        """The query has ended, and nobody else needs anything of it."""
        return self.status.ended and all(fragment.released for fragment in self.fragments.values())

    @property
    def consumer(self) -> str:
        """The owner of the (last) sink."""
        return list(self.fragments.values())[-1].owner

    @property
    def kept_by(self) -> KeptBy:
        return KeptBy(self.keepers, self.keeper_changes)

    @property
    def placement(self) -> dict[str, str]:
        """Fragment id -> node id, of those of others that are read here, too."""
        of_others = {fragment_id: reused.location.node_id for fragment_id, reused in self.reused.items()}
        return of_others | {fragment_id: fragment.owner for fragment_id, fragment in self.fragments.items()}

    def location(self, fragment_id: str) -> Location:
        """As far as it is known, for a fragment of another query."""
        if fragment_id in self.reused:
            return self.reused[fragment_id].location
        fragment = self.fragment(fragment_id)
        return Location(fragment_id, fragment.generation, fragment.owner, fragment.flight_address)

    def consumers(self, fragment_id: str) -> list[tuple[str, str]]:
        """(consumer, port) of everything of this query that reads this fragment."""
        return [
            (consumer, port.name)
            for consumer, fragment in self.fragments.items()
            for port in fragment.spec.ports
            if fragment_id in port.producers and not fragment.released
        ]

    def cursors(self, fragment_id: str) -> tuple[str, ...]:
        """Of all that reads this fragment, of this query and of others."""
        own = [cursor_name(consumer, port) for consumer, port in self.consumers(fragment_id)]
        return (*own, *(cursor for cursor, reader in self.readers.items() if reader.fragment_id == fragment_id))

    def assignment(self, fragment_id: str, generation: int | None = None) -> Assignment:
        """What a host needs; under the fragment's own generation unless told otherwise.

        Raises SbonError while the schema of a producer is not known yet.
        """
        fragment = self.fragment(fragment_id)
        schemas = []
        for port in fragment.spec.ports:
            producer = self.reused.get(port.producers[0]) or self.fragment(port.producers[0])
            schema = producer.output_schema
            if schema is None:
                raise SbonError(f"{port.producers[0]}, which feeds {fragment_id}, has not started yet: try again")
            schemas.append(schema)
        producers = dict.fromkeys(producer for port in fragment.spec.ports for producer in port.producers)
        return Assignment(
            spec=fragment.spec,
            generation=fragment.generation if generation is None else generation,
            keepers=self.keepers,
            keeper_changes=self.keeper_changes,
            port_schemas=tuple(schemas),
            consumers=self.cursors(fragment_id),
            producers=tuple(self.location(producer) for producer in producers),
            replicas=fragment.replicas,
            replica_changes=fragment.replica_changes,
            taken=fragment.taken,
            consumer_changes=fragment.consumer_changes,
        )


def new_record(
    plan: QueryPlan,
    hosts: Mapping[str, str],
    choices: tuple[OperatorChoice, ...],
    *,
    keepers: tuple[str, ...],
    submitted_at_s: float,
    taken: Mapping[str, Demand] | None = None,
    reused: Iterable[Reused] = (),
    until_s: float | None = None,
) -> QueryRecord:
    """The record of a query that is about to be deployed on ``hosts`` (fragment id -> node id); ``taken``: what each
    fragment takes there."""
    taken = taken or {}
    return QueryRecord(
        query_id=plan.query_id,
        sql=plan.sql,
        keepers=keepers,
        submitted_at_s=submitted_at_s,
        status=QueryStatus.DEPLOYING,
        fragments={
            spec.fragment_id: FragmentRecord(spec, hosts[spec.fragment_id], taken=taken.get(spec.fragment_id, Demand()))
            for spec in plan.fragments
        },
        links=tuple(Link(source, target, rate) for source, target, rate in plan.links),
        choices=choices,
        reused={each.fragment_id: each for each in reused},
        until_s=until_s,
    )
