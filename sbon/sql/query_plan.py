"""What planning a query gives: a plain value, for those who have no use for the planner (:mod:`sbon.sql.plan`)."""

from __future__ import annotations

import msgspec

from sbon.fragment import FragmentSpec


class QueryPlan(msgspec.Struct, frozen=True):
    """A query as fragments.

    ``fragments`` come producers first, the sink last. ``owners`` maps the pinned ones (sources and the sink) to their
    node ids. ``links`` are (producer id, consumer id, estimated bytes per second).
    """

    query_id: str
    sql: str
    fragments: tuple[FragmentSpec, ...]
    owners: dict[str, str]
    links: tuple[tuple[str, str, float], ...]
