"""The record of a query and the rules by which it changes, sans-I/O (DESIGN: Ownership: never lost, never twice).

Every function takes a record and returns the next one, or raises and changes nothing. The keeper makes a record durable
before it answers, so what an answer says survives a crash.

How a fragment changes its owner: ``announce`` grants the target the next generation and locks the query. The source
stops and ships the folder; the target makes it durable and then ``claim``s its generation. That claim, written down
here, is the commit point. Until then a claim of the owner, restarted or in doubt, revokes the grant; whichever claim
comes first wins and the other one is refused for good. Granted generations are never granted again.

How it changes its owner without the old one's consent: when the lease of a generation is over, ``take_over`` grants the
next one to a replica, which has all that the old owner ever let out (:mod:`sbon.ownership.replication`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

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
    may_be_taken_over,
)
from daemon.peering.well_formed import MalformedError, check_counts, check_keepers, check_spec
from sbon.engine_messages import FlightAddress, cursor_name
from sbon.errors import SbonError, StaleGenerationError
from sbon.fragment import FragmentSpec
from sbon.network_usage import Link
from sbon.placement.capacity import Demand
from sbon.placement.choice import OperatorChoice
from sbon.sql.query_plan import QueryPlan

FIRST_GENERATION = 1
#: Of each query, where there are as many nodes. An odd number: one may be lost.
KEEPERS = 3
MAX_FORMER_KEEPERS = 16
#: Moves that are remembered with a query.
MAX_MOVES = 100


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


def running(record: QueryRecord, at_s: float) -> QueryRecord:
    """All fragments have started. Raises SbonError if the query has ended meanwhile."""
    if record.status is not QueryStatus.DEPLOYING:
        raise SbonError(f"query {record.query_id} was {record.status} while it was being started")
    return msgspec.structs.replace(record, status=QueryStatus.RUNNING, running_at_s=at_s)


def announce(record: QueryRecord, sender: str, fragment_id: str, generation: int, target: str) -> QueryRecord:
    """Grant ``target`` the next generation of a fragment that ``sender`` owns, and lock the query.

    Raises SbonError, with the reason, if the move is refused.
    """
    fragment = record.fragment(fragment_id)
    _check_owner(fragment, sender, generation)
    check_movable(record, fragment_id, target)
    granted = fragment.granted + 1
    record = _with_fragment(record, msgspec.structs.replace(fragment, granted=granted))
    return msgspec.structs.replace(record, move=PendingMove(fragment_id, granted, target))


def check_movable(record: QueryRecord, fragment_id: str, target: str) -> None:
    """Raise SbonError, with the reason, unless the fragment could move to ``target`` now."""
    fragment = record.fragment(fragment_id)
    if record.status is QueryStatus.DEPLOYING or fragment.released:
        raise SbonError(f"query {record.query_id} is {record.status}: only operators that run can move")
    if fragment.spec.pinned:
        raise SbonError(f"{fragment_id} is pinned: a {fragment.spec.kind} stays with the node that owns it")
    if fragment.owner == target:
        raise SbonError(f"{fragment_id} runs there already: nothing to do")
    if record.move is not None:
        raise SbonError(f"{record.move.fragment_id} of the same query is moving now: try again when it has arrived")
    if record.new_plan is not None:
        raise SbonError(f"query {record.query_id} is being planned anew: try again when that is done")


def claim(record: QueryRecord, sender: str, fragment_id: str, generation: int) -> tuple[QueryRecord, bool]:
    """The next record, and whether ``sender`` may run the fragment under ``generation``: see the module."""
    fragment = record.fragments.get(fragment_id)
    if fragment is None or fragment.released:
        return record, False
    move = record.move
    if (fragment.owner, fragment.generation) == (sender, generation):
        if may_be_taken_over(fragment.spec, record.keepers):
            # What it has proposed about its replicas before is too late now: it starts from what the record says.
            known = msgspec.structs.replace(fragment, replica_changes=fragment.replica_changes + 1)
            record = _with_fragment(record, known)
        if move is not None and move.fragment_id == fragment_id and not move.committed:
            return msgspec.structs.replace(record, move=None), True
        return record, True
    wanted = (fragment_id, sender, generation)
    if move is None or move.committed or (move.fragment_id, move.target, move.generation) != wanted:
        return record, False
    taken = msgspec.structs.replace(
        fragment,
        owner=sender,
        generation=generation,
        flight_address=None,
        replicas=tuple(host for host in fragment.replicas if host != sender),
        replica_changes=fragment.replica_changes + 1,
    )
    record = _with_fragment(record, taken)
    return msgspec.structs.replace(record, move=msgspec.structs.replace(move, committed=True)), True


def take_over(
    record: QueryRecord, fragment_id: str, generation: int, whole: Collection[str] | None = None
) -> QueryRecord:
    """Give a fragment, whose owner under ``generation`` has lost its lease, to its first replica, or the first of those
    that are ``whole``. Unchanged if it has been taken over already, as by an attempt of which the end was not heard.

    Raises SbonError if there is nobody to give it to, StaleGenerationError if it has another owner by now.
    """
    fragment = record.fragment(fragment_id)
    if fragment.generation == fragment.taken_over > generation:
        return record
    if fragment.generation != generation:
        raise StaleGenerationError(f"{fragment_id} has generation {fragment.generation} by now")
    if not is_leased(record, fragment):
        raise SbonError(f"{fragment_id} stays with its host: it cannot be taken over")
    if not fragment.replicas:
        raise SbonError(f"{fragment_id} has no replica: it waits until its host is back")
    new_owner = next((host for host in fragment.replicas if whole is None or host in whole), None)
    if new_owner is None:
        raise SbonError(f"no replica of {fragment_id} answers that it is whole: it waits until one does, or its host")
    granted = fragment.granted + 1
    taken = msgspec.structs.replace(
        fragment,
        owner=new_owner,
        generation=granted,
        granted=granted,
        flight_address=None,
        replicas=tuple(host for host in fragment.replicas if host != new_owner),
        replica_changes=fragment.replica_changes + 1,
        taken_over=granted,
    )
    move = record.move
    if move is not None and move.fragment_id == fragment_id:
        move = None  # revoked, or committed to a host that is lost now
    return msgspec.structs.replace(_with_fragment(record, taken), move=move)


def replicated(
    record: QueryRecord, sender: str, fragment_id: str, generation: int, changes: int, replicas: tuple[str, ...]
) -> QueryRecord:
    """The owner names its replicas anew, having known ``changes`` of them: a late word must not undo a newer one.

    Raises StaleGenerationError if it is the owner no longer, or if they were changed meanwhile.
    """
    fragment = record.fragment(fragment_id)
    _check_owner(fragment, sender, generation)
    if fragment.replica_changes != changes:
        raise StaleGenerationError(f"the replicas of {fragment_id} were changed meanwhile")
    if fragment.replicas == replicas:
        return record
    known = msgspec.structs.replace(fragment, replicas=replicas, replica_changes=changes + 1)
    return _with_fragment(record, known)


def with_keepers(record: QueryRecord, keepers: tuple[str, ...], changes: int) -> QueryRecord:
    """Other keepers, one of them new or gone, in place of those that ``changes`` changes led to.

    Raises StaleGenerationError if they were changed meanwhile. A query that is over keeps its own.
    """
    if record.is_over:
        return record
    if record.keeper_changes != changes or len(set(keepers) ^ set(record.keepers)) != 1:
        raise StaleGenerationError(f"the keepers of query {record.query_id} were changed meanwhile")
    gone = [keeper for keeper in record.keepers if keeper not in keepers]
    former = [keeper for keeper in record.former_keepers if keeper not in keepers] + gone
    return msgspec.structs.replace(
        record, keepers=keepers, keeper_changes=changes + 1, former_keepers=tuple(former[-MAX_FORMER_KEEPERS:])
    )


def newly_kept(node_id: str, before: QueryRecord | None, record: QueryRecord) -> tuple[str, ...]:
    """The fragments that a node begins to look after when it accepts ``record`` after ``before``."""
    if node_id not in record.keepers or (before is not None and node_id in before.keepers):
        return ()
    return tuple(record.fragments)


def is_leased(record: QueryRecord, fragment: FragmentRecord) -> bool:
    """Whether the fragment's owner has to renew a lease now. One that has not started yet has nothing to be restarted
    from, and whoever starts it sees to it that it runs, or calls it off."""
    has_started = fragment.output_schema is not None
    lives = record.status is not QueryStatus.DEPLOYING and has_started and not fragment.released
    return lives and may_be_taken_over(fragment.spec, record.keepers)


def takeovers(record: QueryRecord) -> dict[str, int]:
    """Fragment id -> the last generation that was granted without the consent of the one before."""
    return {
        fragment_id: fragment.taken_over for fragment_id, fragment in record.fragments.items() if fragment.taken_over
    }


def started(
    record: QueryRecord,
    sender: str,
    fragment_id: str,
    generation: int,
    flight_address: FlightAddress,
    output_schema: str | None = None,
) -> QueryRecord:
    """The fragment runs at ``flight_address``; the same record if that is known already."""
    fragment = record.fragment(fragment_id)
    _check_owner(fragment, sender, generation)
    known = msgspec.structs.replace(
        fragment, flight_address=flight_address, output_schema=output_schema or fragment.output_schema
    )
    return record if known == fragment else _with_fragment(record, known)


def unlocked(record: QueryRecord, fragment_id: str, generation: int) -> QueryRecord:
    """Let other moves begin, now that this one, if committed, has arrived."""
    move = record.move
    if move is None or not move.committed or (move.fragment_id, move.generation) != (fragment_id, generation):
        return record
    return msgspec.structs.replace(record, move=None)


def expired(record: QueryRecord) -> QueryRecord:
    """Give up waiting for a move: what is not committed never will be, what is committed stays so."""
    return msgspec.structs.replace(record, move=None)


def moved(record: QueryRecord, report: MoveReport, at_s: float) -> QueryRecord:
    """Remember a move that has arrived."""
    record = unlocked(record, report.fragment_id, report.generation)
    if any((known.fragment_id, known.generation) == (report.fragment_id, report.generation) for known in record.moves):
        return record
    return msgspec.structs.replace(record, moves=(*record.moves, report)[-MAX_MOVES:], last_move_at_s=at_s)


def finished(record: QueryRecord, sender: str, fragment_id: str, generation: int) -> QueryRecord:
    """The fragment has processed everything; when all sinks have, the query is finished."""
    fragment = record.fragment(fragment_id)
    _check_owner(fragment, sender, generation)
    if fragment.finished or record.status is not QueryStatus.RUNNING:
        return record
    record = _with_fragment(record, msgspec.structs.replace(fragment, finished=True))
    if all(fragment.finished for fragment in record.fragments.values() if fragment.spec.sink is not None):
        return ended(record, QueryStatus.FINISHED)
    return record


def ended(record: QueryRecord, status: QueryStatus, error: str | None = None) -> QueryRecord:
    """The query is over; what others read goes on. A query that has ended before stays as it ended."""
    if record.status.ended:
        return record
    return without_unneeded(msgspec.structs.replace(record, status=status, error=error, new_plan=None))


def needed(record: QueryRecord, fragment_ids: Iterable[str]) -> set[str]:
    """These fragments and all that feeds them, fragments of other queries included."""
    found: set[str] = set()
    pending = list(fragment_ids)
    while pending:
        fragment_id = pending.pop()
        if fragment_id not in found:
            found.add(fragment_id)
            ports = record.fragments[fragment_id].spec.ports if fragment_id in record.fragments else ()
            pending += [producer for port in ports for producer in port.producers]
    return found


def without_unneeded(record: QueryRecord) -> QueryRecord:
    """Release all fragments that are of no use to others, nor to the query itself if it goes on."""
    roots = [reader.fragment_id for reader in record.readers.values()]
    if not record.status.ended:
        roots += [fragment_id for fragment_id, fragment in record.fragments.items() if fragment.spec.sink is not None]
        roots += () if record.new_plan is None else record.new_plan.fragments
    used = needed(record, roots)
    kept = {fragment_id for fragment_id, fragment in record.fragments.items() if not fragment.released} & used
    released = {
        fragment_id: fragment if fragment_id in kept else msgspec.structs.replace(fragment, released=True)
        for fragment_id, fragment in record.fragments.items()
    }
    move = record.move if record.move is not None and record.move.fragment_id in kept else None
    return counted(record, msgspec.structs.replace(record, fragments=released, move=move))


def counted(before: QueryRecord, record: QueryRecord) -> QueryRecord:
    """Note of which fragments other cursors read than ``before``: their hosts have to hear of it."""
    fragments = {
        fragment_id: fragment
        if fragment.released or record.cursors(fragment_id) == before.cursors(fragment_id)
        else msgspec.structs.replace(fragment, consumer_changes=fragment.consumer_changes + 1)
        for fragment_id, fragment in record.fragments.items()
    }
    return record if fragments == record.fragments else msgspec.structs.replace(record, fragments=fragments)


def owns(record: QueryRecord, sender: str, fragment_id: str, generation: int) -> bool:
    """Whether ``sender`` is the owner, under that generation, of a fragment that somebody needs."""
    fragment = record.fragments.get(fragment_id)
    if fragment is None or fragment.released:
        return False
    return (fragment.owner, fragment.generation) == (sender, generation)


def _check_owner(fragment: FragmentRecord, sender: str, generation: int) -> None:
    if (fragment.owner, fragment.generation) != (sender, generation):
        raise StaleGenerationError(
            f"{fragment.spec.fragment_id} has generation {fragment.generation} and another owner than the sender, "
            f"who has {generation}"
            if fragment.owner != sender
            else f"{fragment.spec.fragment_id} has generation {fragment.generation}, not {generation}"
        )


def _with_fragment(record: QueryRecord, fragment: FragmentRecord) -> QueryRecord:
    return msgspec.structs.replace(record, fragments={**record.fragments, fragment.spec.fragment_id: fragment})
