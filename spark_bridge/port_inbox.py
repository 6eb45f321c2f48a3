"""The inbox of one port: its durable journal, and the segments that were pulled but not yet read.

Spark's offsets are numbers of segments here, so its checkpoint never learns who produced them (DESIGN: Queries,
fragments, ports): the journal maps each number to (producer, generation, batch). Journal and segments lie in one SQLite
database, so that a segment is there with its entry or not at all.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

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
)


@dataclass(frozen=True, slots=True)
class Segment:
    """A pulled segment, ready for the inbox."""

    producer: str
    generation: int
    batch_id: int
    rows: int
    watermark_ms: int | None
    body: bytes


class PassedError(Exception):
    """What is asked for was forgotten: later batches have been committed."""


class PortInbox:
    """Open until :meth:`close`; from then on every call is a sqlite3.ProgrammingError. Thread-safe."""

    def __init__(
        self, path: Path, producers: tuple[str, ...], first_batches: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        """``first_batches``: with which batch a producer begins for this port, 0 unless said."""
        self._first_batches = first_batches
        self._producers = producers
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        with self._database(writes=True) as database:
            for statement in _SCHEMA:
                database.execute(statement)
            if database.execute("SELECT count(*) FROM position").fetchone() == (0,):
                database.execute("INSERT INTO position VALUES (0)")

    def close(self) -> None:
        """Nothing is written any more, and the file is all there is of the inbox. Idempotent."""
        with self._lock:
            with suppress(sqlite3.Error):  # it is closed already, say, or the disk is full
                self._connection.execute("VACUUM")  # forgotten bodies leave room in the file, which would move along
            self._connection.close()

    def append(self, segment: Segment) -> bool:
        """Store ``segment`` durably; False if it was here already. ValueError if it skips one."""
        with self._database(writes=True) as database:
            due = self._next_batch(database, segment.producer)
            if segment.batch_id < due:
                return False
            if segment.batch_id > due:
                raise ValueError(f"segment {segment.batch_id} of {segment.producer} came where {due} was due")
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
            return True

    def next_batch(self, producer: str) -> int:
        """The batch id to pull next from ``producer``."""
        with self._database() as database:
            return self._next_batch(database, producer)

    def end(self) -> int:
        """Number of segments taken in so far: the newest offset for Spark."""
        with self._database() as database:
            (end,) = database.execute("SELECT coalesce(max(sequence) + 1, 0) FROM journal").fetchone()
            return int(end)

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
        with closing(sqlite3.connect(target, isolation_level=None)) as copy:
            copy.execute("BEGIN")
            for statement in _SCHEMA:
                copy.execute(statement)
            copy.execute("INSERT INTO position VALUES (?)", (end,))
            # The body is the last column.
            copy.executemany(
                "INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?, ?, NULL)", (entry[:-1] for entry in entries)
            )
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

    def _port_watermark(self, database: sqlite3.Connection, segment: Segment) -> int | None:
        promised: dict[str, int | None] = dict.fromkeys(self._producers)
        promised |= database.execute("SELECT producer, max(producer_watermark_ms) FROM journal GROUP BY producer")
        before = promised.get(segment.producer)
        if segment.watermark_ms is not None and (before is None or segment.watermark_ms > before):
            promised[segment.producer] = segment.watermark_ms
        known = [watermark for watermark in promised.values() if watermark is not None]
        return min(known) if len(known) == len(promised) else None

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
