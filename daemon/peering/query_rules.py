"""The rules by which the record of a query changes, sans-I/O (DESIGN: Ownership: never lost, never twice).

Every function takes a record and returns the next one, or raises and changes nothing.

How a fragment changes its owner: ``announce`` grants the target the next generation and locks the query. The source
stops and ships the folder; the target makes it durable and then ``claim``s its generation. That claim, written down
here, is the commit point. Until then a claim of the owner, restarted or in doubt, revokes the grant; whichever claim
comes first wins and the other one is refused for good. Granted generations are never granted again.

How it changes its owner without the old one's consent: when the lease of a generation is over, ``take_over`` grants the
next one to a replica, which has all that the old owner ever let out (:mod:`sbon.ownership.replication`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from daemon.peering.query_messages import MoveReport, QueryStatus, may_be_taken_over
from daemon.peering.query_record import FragmentRecord, PendingMove, QueryRecord
from sbon.engine_messages import FlightAddress
from sbon.errors import SbonError, StaleGenerationError

MAX_FORMER_KEEPERS = 16
#: Moves that are remembered with a query.
MAX_MOVES = 100


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
