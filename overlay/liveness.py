"""Who is still there. Any authentic datagram is a sign of life; a neighbour that is silent is checked
(:mod:`overlay.checks`), and one that does not answer is given up. The lost are tried again now and then, so that the
overlay grows together after an outage.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass
from typing import Final

import msgspec

from overlay.checks import LINK_GAIN, Checks, OwnLoss, pings_needed
from overlay.config import MAX_LOST, OverlayConfig
from overlay.events import MemberFailed, MemberLeft, MemberRecovered, MemberRestarted, MemberSuspected
from overlay.identity import NodeId
from overlay.links import Link
from overlay.measuring import Measuring
from overlay.messages import LinkRequest, Message, Ping, Relay, Relayed
from overlay.neighbourhood import Lost
from overlay.packing import pack, unpack
from overlay.records import Address, NodeRecord, Status
from overlay.session_events import SessionOpened
from overlay.sessions import Sessions

MAX_RELAYS: Final = 32
#: A neighbour that only helpers can reach is of no use as a neighbour: it is given up after so many checks in a row.
MAX_RELAYED_CHECKS: Final = 3


@dataclass(frozen=True, slots=True)
class RelayFor:
    """A ping that was asked for: by whom, under which nonce, and about which process of the node."""

    asker: NodeId
    nonce: int
    boot_id: int


class Liveness(Measuring):
    """Signs of life, and the want of them."""

    def __init__(
        self, record: NodeRecord, config: OverlayConfig, rng: random.Random, now: float, sessions: Sessions
    ) -> None:
        super().__init__(record, config, rng, now, sessions)
        self._checks = Checks(config)
        self._own_loss = OwnLoss()
        self._prober.on_outcome = self._note_outcome
        #: Pings under way for others, by our nonce.
        self._relays: dict[int, RelayFor] = {}
        self._relayed_checks: Counter[NodeId] = Counter()
        self._silent_at = math.inf
        self._reconnect_at = now + config.reconnect_interval_s

    # --- signs of life

    def _heard(self, sender: NodeId, source: Address, now: float) -> bool:
        self._addresses[sender] = source
        link = self._links.table.get(sender)
        if link is not None:
            link.heard_at = now
            if self._relayed_checks:
                self._relayed_checks.pop(sender, None)
            if not link.suspect:
                return True
            self._alive(link, now)
            return False
        stranger = self._strangers.pop(sender, None)
        if stranger is not None:
            self._strangers[sender] = stranger  # to the end: heard of last
        return False

    def _alive(self, link: Link, now: float) -> None:
        """A suspected neighbour is there after all."""
        link.suspect = False
        link.heard_at = now
        self._checks.drop(link.record.node_id)
        self._events.append(MemberRecovered(link.record))

    def _note_outcome(self, node_id: NodeId, is_probe: bool, answered: bool) -> None:
        """A ping was answered, or will not be any more."""
        if is_probe:
            self._own_loss.note(answered=answered)
        link = self._links.table.get(node_id)
        if link is not None:
            link.loss += LINK_GAIN * ((not answered) - link.loss)

    def _excuse(self, late_s: float) -> None:
        self._checks.grant(late_s)
        for link in self._links.table.values():
            link.heard_at += late_s

    def _is_back(self, node_id: NodeId, now: float) -> bool:
        if self._lost.pop(node_id, None) is None:
            return False
        self._reconnect_at = now  # the others may be back, too
        return True

    def _linked(self, node_id: NodeId, now: float) -> None:
        self._silent_at = min(self._silent_at, now + self._config.silence_s)

    def _restarted(self, link: Link, event: SessionOpened, now: float) -> None:
        """The same node in a new process, perhaps at a new address: what was measured and agreed on is void."""
        previous = link.record
        host, port = event.address
        link.record = msgspec.structs.replace(previous, boot_id=event.boot_id, incarnation=0, host=host, port=port)
        link.packed = pack(link.record)
        self._prober.forget(event.node_id)
        self._prober.probe_soon(event.node_id)
        self._events.append(MemberRestarted(link.record, previous))
        self._send(event.node_id, LinkRequest(self._packed, link.far))

    # --- silence

    def _find_silent(self, now: float) -> None:
        """Check the neighbours that were not heard for too long, and note when the next one would be."""
        silence_s = self._config.silence_s
        next_at = now + 10.0 * silence_s
        table = self._links.table
        for node_id, link in table.items():
            silent_at = link.heard_at + silence_s
            if link.suspect:
                continue
            if silent_at <= now:
                link.suspect = True
                pings = pings_needed(link.loss, self._own_loss.value)
                self._checks.start(node_id, pings, link.away_ms, len(table), now)
                self._events.append(MemberSuspected(link.shown))
            elif silent_at < next_at:
                next_at = silent_at
        self._silent_at = next_at

    def _go_on_checking(self, now: float) -> None:
        pings, dead = self._checks.due(now)
        for node_id, relayed in pings:
            # It may have forgotten the session: then it hears no ping, but a HELLO.
            self._sessions.knock(self._links.table[node_id].record.address, now, node_id)
            if relayed:
                self._ask_a_helper(node_id)
            else:
                self._ping(node_id, is_probe=False)
        for node_id in dead:
            self._give_up(node_id, now)

    def _give_up(self, node_id: NodeId, now: float) -> None:
        link = self._remove_link(node_id)
        if link is None:
            return
        self._prober.forget(node_id)
        self._close(node_id)
        self._lose(link.record, now)
        self._events.append(MemberFailed(msgspec.structs.replace(link.record, status=Status.DEAD)))
        self._exchange_soon(now + self._config.min_exchange_interval_s)

    def _remove_link(self, node_id: NodeId) -> Link | None:
        self._checks.drop(node_id)
        self._relayed_checks.pop(node_id, None)
        return super()._remove_link(node_id)

    # --- helpers

    def _ask_a_helper(self, node_id: NodeId) -> None:
        helpers = [other for other, link in self._links.table.items() if not link.suspect]
        if helpers:
            helper = self._rng.choice(helpers)
            nonce = self._prober.sent(node_id, self._now, is_probe=False, helper=helper)
            self._send(helper, Relay(nonce, self._links.table[node_id].packed))
        else:
            self._ping(node_id, is_probe=False)

    def _answer_relay(self, sender: NodeId, relay: Relay, now: float) -> None:
        target = unpack(relay.target, self._config.dimensions)
        if target.node_id != self._own.node_id:
            self._say(target, Ping(0), now, RelayFor(sender, relay.nonce, target.boot_id))

    def _finish(self, node_id: NodeId, body: Message, extra: object, now: float) -> Message | None:
        finished = super()._finish(node_id, body, extra, now)
        if isinstance(extra, RelayFor) and isinstance(finished, Ping):
            while len(self._relays) >= MAX_RELAYS:
                del self._relays[next(iter(self._relays))]
            self._relays[finished.nonce] = extra
        return finished

    def _tell_asker(self, sender: NodeId, nonce: int) -> None:
        """A ping was answered: tell the one for whom it was, if any.

        But not if a process has answered that counts as older (a clock was set back): the asker refuses that one for as
        long as the one that it knows seems to live, and that has ended.
        """
        relay = self._relays.pop(nonce, None)
        if relay is None or not self._sessions.is_open(relay.asker):
            return
        link, stranger = self._links.table.get(sender), self._strangers.get(sender)
        known = link.record if link is not None else stranger
        if known is not None and known.boot_id >= relay.boot_id:
            self._send(relay.asker, Relayed(relay.nonce))

    def _take_relayed(self, sender: NodeId, relayed: Relayed, now: float) -> None:
        node_id = self._prober.relayed(relayed.nonce, sender)
        if node_id is None or node_id not in self._checks.table:
            return
        self._relayed_checks[node_id] += 1
        if self._relayed_checks[node_id] <= MAX_RELAYED_CHECKS:
            self._alive(self._links.table[node_id], now)

    # --- the lost

    def _lose(self, record: NodeRecord, now: float) -> None:
        while len(self._lost) >= MAX_LOST:
            del self._lost[next(iter(self._lost))]
        self._lost[record.node_id] = Lost(record, now)
        self._pointers.remove(record.node_id)
        self._bound_hearsay()

    def _reconnect(self, now: float) -> None:
        """Try the next of the lost again, so that the overlay grows together after an outage."""
        self._reconnect_at = now + self._config.reconnect_interval_s
        for node_id in [node_id for node_id, lost in self._lost.items() if self._is_forgotten(lost, now)]:
            del self._lost[node_id]
        if self._lost:
            node_id = next(iter(self._lost))
            lost = self._lost[node_id] = self._lost.pop(node_id)  # to the end: its turn comes after the others'
            self._say(lost.record, LinkRequest(self._packed, far=True), now)

    def _is_forgotten(self, lost: Lost, now: float) -> bool:
        return now - lost.since > self._config.forget_after_s

    # --- goodbyes

    def _take_leave(self, sender: NodeId) -> None:
        link = self._remove_link(sender)
        if link is not None:
            self._prober.forget(sender)
            self._events.append(MemberLeft(msgspec.structs.replace(link.record, status=Status.LEFT)))
        self._lost.pop(sender, None)
        self._links.candidates.pop(sender, None)
        self._pointers.remove(sender)
        self._part_with_stranger(sender)

    def _forget_everybody(self) -> None:
        for node_id in [*self._links.table, *self._strangers]:
            self._prober.forget(node_id)
        self._links.table.clear()
        self._links.candidates.clear()
        self._pointers.table.clear()
        self._checks.table.clear()
        for table in (self._strangers, self._lost, self._waiting, self._relays, self._relayed_checks):
            table.clear()
        self._samples.clear()
