"""What a node does when, and which message is whose business.

Once per tick a node probes one peer, lets its neighbours hear of it, and looks after its links; the rest are answers.
"""

from __future__ import annotations

import random

from overlay.config import OverlayConfig
from overlay.identity import NodeId
from overlay.joining import Joining
from overlay.messages import (
    Beat,
    Exchange,
    ExchangeReply,
    Join,
    JoinReply,
    Leave,
    LinkReply,
    LinkRequest,
    Message,
    Newcomer,
    Ping,
    Pong,
    Relay,
    Relayed,
    SearchReply,
    SearchRequest,
    Surroundings,
    Unlink,
)
from overlay.records import NodeRecord
from overlay.session_events import SessionFailed, SessionOpened
from overlay.sessions import Sessions
from overlay.speech import CLOSE


class Talk(Joining):
    """One node's conversations. :class:`overlay.node.Overlay` adds the verbs and the searches."""

    def __init__(
        self, record: NodeRecord, config: OverlayConfig, rng: random.Random, now: float, sessions: Sessions
    ) -> None:
        super().__init__(record, config, rng, now, sessions)
        self._has_left = False
        # Nodes that start together shall not speak together.
        self._tick_at = now + rng.random() * self._tick_s

    # --- time

    def _timer(self) -> float:
        timer = self._sessions.next_timer()
        if self._joins:
            timer = min(timer, min(min(attempt.deadline, attempt.retry_at) for attempt in self._joins.values()))
        if self._has_left:
            return timer
        if self._prober.wants_to_probe:
            return self._now
        if self._checks.table:
            timer = min(timer, self._checks.next_timer())
        if self._links.table or self._strangers or self._lost or self._links.candidates or self._entry:
            timer = min(timer, self._tick_at, self._silent_at)
        return timer

    def _do_what_is_due(self, now: float) -> None:
        self._sessions.handle_timer(now)
        self._take_session_events(now)
        if self._joins:
            self._retry_joins(now)
        if self._has_left:
            return
        for node_id in self._prober.asked_for():
            self._ping(node_id, is_probe=True)
        if now >= self._tick_at:
            self._tick_at = max(self._tick_at + self._tick_s, now + self._tick_s / 2)
            self._tick(now)
        if now >= self._silent_at:
            self._find_silent(now)
        if self._checks.table:
            self._go_on_checking(now)

    def _tick(self, now: float) -> None:
        if now >= self._probe_at:
            self._probe_at = max(self._probe_at + self._config.probe_interval_s, now)
            self._probe(now)
        self._beat(now)
        self._links.expire(now)
        if now >= self._exchange_at:
            self._exchange(now)
        if now >= self._refresh_at:
            self._refresh_pointers(now)
        if now >= self._drop_at:
            self._drop_surplus(now)
        self._mix(now)
        if now >= self._reconnect_at and (self._lost or not self._links.table):
            self._reconnect(now)
            self._rejoin(now)

    # --- sessions

    def _session_opened(self, event: SessionOpened, now: float) -> None:
        node_id = event.node_id
        self._addresses[node_id] = event.address
        link = self._links.table.get(node_id)
        if link is None:
            known = self._strangers.pop(node_id, None)
            if known is not None and known.boot_id != event.boot_id:
                self._prober.forget(node_id)
            self._meet(node_id, event.boot_id)
        else:
            if link.record.boot_id < event.boot_id:
                self._restarted(link, event, now)
            if link.record.boot_id == event.boot_id:
                self._heard(node_id, event.address, now)
        self._join_session_opened(event, now)
        for body, extra in self._waiting.pop(node_id, ()):
            self._send(node_id, body, extra)

    def _session_failed(self, event: SessionFailed, now: float) -> None:
        self._join_session_failed(event)
        if event.node_id is not None:
            self._cannot_reach(event.node_id, now)

    def _cannot_reach(self, node_id: NodeId, now: float) -> None:
        if node_id not in self._lost:  # they are tried again and again
            self._unreached.happened(now)
        self._waiting.pop(node_id, None)
        self._links.candidates.pop(node_id, None)
        self._pointers.remove(node_id)

    # --- messages

    def _dispatch(self, sender: NodeId, message: Message, now: float) -> None:
        if self._has_left:
            if not isinstance(message, Leave):
                self._send(sender, Leave(), CLOSE)  # it missed our goodbye
            return
        match message:
            case Ping():
                self._answer_ping(sender, message, now)
            case Pong():
                self._tell_asker(sender, message.nonce)
                self._take_pong(sender, message, now)
            case Beat():
                self._take_beat(sender, message, now)
            case LinkRequest():
                self._answer_link_request(sender, message, now)
            case LinkReply():
                self._take_link_reply(sender, message, now)
            case Unlink():
                self._take_unlink(sender, message.surplus, now)
            case Exchange():
                self._answer_exchange(sender, message, now)
            case ExchangeReply():
                self._take_exchange_reply(sender, message, now)
            case Newcomer():
                self._take_newcomer(sender, message, now)
            case Surroundings():
                self._take_surroundings(sender, message, now)
            case Relay():
                self._answer_relay(sender, message, now)
            case Relayed():
                self._take_relayed(sender, message, now)
            case Join():
                self._answer_join(sender, message, now)
            case JoinReply():
                self._take_join_reply(sender, message, now)
            case Leave():
                self._take_leave(sender)
            case SearchRequest():
                self._answer_search(sender, message, now)
            case SearchReply():
                self._take_search_reply(sender, message, now)

    def _answer_search(self, sender: NodeId, request: SearchRequest, now: float) -> None:
        raise NotImplementedError

    def _take_search_reply(self, sender: NodeId, reply: SearchReply, now: float) -> None:
        raise NotImplementedError
