"""The inbox of one port: its durable journal, and the segments that were pulled but not yet read.

Spark's offsets are numbers of segments here, so its checkpoint never learns who produced them (DESIGN: Queries,
fragments, ports): the journal maps each number to (producer, generation, batch). Journal and segments lie in one SQLite
database, so that a segment is there with its entry or not at all.

A port may change its producer at a point of event time (:class:`sbon.fragment.Switch`). That point is chosen here, in
one transaction with what has been taken so far, and from then on only the rows of each producer that are its own are
let in. So it is all the same to whoever reads.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from sbon.fragment import Switch
from spark_bridge.segment import rows_between

_SCHEMA = (
    """
CREATE TABLE IF NOT EXISTS journal (
    sequence INTEGER PRIMARY KEY,
    producer TEXT NOT NULL,
    generation INTEGER NOT NULL,
    batch_id INTEGER NOT NULL,
    rows INTEGER NOT NULL,
    producer_watermark_ms INTEGER,  -- what this segment promised for its producer
    port_watermark_ms INTEGER,      -- the smallest such promise over the producers of the port
    body BLOB,                      -- Arrow IPC stream; NULL without rows, and once it was read for good
    UNIQUE (producer, batch_id)
)""",
    "CREATE TABLE IF NOT EXISTS position (read_up_to INTEGER NOT NULL)",
    """
