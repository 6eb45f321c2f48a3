"""ModelledEngine: what Spark and the links do to a fragment, in a few lines and without Spark.

Modelled are micro-batches of any size, state that a batch changes, a link log, an inbox per producer, trimming, and
snapshots. A row is (source, number). Every fragment here passes its rows on, and has counted those of each source: a
row that does not follow the one before it shows at once that something was lost or doubled, in state or in flight.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

Row = tuple[str, int]


class LostOrDoubledError(AssertionError):
    """What the checker is there to find."""


@dataclass(slots=True)
class Segment:
    batch_id: int
    rows: tuple[Row, ...]


@dataclass(slots=True)
class ModelledFragment:
    """All that is on the disk of a fragment. ``inbox`` holds what was pulled and not read by a committed batch."""

    producers: tuple[str, ...]
    consumers: tuple[str, ...]
    seen: Counter[str] = field(default_factory=Counter)
    batch_id: int = -1
    log: dict[int, Segment] = field(default_factory=dict)
    cursors: dict[str, int] = field(default_factory=dict)
    inbox: list[tuple[str, Segment]] = field(default_factory=list)
    pulled: dict[str, int] = field(default_factory=dict)
    read: dict[str, int] = field(default_factory=dict)
    trimmed: int = -1

    def next_batch(self, producer: str) -> int:
        """The batch to pull next from ``producer``."""
        return self.pulled.get(producer, -1) + 1

    def take_in(self, producer: str, segment: Segment) -> None:
        if segment.batch_id == self.next_batch(producer):
            self.pulled[producer] = segment.batch_id
            self.inbox.append((producer, segment))

    def run_batch(self, size: int) -> bool:
        """Read up to ``size`` segments and commit; False if there are none."""
        if not self.inbox:
            return False
        self.read_segments(self.inbox[:size])
        return True

    def read_segments(self, taken: Sequence[tuple[str, Segment]]) -> None:
        """A batch of these, which are in the inbox."""
        chosen = {id(segment) for _, segment in taken}
        self.inbox = [waiting for waiting in self.inbox if id(waiting[1]) not in chosen]
        self.put_out(tuple(row for _, segment in taken for row in segment.rows))
        for producer, segment in taken:
            self.read[producer] = segment.batch_id

    def put_out(self, rows: tuple[Row, ...]) -> None:
        for source, number in rows:
            if number != self.seen[source]:
                raise LostOrDoubledError(f"row {number} of {source} came where {self.seen[source]} was due")
            self.seen[source] += 1
        self.batch_id += 1
        self.log[self.batch_id] = Segment(self.batch_id, rows)
        self.trim()

    def serve(self, from_batch: int, bound: int | None) -> list[Segment] | None:
        """What a consumer gets; None if it asks for what was trimmed."""
        if from_batch <= self.trimmed:
            return None
        return [
            segment
            for batch_id, segment in sorted(self.log.items())
            if batch_id >= from_batch and (bound is None or batch_id <= bound)
        ]

    def acknowledge(self, consumer: str, batch_id: int) -> None:
        self.cursors[consumer] = max(self.cursors.get(consumer, -1), batch_id)
        self.trim()

    def trim(self) -> None:
        least = min((self.cursors.get(consumer, -1) for consumer in self.consumers), default=-1)
        for batch_id in [batch_id for batch_id in self.log if batch_id <= least]:
            del self.log[batch_id]
            self.trimmed = max(self.trimmed, batch_id)

    def snapshot(self) -> ModelledFragment:
        """The state after the last committed batch, without what was pulled and not read."""
        taken = copy.deepcopy(self)
        taken.inbox = []
        taken.pulled = dict(taken.read)
        return taken
