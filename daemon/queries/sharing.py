"""The rules by which fragments of one query are read by others, sans-I/O (DESIGN: Queries, fragments, ports).

A subscription is a cursor in the record of the query that the fragment came with. It holds the fragment, and all that
feeds it, whether that query goes on or not. It ends when the subscriber drops it, or is silent for too long.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from daemon.peering.query_messages import KeptBy, Location, Reader
from daemon.peering.query_record import QueryRecord
from daemon.peering.query_rules import counted, needed, without_unneeded
from sbon.errors import SbonError

#: Cursors of others on the fragments of one query.
MAX_READERS = 100


def subscribe(record: QueryRecord, cursors: Iterable[str], reader: Reader) -> QueryRecord:
    """Let ``cursors`` read ``reader.fragment_id``. Raises SbonError if it does not run, or has too many readers.

    That of a query that is still being deployed may be read, too: it stays when the deployment fails.
    """
    fragment = record.fragment(reader.fragment_id)
    if fragment.output_schema is None or fragment.released:
        raise SbonError(f"{reader.fragment_id} does not run now: nobody can subscribe to it")
    readers = record.readers | dict.fromkeys(cursors, reader)
    if len(readers) > MAX_READERS:
        raise SbonError(f"{reader.fragment_id} has {MAX_READERS} readers already")
    if readers == record.readers:
        return record
    return counted(record, msgspec.structs.replace(record, readers=readers))


def unsubscribe(record: QueryRecord, cursors: Iterable[str]) -> QueryRecord:
    """They read no longer; what nobody needs any more is released."""
    gone = set(cursors) & record.readers.keys()
    if not gone:
        return record
    readers = {cursor: reader for cursor, reader in record.readers.items() if cursor not in gone}
    return without_unneeded(counted(record, msgspec.structs.replace(record, readers=readers)))


def left_behind(record: QueryRecord, fragment_id: str, stuck: Iterable[str]) -> set[str]:
    """Those of the cursors ``stuck`` on a fragment for which another query waits, that reads it."""

    def query_of(cursor: str) -> str:
        reader = record.readers.get(cursor)
        return record.query_id if reader is None else reader.query_id

    here = set(record.cursors(fragment_id))
    waiting = {query_of(cursor) for cursor in here.difference(stuck)}
    return {cursor for cursor in here.intersection(stuck) if waiting - {query_of(cursor)}}


def broken(record: QueryRecord, fragment_id: str) -> QueryRecord:
    """The fragment cannot go on: whoever reads it, or what it feeds, has to hear that there is nothing any more."""
    fed = {cursor for cursor, reader in record.readers.items() if fragment_id in needed(record, [reader.fragment_id])}
    return unsubscribe(record, fed)


def located(record: QueryRecord, location: Location) -> QueryRecord:
    """A fragment of another query is there now; the same record if that is known, or by an old word."""
    known = record.reused.get(location.fragment_id)
    if known is None or location.generation < known.location.generation or location == known.location:
        return record
    reused = msgspec.structs.replace(known, location=location)
    return msgspec.structs.replace(record, reused={**record.reused, location.fragment_id: reused})


def read_from_keepers(record: QueryRecord, query_id: str, kept_by: KeptBy) -> QueryRecord:
    """The query ``query_id``, of which this one reads something, is kept by others now; the same record for an old
    word."""
    reused = {
        fragment_id: msgspec.structs.replace(known, keepers=kept_by.keepers, keeper_changes=kept_by.changes)
        for fragment_id, known in record.reused.items()
        if known.query_id == query_id and known.keeper_changes < kept_by.changes
    }
    return msgspec.structs.replace(record, reused=record.reused | reused) if reused else record


def subscriptions(record: QueryRecord) -> dict[str, tuple[str, ...]]:
    """By fragment of another query that this one needs still: the cursors with which it reads."""
    return {fragment_id: cursors for fragment_id in record.reused if (cursors := record.cursors(fragment_id))}