CREATE TABLE IF NOT EXISTS producers (
    producer TEXT PRIMARY KEY,
    newest_ms INTEGER,  -- nothing that was taken is later; NULL if there was nothing
    from_ms INTEGER,    -- its rows of event times before, or from `until_ms` on, are another one's
    until_ms INTEGER,
    event_time TEXT     -- the column of these times, if there are any
)""",
)
#: Before all event times.
_LONG_AGO_MS = -(1 << 52)
#: In the place of the newest event time.
_UNKNOWN_MS = 1 << 52


@dataclass(frozen=True, slots=True)
class Segment:
    """A pulled segment, ready for the inbox. ``newest_ms``: no row of it or of those before is later, None without
    any."""

    producer: str
    generation: int
    batch_id: int
    rows: int
    watermark_ms: int | None
    body: bytes
    newest_ms: int | None = None


class PassedError(Exception):
    """What is asked for was forgotten: later batches have been committed."""


class PortInbox:
    """Open until :meth:`close`; from then on every call is a sqlite3.ProgrammingError. Thread-safe."""

    def __init__(
        self,
        path: Path,
        producers: tuple[str, ...],
        first_batches: Mapping[str, int] = MappingProxyType({}),
        switch: Switch | None = None,
    ) -> None:
        """``first_batches``: with which batch a producer begins for this port, 0 unless said."""
        self._first_batches = first_batches
        self._switch = switch
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._bytes = 0
        self._connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        with self._database(writes=True) as database:
            for statement in _SCHEMA:
                database.execute(statement)
            if database.execute("SELECT count(*) FROM position").fetchone() == (0,):
                database.execute("INSERT INTO position VALUES (0)")
            for producer in (each for each in producers if switch is None or each != switch.new):
                # Of a journal that is older than this table it is not known until the next segment what was taken.
                database.execute(
                    "INSERT OR IGNORE INTO producers (producer, newest_ms) "
                    "SELECT ?1, CASE WHEN EXISTS (SELECT * FROM journal WHERE producer = ?1) THEN ?2 END",
                    (producer, _UNKNOWN_MS),
                )

    def close(self) -> None:
        """Nothing is written any more, and the file is all there is of the inbox. Idempotent."""
        with self._lock:
            with suppress(sqlite3.Error):  # it is closed already, say, or the disk is full
                self._connection.execute("VACUUM")  # forgotten bodies leave room in the file, which would move along
                self._bytes = self._bytes_now()
            self._connection.close()

    def bytes_once_closed(self) -> int:
        """Size of the file that :meth:`close` leaves. What there is until then is no measure of it: SQLite's log alone
        grows to megabytes before its room is used again."""
        with self._lock:
            with suppress(sqlite3.ProgrammingError):  # it is closed
                self._bytes = self._bytes_now()
            return self._bytes

    def _bytes_now(self) -> int:
        pages, free, page_bytes = (
            self._connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * page_bytes)

    def append(self, segment: Segment) -> bool:
        """Store ``segment`` durably; False if it was here already. ValueError if it skips one, or if its rows are not
        (yet) to be read here."""
        with self._database(writes=True) as database:
            due = self._next_batch(database, segment.producer)
            if segment.batch_id < due:
                return False
            if segment.batch_id > due:
                raise ValueError(f"segment {segment.batch_id} of {segment.producer} came where {due} was due")
            self._admit(database, segment.producer)
            segment = _own_rows(database, segment)
            database.execute(
                "INSERT INTO journal SELECT coalesce(max(sequence) + 1, 0), ?, ?, ?, ?, ?, ?, ? FROM journal",
                (
                    segment.producer,
                    segment.generation,
                    segment.batch_id,
                    segment.rows,
                    segment.watermark_ms,
                    self._port_watermark(database, segment),
                    segment.body or None,
                ),
            )
            database.execute(
                "UPDATE producers SET newest_ms = ? WHERE producer = ?", (segment.newest_ms, segment.producer)
            )
            return True

    def follow(self, switch: Switch) -> None:
        """The port is to change its producer, from the first segment of the new one on."""
        self._switch = switch

    def has_passed(self, producer: str) -> bool:
        """Whether another one has come in its place, and everything is here that is to be read of it."""
        with self._database() as database:
            passed = database.execute(
                "SELECT until_ms <= (SELECT max(producer_watermark_ms) FROM journal WHERE producer = ?1) "
                "FROM producers WHERE producer = ?1",
                (producer,),
            ).fetchone()
            return passed is not None and bool(passed[0])

    def next_batch(self, producer: str) -> int:
        """The batch id to pull next from ``producer``."""
        with self._database() as database:
            return self._next_batch(database, producer)

    def end(self) -> int:
        """Number of segments taken in so far: the newest offset for Spark."""
        with self._database() as database:
            (end,) = database.execute("SELECT coalesce(max(sequence) + 1, 0) FROM journal").fetchone()
            return int(end)

    def end_within(self, start: int, most_bytes: int) -> int:
        """Up to where segments from ``start`` on have no more than that, and at least one of them, if there is one."""
        chosen = "SELECT sequence + 1, coalesce(length(body), 0) FROM journal WHERE sequence >= ? ORDER BY sequence"
        end, size_bytes = start, 0
        with self._database() as database:
            for after, body_bytes in database.execute(chosen, (start,)):
                size_bytes += body_bytes
                if body_bytes and size_bytes > most_bytes and end > start:
                    break
                end = after
        return end

    def unread_bytes(self) -> int:
        """Size of what was pulled and not yet read for good."""
        with self._database() as database:
            (size,) = database.execute("SELECT coalesce(sum(length(body)), 0) FROM journal").fetchone()
            return int(size)

    def watermark_ms(self, end: int) -> int | None:
        """Watermark of the port after its first ``end`` segments, None while a producer has not promised any."""
        with self._database() as database:
            row = database.execute("SELECT port_watermark_ms FROM journal WHERE sequence = ?", (end - 1,)).fetchone()
            return row[0] if row else None

    def bodies(self, start: int, end: int) -> list[bytes]:
        """Bodies of segments ``start`` to ``end`` (exclusive) that have rows, in order.

        None at all if they were all read for good; PassedError if only some of them were.
        """
        with self._database() as database:
            (read_up_to,) = database.execute("SELECT read_up_to FROM position").fetchone()
            if end <= read_up_to:
                return []
            if start < read_up_to:
                raise PassedError
            chosen = "SELECT body FROM journal WHERE sequence >= ? AND sequence < ? AND rows > 0 ORDER BY sequence"
            return [body for (body,) in database.execute(chosen, (start, end))]

    def forget(self, end: int) -> None:
        """The batch that read up to ``end`` is committed: drop those bodies, and entries nobody needs any more."""
        with self._database(writes=True) as database:
            database.execute("UPDATE position SET read_up_to = max(read_up_to, ?)", (end,))
            database.execute("UPDATE journal SET body = NULL WHERE sequence < ? AND body IS NOT NULL", (end,))
            # The last entry before `end` holds the watermark there, the last of each producer what may be acknowledged
            # and what is to be pulled next.
            database.execute(
                "DELETE FROM journal WHERE sequence < ? - 1 AND sequence NOT IN "
                "(SELECT max(sequence) FROM journal WHERE sequence < ? GROUP BY producer)",
                (end, end),
            )

    def read_for_good(self) -> dict[str, int]:
        """For each producer the newest batch id that no replay will ask for again: what may be acknowledged."""
        with self._database() as database:
            return dict(
                database.execute(
                    "SELECT producer, max(batch_id) FROM journal, position "
                    "WHERE sequence < read_up_to GROUP BY producer"
                ).fetchall()
            )

    def export(self, target: Path, end: int) -> dict[str, int]:
        """Write an inbox to the new file ``target`` as it is once ``end`` segments were read for good, without bodies.

        Returns the newest batch of each producer that was read. PassedError if more was read for good already.
        """
        with self._database() as database:
            (read_up_to,) = database.execute("SELECT read_up_to FROM position").fetchone()
            if read_up_to > end:
                raise PassedError
            entries = database.execute("SELECT * FROM journal WHERE sequence < ? ORDER BY sequence", (end,)).fetchall()
            producers = database.execute("SELECT * FROM producers").fetchall()
        with closing(sqlite3.connect(target, isolation_level=None)) as copy:
            copy.execute("BEGIN")
            for statement in _SCHEMA:
                copy.execute(statement)
            copy.execute("INSERT INTO position VALUES (?)", (end,))
            # The body is the last column.
            copy.executemany(
                "INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?, ?, NULL)", (entry[:-1] for entry in entries)
            )
            copy.executemany("INSERT INTO producers VALUES (?, ?, ?, ?, ?)", producers)
            copy.execute("COMMIT")
        reads: dict[str, int] = {}
        for _, producer, _, batch_id, *_ in entries:
            reads[producer] = max(batch_id, reads.get(producer, -1))
        return reads

    def _next_batch(self, database: sqlite3.Connection, producer: str) -> int:
        (due,) = database.execute(
            "SELECT coalesce(max(batch_id) + 1, ?) FROM journal WHERE producer = ?",
            (self._first_batches.get(producer, 0), producer),
        ).fetchone()
        return int(due)

    def _admit(self, database: sqlite3.Connection, producer: str) -> None:
        """Decide, once, where a producer begins that comes in the place of another one."""
        if database.execute("SELECT * FROM producers WHERE producer = ?", (producer,)).fetchone() is not None:
            return
        switch = self._switch
        if switch is None or producer != switch.new:
            raise ValueError(f"{producer} does not feed this port")
        taken_ms, began_ms, promised_ms = database.execute(
            "SELECT newest_ms, from_ms, (SELECT max(producer_watermark_ms) FROM journal WHERE producer = ?1) "
            "FROM producers WHERE producer = ?1",
            (switch.old,),
        ).fetchone() or (None, None, None)
        if taken_ms == _UNKNOWN_MS:
            raise ValueError(f"it is not known yet what was taken of {switch.old}")
        least = (None if taken_ms is None else taken_ms + 1, began_ms, promised_ms, switch.from_ms)
        from_ms = max((at_ms for at_ms in least if at_ms is not None), default=_LONG_AGO_MS)
        database.execute(
            "UPDATE producers SET until_ms = ?, event_time = ? WHERE producer = ?",
            (from_ms, switch.event_time, switch.old),
        )
        database.execute(
            "INSERT INTO producers (producer, from_ms, event_time) VALUES (?, ?, ?)",
            (producer, from_ms, switch.event_time),
        )

    def _port_watermark(self, database: sqlite3.Connection, segment: Segment) -> int | None:
        """What all producers promise together, of whom some of the rows are still to come."""
        promises = []
        for producer, from_ms, until_ms, promised_ms in database.execute(
            "SELECT producers.producer, from_ms, until_ms, max(producer_watermark_ms) "
            "FROM producers LEFT JOIN journal USING (producer) GROUP BY producers.producer"
        ):
            new_ms = segment.watermark_ms if producer == segment.producer else None
            known = [at_ms for at_ms in (promised_ms, new_ms) if at_ms is not None]
            if until_ms is None or max(known, default=_LONG_AGO_MS) < until_ms:
                promises.append(max((at_ms for at_ms in (*known, from_ms) if at_ms is not None), default=None))
        certain = [promise for promise in promises if promise is not None]
        return min(certain) if len(certain) == len(promises) else None

    @contextmanager
    def _database(self, *, writes: bool = False) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")


def _own_rows(database: sqlite3.Connection, segment: Segment) -> Segment:
    """The segment with those rows only that are to be read of its producer."""
    bounds = database.execute(
        "SELECT event_time, from_ms, until_ms FROM producers WHERE producer = ? AND event_time IS NOT NULL",
        (segment.producer,),
    ).fetchone()
    if bounds is None or not segment.body:
        return segment
    rows, body = rows_between(segment.body, *bounds)
    return replace(segment, rows=rows, body=body)
