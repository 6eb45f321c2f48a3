"""Finding nodes: the k of least objective. Membership is full for now, so one look over all known records is exact."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable

from overlay.records import NodeRecord, Status

#: Cost of a node for the purpose at hand; infinity (or NaN) rules it out.
Objective = Callable[[NodeRecord], float]


def least(records: Iterable[NodeRecord], objective: Objective, k: int) -> list[NodeRecord]:
    """At most ``k`` of the records that are alive, by ascending objective; ties go by node id, the same everywhere."""
    costed = ((objective(record), record.node_id, record) for record in records if record.status is Status.ALIVE)
    best = heapq.nsmallest(k, (entry for entry in costed if math.isfinite(entry[0])), key=lambda entry: entry[:2])
    return [record for _, _, record in best]
