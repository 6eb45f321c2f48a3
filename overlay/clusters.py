"""Hosts that are near each other, by their coordinates: who is in the middle of them, and how to part them in two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from overlay.records import NodeRecord

#: Of what is cut in two, neither part is smaller than one in so many: or else it would soon be given up again.
LEAST_SHARE: Final = 3
#: Moving the two centres; they rarely move after a few rounds.
ROUNDS: Final = 4


def distance_ms(a: NodeRecord, b: NodeRecord) -> float:
    return 0.0 if a.node_id == b.node_id else a.coordinate.rtt_ms(b.coordinate)


def nearest(place: NodeRecord, records: Sequence[NodeRecord]) -> NodeRecord:
    """Of equals the one with the least id, everywhere the same."""
    return min(records, key=lambda record: (distance_ms(place, record), record.node_id))


def total_ms(place: NodeRecord, records: Sequence[NodeRecord]) -> float:
    return sum(distance_ms(place, record) for record in records)


def medoid(records: Sequence[NodeRecord]) -> NodeRecord:
    """The one that is nearest to all others."""
    return min(records, key=lambda record: (total_ms(record, records), record.node_id))


def halves(records: Sequence[NodeRecord]) -> tuple[list[NodeRecord], list[NodeRecord]]:
    """At least two records in two groups that are near each other, neither much smaller than the other."""
    middle = medoid(records)
    first = max(records, key=lambda record: (distance_ms(middle, record), record.node_id))
    second = max(records, key=lambda record: (distance_ms(first, record), record.node_id))
    least = max(1, len(records) // LEAST_SHARE)
    groups: tuple[list[NodeRecord], list[NodeRecord]] = ([], [])
    for _ in range(ROUNDS):
        nearer = {each.node_id: distance_ms(first, each) - distance_ms(second, each) for each in records}
        ordered = sorted(records, key=lambda record: (nearer[record.node_id], record.node_id))
        cut = sum(nearer[record.node_id] <= 0.0 for record in ordered)
        cut = min(max(cut, least), len(records) - least)
        groups = ordered[:cut], ordered[cut:]
        first, second = medoid(groups[0]), medoid(groups[1])
    return groups
