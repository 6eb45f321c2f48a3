"""The link log: the output of one fragment, kept as segments until every consumer has acknowledged them.

One file per micro-batch, named by its batch id. Appending is idempotent: Spark replays a batch after a crash, and the
replay must say the same again; if it does not, the fragment has become non-deterministic and is stopped. Each consumer
has a cursor here; the slowest one bounds how far the producer may run ahead (back-pressure instead of loss). One for
which all others wait is told of, so that it can be left behind.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pyarrow as pa

from sbon.errors import RemoteProtocolError, SbonError
from sbon.fragment import Start
from sbon.row_multiset import difference
from spark_bridge.durable import sync_folder, write_durably
from spark_bridge.segment import SegmentHeader, body_table, decode_header, decode_segment, encode_segment
from spark_bridge.stopped_error import StoppedError

#: Kept even when acknowledged: a replayed batch is compared with what it said before.
_KEPT_SEGMENTS = 2


class LogFaultError(SbonError):
    """The log would contradict itself, or is damaged; the fragment must stop rather than mislead its consumers."""


class LinkLog:
    """Segments of one fragment in ``folder``. Thread-safe; one process at a time (the fragment's folder lock).

    ``consumers`` are the cursors to wait for before anything is trimmed, ``max_bytes`` the room for what they have not
    acknowledged yet. ``rows_left()`` is called whenever rows are served that nobody has had before.
    """

    def __init__(
        self,
        folder: Path,
        fragment_id: str,
        consumers: tuple[str, ...],
        max_bytes: int,
        rows_left: Callable[[], None] = lambda: None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._fragment_id = fragment_id
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        #: Set once a consumer has asked: from then on there is a reason to put anything out.
        self.wanted = threading.Event()
        self._sizes: dict[int, int] = {int(path.stem): path.stat().st_size for path in folder.glob("*.segment")}
        stored = self._stored_cursors()
        self._cursors: dict[str, int] = {consumer: stored.get(consumer, -1) for consumer in consumers}
        #: On the monotonic clock: since when all others wait for these.
        self._waited_for_since: dict[str, float] = {}
        self._safe_batch: int | None = None
        self._rows_left = rows_left
        self._newest_served = -1
        self._bytes_out = 0
        self._rows_out = 0
        self._last = self._header(max(self._sizes)) if self._sizes else None
        if self._last is not None or not consumers:
            self.wanted.set()

    @property
    def last(self) -> SegmentHeader | None:
        """Header of the newest segment."""
        return self._last

    @property
    def totals(self) -> tuple[int, int]:
        """Bytes and rows appended by this process."""
        return self._bytes_out, self._rows_out

    def header(self, batch_id: int) -> SegmentHeader | None:
        """Header of one segment, None if it is not here."""
        return self._header(batch_id) if batch_id in self._sizes else None

    def append(
        self,
        generation: int,
        batch_id: int,
        table: pa.Table,
        *,
        event_time: str | None,
        watermark_ms: int | None,
        end_of_stream: bool,
    ) -> None:
        """Add the output of a batch; a batch that is here already is compared instead.

        Raises LogFaultError if a replay differs, if a batch was skipped, or if a row is older than the watermark that
        consumers were promised.
        """
        header, data = encode_segment(
            self._fragment_id,
            generation,
            batch_id,
            table,
            event_time=event_time,
            watermark_ms=watermark_ms,
            end_of_stream=end_of_stream,
            newest_before_ms=self._newest_ms(batch_id),
        )
        with self._changed:
            if self._last is not None and batch_id <= self._last.batch_id:
                self._compare_replay(header, table)
                return
            self._check_promises(header)
            write_durably(self._path(batch_id), data)
            self._sizes[batch_id] = len(data)
            self._last = header
            self._bytes_out += len(data)
            self._rows_out += header.rows
            self._trim()
            self._note_waited_for()
            self._changed.notify_all()

    def serve_up_to(self, safe_batch: int | None) -> None:
        """Serve no segment later than ``safe_batch``; None: all."""
        with self._changed:
            self._safe_batch = safe_batch
            self._changed.notify_all()

    def wait_for_room(self, stopping: threading.Event) -> None:
        """Block while consumers are more than ``max_bytes`` behind; StoppedError once ``stopping`` is set."""
        with self._changed:
            while self._unacknowledged_bytes() > self._max_bytes:
                if stopping.is_set():
                    raise StoppedError
                self._changed.wait(0.2)

    def segments_from(self, batch_id: int, wait_s: float, stopping: threading.Event) -> Iterator[bytes]:
        """Yield whole segments from ``batch_id`` on, waiting up to ``wait_s`` for each; ends when none came."""
        self.wanted.set()
        while not stopping.is_set():
            with self._changed:
                if not self._is_served(batch_id):
                    self._changed.wait(wait_s)
                if not self._is_served(batch_id):
                    return
                header, data = self._whole_segment(batch_id)
                is_new, self._newest_served = batch_id > self._newest_served, max(batch_id, self._newest_served)
            if is_new and header.rows:
                self._rows_left()
            yield data
            batch_id += 1

    def _is_served(self, batch_id: int) -> bool:
        return batch_id in self._sizes and (self._safe_batch is None or batch_id <= self._safe_batch)

    def acknowledge(self, consumer: str, batch_id: int) -> None:
        """``consumer`` will not ask for ``batch_id`` or earlier again."""
        with self._changed:
            if batch_id <= self._cursors.get(consumer, batch_id):
                return  # old news, or from somebody who reads here no longer
            self._cursors[consumer] = batch_id
            self._waited_for_since.pop(consumer, None)  # it does read
            self._cursors_changed()

    def set_readers(self, consumers: tuple[str, ...]) -> dict[str, Start]:
        """From now on these are the consumers; where each of them begins. New ones do with the oldest segment here."""
        with self._changed:
            oldest = min(self._sizes, default=0)
            known = {consumer: self._cursors.get(consumer, oldest - 1) for consumer in consumers}
            if known != self._cursors:
                self._cursors = known
                self._cursors_changed()
            return {consumer: self._start(cursor + 1) for consumer, cursor in known.items()}

    def _start(self, batch_id: int) -> Start:
        header = self.header(batch_id)
        newest_ms = self._newest_ms(batch_id) if header is None else header.newest_before_ms
        return Start(batch_id, None if newest_ms is None else newest_ms + 1)

    def _newest_ms(self, batch_id: int) -> int | None:
        """The newest event time of all segments before ``batch_id``, which is the one that comes next."""
        last = self._last
        if last is None or batch_id <= last.batch_id:
            return None  # a replay is compared by its rows
        return last.newest_ms

    def wake(self) -> None:
        """Let everyone who waits look again (at whether the fragment is stopping)."""
        with self._changed:
            self._changed.notify_all()

    def _compare_replay(self, header: SegmentHeader, table: pa.Table) -> None:
        if header.batch_id not in self._sizes:
            return  # trimmed: every consumer has it
        stored, body = decode_segment(self._whole_segment(header.batch_id)[1])
        if stored.checksum == header.checksum:
            return
        before = body_table(body)
        said = difference(_rows(before) if before is not None else [], _rows(table))
        if said is not None:
            raise LogFaultError(f"batch {header.batch_id} of {self._fragment_id} differs when replayed: {said}")

    def _check_promises(self, header: SegmentHeader) -> None:
        expected = 0 if self._last is None else self._last.batch_id + 1
        if header.batch_id != expected:
            raise LogFaultError(f"{self._fragment_id} put out batch {header.batch_id} where {expected} was due")
        promised = None if self._last is None else self._last.watermark_ms
        if promised is None:
            return
        if header.min_event_time_ms is not None and header.min_event_time_ms < promised:
            raise LogFaultError(
                f"batch {header.batch_id} of {self._fragment_id} has a row at {header.min_event_time_ms} ms, "
                f"older than the watermark {promised} ms that consumers were promised"
            )
        if header.watermark_ms is None or header.watermark_ms < promised:
            raise LogFaultError(f"the watermark of {self._fragment_id} went back at batch {header.batch_id}")

    def waited_for_s(self) -> dict[str, float]:
        """The consumers without which the producer could go on, and for how long they have read nothing meanwhile."""
        with self._changed:
            now = time.monotonic()
            return {consumer: now - since for consumer, since in self._waited_for_since.items()}

    def _cursors_changed(self) -> None:
        self._store_cursors()
        self._trim()
        self._note_waited_for()
        self._changed.notify_all()

    def _note_waited_for(self) -> None:
        if self._unacknowledged_bytes() <= self._max_bytes:
            self._waited_for_since = {}
            return
        behind = [each for each, cursor in self._cursors.items() if self._bytes_after(cursor) > self._max_bytes]
        if len(behind) == len(self._cursors):
            behind = []  # nobody waits for the others
        now = time.monotonic()
        self._waited_for_since = {consumer: self._waited_for_since.get(consumer, now) for consumer in behind}

    def _unacknowledged_bytes(self) -> int:
        return self._bytes_after(min(self._cursors.values(), default=-1))

    def _bytes_after(self, cursor: int) -> int:
        return sum(size for batch_id, size in self._sizes.items() if batch_id > cursor)

    def _trim(self) -> None:
        acknowledged = min(self._cursors.values(), default=-1)
        newest = self._last.batch_id if self._last else -1
        gone = [b for b in self._sizes if b <= acknowledged and b <= newest - _KEPT_SEGMENTS]
        for batch_id in gone:
            self._path(batch_id).unlink()
            del self._sizes[batch_id]
        if gone:
            sync_folder(self._folder)

    def _store_cursors(self) -> None:
        write_durably(self._folder / "cursors", msgspec.msgpack.encode(self._cursors))

    def _stored_cursors(self) -> dict[str, int]:
        path = self._folder / "cursors"
        return msgspec.msgpack.decode(path.read_bytes(), type=dict[str, int]) if path.exists() else {}

    def _whole_segment(self, batch_id: int) -> tuple[SegmentHeader, bytes]:
        """Raises LogFaultError if the disk does not say what was written to it: consumers must not be told that."""
        data = self._path(batch_id).read_bytes()
        try:
            return decode_segment(data)[0], data
        except RemoteProtocolError as error:
            raise LogFaultError(f"{self._path(batch_id)} is damaged on this host's disk: {error}") from error

    def _header(self, batch_id: int) -> SegmentHeader:
        try:
            return decode_header(self._path(batch_id).read_bytes())[0]
        except RemoteProtocolError as error:
            raise LogFaultError(f"{self._path(batch_id)} is damaged on this host's disk: {error}") from error

    def _path(self, batch_id: int) -> Path:
        return self._folder / f"{batch_id:010}.segment"


def _rows(table: pa.Table) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in table.to_pylist()]
