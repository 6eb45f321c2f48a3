"""How a node comes into an overlay, and lets others in.

A join names an address: who is there turns out by the handshake. It is asked until it answers, and answers with some of
its neighbours to begin with.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from overlay.config import OverlayConfig
from overlay.events import Joined, JoinFailed
from overlay.identity import NodeId
from overlay.liveness import Liveness
from overlay.messages import MAX_REASON_LENGTH, Join, JoinReply
from overlay.naming import REPLY_FRAME_BYTES, fitting
from overlay.neighbourhood import JOIN_RECORDS
from overlay.records import Address, NodeRecord
from overlay.session_events import NO_ANSWER, SessionFailed, SessionOpened
from overlay.session_wire import MAX_BODY_BYTES
from overlay.sessions import Sessions


@dataclass(slots=True)
class JoinAttempt:
    nonce: int
    deadline: float
    retry_at: float
    node_id: NodeId | None = None
    #: Nobody asked for it, so nobody is told how it ends.
    quiet: bool = False


class Joining(Liveness):
    """Joins under way, ours and those of others."""

    def __init__(
        self, record: NodeRecord, config: OverlayConfig, rng: random.Random, now: float, sessions: Sessions
    ) -> None:
        super().__init__(record, config, rng, now, sessions)
        self._joins: dict[Address, JoinAttempt] = {}
        #: Where we were taken in: asked again when we are alone.
        self._entry: Address | None = None

    def _ask_to_join(self, address: Address, now: float, *, quiet: bool = False) -> None:
        deadline = now + self._config.join_timeout_s
        self._joins[address] = JoinAttempt(self._rng.getrandbits(31), deadline, now, quiet=quiet)
        self._retry_joins(now)

    def _rejoin(self, now: float) -> None:
        """If all whom we heard of had no room for us, or are gone, begin again where we began."""
        if not self._links.table and self._entry is not None and not self._joins:
            self._ask_to_join(self._entry, now, quiet=True)

    def _retry_joins(self, now: float) -> None:
        for address, attempt in list(self._joins.items()):
            if attempt.deadline <= now:
                within_s = self._config.join_timeout_s
                self._join_failed(address, f"no answer within {within_s:g} s: is a node listening there?")
            elif attempt.retry_at <= now:
                attempt.retry_at = now + self._config.join_retry_s
                if attempt.node_id is not None and self._sessions.is_open(attempt.node_id):
                    self._send(attempt.node_id, Join(attempt.nonce, self._config.dimensions, self._packed))
                else:
                    self._sessions.connect(address, now)

    def _join_failed(self, address: Address, reason: str) -> None:
        if not self._joins.pop(address).quiet:
            self._events.append(JoinFailed(address, reason))

    def _join_session_opened(self, event: SessionOpened, now: float) -> None:
        attempt = self._joins.get(event.address)
        if attempt is not None:
            attempt.node_id = event.node_id
            attempt.retry_at = now + self._config.join_retry_s
            self._send(event.node_id, Join(attempt.nonce, self._config.dimensions, self._packed))

    def _join_session_failed(self, event: SessionFailed) -> None:
        attempt = self._joins.get(event.address)
        if attempt is not None and event.reason != NO_ANSWER:
            self._join_failed(event.address, event.reason)

    def _answer_join(self, sender: NodeId, join: Join, now: float) -> None:
        if join.dimensions != self._config.dimensions:
            reason = f"it uses {self._config.dimensions} dimensions, this node {join.dimensions}"
            self._send(sender, JoinReply(join.nonce, b"", reason=f"{reason}: set [overlay] dimensions alike"))
            return
        self._introduced(sender, join.record)
        links = [link.packed for link in self._links.table.values() if not link.suspect]
        chosen = self._rng.sample(links, min(JOIN_RECORDS, len(links)))
        room = MAX_BODY_BYTES - REPLY_FRAME_BYTES - len(self._packed)
        others, _ = fitting(((packed, 0.0) for packed in chosen), room)
        self._send(sender, JoinReply(join.nonce, self._packed, others))

    def _take_join_reply(self, sender: NodeId, reply: JoinReply, now: float) -> None:
        address = next((address for address, attempt in self._joins.items() if attempt.nonce == reply.nonce), None)
        if address is None:
            return
        if reply.reason:
            self._join_failed(address, "".join(c for c in reply.reason[:MAX_REASON_LENGTH] if c.isprintable()))
            return
        record = self._introduced(sender, reply.record)
        self._entry = address
        if not self._joins.pop(address).quiet:
            self._events.append(Joined(address, record))
        self._exchange_soon(now)
        self._consider(record, reply.record, now)
        for packed in reply.others[:JOIN_RECORDS]:
            self._take_sample(packed, now)

    def _forget_everybody(self) -> None:
        super()._forget_everybody()
        self._joins.clear()
        self._entry = None
