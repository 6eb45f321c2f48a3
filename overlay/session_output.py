"""What sessions have to say, kept until somebody asks, bounded and counted."""

from __future__ import annotations

from collections import Counter
from typing import Final

from overlay.bucket import Bucket
from overlay.identity import NodeId
from overlay.records import Address
from overlay.session_events import SessionEvent, SessionFailed

MAX_OUTGOING: Final = 1000
MAX_EVENTS: Final = 1000
#: Resets and refusals sent per second.
HINTS_PER_S: Final = 20.0


class SessionOutput:
    """Handshakes to be sent, and events."""

    def __init__(self, now: float) -> None:
        self.outgoing: list[tuple[bytes, Address]] = []
        self.happened: list[SessionEvent] = []
        self.counters: Counter[str] = Counter()
        self._hints = Bucket(HINTS_PER_S, HINTS_PER_S, now)

    def validate(self) -> None:
        assert len(self.outgoing) <= MAX_OUTGOING
        assert len(self.happened) <= MAX_EVENTS

    def datagrams(self) -> list[tuple[bytes, Address]]:
        outgoing = self.outgoing.copy()
        self.outgoing.clear()
        return outgoing

    def events(self) -> list[SessionEvent]:
        happened = self.happened.copy()
        self.happened.clear()
        return happened

    def send(self, data: bytes, address: Address, counted_as: str) -> None:
        if len(self.outgoing) < MAX_OUTGOING:
            self.counters[counted_as] += 1
            self.outgoing.append((data, address))
        else:
            self.counters["queue_full"] += 1

    def hint(self, data: bytes, address: Address, now: float, counted_as: str) -> None:
        """Answer somebody unknown, with less than was sent and not too often."""
        self.counters[counted_as] += 1
        if self._hints.take(1, now):
            self.send(data, address, "hint_sent")

    def fail(self, address: Address, node_id: NodeId | None, reason: str) -> None:
        self.counters["failed"] += 1
        self.tell(SessionFailed(address, node_id, reason))

    def tell(self, event: SessionEvent) -> None:
        if len(self.happened) < MAX_EVENTS:
            self.happened.append(event)
        else:
            self.counters["event_dropped"] += 1
