"""Who is a member: one table of records, merged by version, and the news that is still to be spread.

Full membership with suspicion and refutation in the manner of SWIM (A. Das et al., DSN 2002): a member that misses
probes is suspected, the suspicion is gossiped, and the member itself refutes it with a higher incarnation, or is taken
for dead when the time is up. Dead members stay in the table as tombstones, so that old news cannot revive them and they
can be tried again after an outage.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import msgspec

from overlay.config import OverlayConfig
from overlay.events import (
    Event,
    MemberFailed,
    MemberJoined,
    MemberLeft,
    MemberRecovered,
    MemberRestarted,
    MemberSuspected,
)
from overlay.identity import NodeId
from overlay.records import MAX_VERSION, NodeRecord, Status

#: A piece of news is sent this many times log2(members) (SWIM section 4.1: lambda log n).
RUMOR_REPEATS = 3


class Membership:
    """The table. :meth:`merge` is the only way in for what others say."""

    def __init__(self, own: NodeRecord, config: OverlayConfig) -> None:
        self.own = own
        self._config = config
        self._records: dict[NodeId, NodeRecord] = {}
        #: When a suspected member is given up.
        self._suspected_until: dict[NodeId, float] = {}
        #: When a member went, for forgetting it.
        self._gone_since: dict[NodeId, float] = {}
        #: News -> how often it is still to be sent. May name the node itself.
        self._rumors: dict[NodeId, int] = {}
        self.refused = 0

    # --- reading

    def get(self, node_id: NodeId) -> NodeRecord | None:
        """The record of any known node: the own one, members, and those that are gone."""
        return self.own if node_id == self.own.node_id else self._records.get(node_id)

    def present(self) -> list[NodeRecord]:
        """All members but ourselves, by name; suspected ones are among them."""
        return sorted(
            (record for record in self._records.values() if record.present), key=lambda r: (r.name, r.node_id)
        )

    def dead(self) -> list[NodeRecord]:
        return [record for record in self._records.values() if record.status is Status.DEAD]

    @property
    def has_present(self) -> bool:
        return any(record.present for record in self._records.values())

    @property
    def has_rumors(self) -> bool:
        return bool(self._rumors)

    # --- what others say

    def merge(self, record: NodeRecord, now: float) -> list[Event]:
        """Take in a (checked) record if it is newer than what is known. Returns what that changed."""
        if record.node_id == self.own.node_id:
            self._refute(record)
            return []
        known = self._records.get(record.node_id)
        if known is None:
            if not record.present:
                return []  # nothing to end
            if len(self._records) >= self._config.max_members and not self._make_room():
                self.refused += 1
                return []
        elif not record.supersedes(known):
            return []
        self._store(record, now)
        events = _changes(known, record)
        if events:
            self._spread(record.node_id)
        return events

    def suspect(self, node_id: NodeId, now: float) -> list[Event]:
        """Our own probes of a member went unanswered."""
        record = self._records.get(node_id)
        if record is None or record.status is not Status.ALIVE:
            return []
        return self.merge(msgspec.structs.replace(record, status=Status.SUSPECT), now)

    # --- what we say

    def change_own(self, **changes: object) -> None:
        """Advertise something new about ourselves under a higher incarnation. Probes spread it."""
        self.own = msgspec.structs.replace(self.own, **{"incarnation": self.own.incarnation + 1, **changes})

    def spread_own(self) -> None:
        self._spread(self.own.node_id)

    def clear(self) -> None:
        """Forget everybody: we left."""
        self._records.clear()
        self._suspected_until.clear()
        self._gone_since.clear()
        self._rumors.clear()

    def news(self, rng: random.Random, budget_bytes: int) -> tuple[NodeRecord, ...]:
        """Records for one gossip datagram: urgent news first, then any others that fit (anti-entropy)."""
        urgent = sorted(self._rumors, key=lambda node_id: -self._rumors[node_id])
        rest = [node_id for node_id in self._records if node_id not in self._rumors]
        rng.shuffle(rest)
        chosen: list[NodeRecord] = []
        for node_id in urgent + rest:
            record = self.get(node_id)
            if record is None:
                continue
            size = len(msgspec.msgpack.encode(record))
            if size > budget_bytes:
                break
            budget_bytes -= size
            chosen.append(record)
            self._told(node_id)
        return tuple(chosen)

    def everything(self, budget_bytes: int) -> Iterator[tuple[NodeRecord, ...]]:
        """All present members in portions that fit a datagram each: for one who has just joined."""
        portion: list[NodeRecord] = []
        room = budget_bytes
        for record in self.present():
            size = len(msgspec.msgpack.encode(record))
            if size > room and portion:
                yield tuple(portion)
                portion, room = [], budget_bytes
            portion.append(record)
            room -= size
        if portion:
            yield tuple(portion)

    # --- time

    def next_timer(self) -> float:
        """When :meth:`expire` has something to do; infinity if never."""
        forget = min(self._gone_since.values(), default=math.inf) + self._config.forget_after_s
        return min(min(self._suspected_until.values(), default=math.inf), forget)

    def expire(self, now: float) -> list[Event]:
        """Give up the suspected whose time is up, and forget the long gone."""
        events: list[Event] = []
        for node_id in [node_id for node_id, until in self._suspected_until.items() if until <= now]:
            events += self.merge(msgspec.structs.replace(self._records[node_id], status=Status.DEAD), now)
        for node_id in [
            node_id for node_id, since in self._gone_since.items() if since + self._config.forget_after_s <= now
        ]:
            self._forget(node_id)
        return events

    def grant(self, seconds: float) -> None:
        """Put off all suspicions: it was this process that stood still, not the others."""
        for node_id in self._suspected_until:
            self._suspected_until[node_id] += seconds

    # --- inside

    def _refute(self, record: NodeRecord) -> None:
        """Somebody's word about ourselves: if it is not older than our own and differs, outdate it."""
        own = self.own
        if record.boot_id > own.boot_id:
            # An earlier process of ours had a higher boot id: the host's clock went back in between.
            if record.boot_id < MAX_VERSION:
                self.change_own(boot_id=record.boot_id + 1, incarnation=0)
                self.spread_own()
        elif record.supersedes(own) and record.incarnation < MAX_VERSION:
            self.change_own(incarnation=record.incarnation + 1)
            self.spread_own()

    def _store(self, record: NodeRecord, now: float) -> None:
        node_id = record.node_id
        self._records[node_id] = record
        if record.status is Status.SUSPECT:
            self._suspected_until.setdefault(node_id, now + self._config.suspicion_s)
        else:
            self._suspected_until.pop(node_id, None)
        if record.present:
            self._gone_since.pop(node_id, None)
        else:
            self._gone_since.setdefault(node_id, now)

    def _spread(self, node_id: NodeId) -> None:
        self._rumors[node_id] = RUMOR_REPEATS * math.ceil(math.log2(len(self._records) + 2))

    def _told(self, node_id: NodeId) -> None:
        left = self._rumors.get(node_id, 0) - 1
        if left > 0:
            self._rumors[node_id] = left
        else:
            self._rumors.pop(node_id, None)

    def _make_room(self) -> bool:
        """Forget the one that has been gone for longest; False if everybody is present."""
        if not self._gone_since:
            return False
        self._forget(min(self._gone_since, key=lambda node_id: self._gone_since[node_id]))
        return True

    def _forget(self, node_id: NodeId) -> None:
        del self._records[node_id]
        del self._gone_since[node_id]
        self._rumors.pop(node_id, None)

    def validate(self) -> None:
        """Assert what must always hold between the tables."""
        records = self._records
        assert self.own.node_id not in records
        assert len(records) <= self._config.max_members
        assert all(node_id == record.node_id for node_id, record in records.items())
        suspected = {node_id for node_id, record in records.items() if record.status is Status.SUSPECT}
        assert suspected == set(self._suspected_until)
        assert {node_id for node_id, record in records.items() if not record.present} == set(self._gone_since)
        assert all(left > 0 for left in self._rumors.values())
        assert set(self._rumors) <= {*records, self.own.node_id}


def _changes(known: NodeRecord | None, record: NodeRecord) -> list[Event]:
    """What a newer record means to those who watch."""
    if not record.present:
        assert known is not None
        if not known.present:
            return []
        return [MemberLeft(record) if record.status is Status.LEFT else MemberFailed(record)]
    events: list[Event] = []
    if known is not None and known.boot_id != record.boot_id:
        events.append(MemberRestarted(record, known))
    elif known is None or not known.present:
        events.append(MemberJoined(record))
    if record.status is Status.SUSPECT:
        if known is None or known.status is not Status.SUSPECT:
            events.append(MemberSuspected(record))
    elif known is not None and known.boot_id == record.boot_id and known.status is Status.SUSPECT:
        events.append(MemberRecovered(record))
    return events
