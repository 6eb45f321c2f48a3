"""Whom a node knows, and how one who is known becomes a neighbour.

:mod:`overlay.links` decides whom a node wants for neighbours; here is how the two ends agree on it. Whoever has a
session with us and is no neighbour is a *stranger*; a *sample* is a random node that a pong named, fresh to be probed
and linked with; the *lost* are neighbours that were given up for dead; of some others we only know
(:mod:`overlay.pointers`). Neighbours are asked, less and less often, whom they know near our place, and hear of us in
time.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass
from typing import Final

from overlay.config import MAX_REMEMBERED, MAX_SAMPLES, OverlayConfig
from overlay.events import MemberJoined
from overlay.identity import NodeId
from overlay.lately import Lately, is_lately
from overlay.links import Link, Links
from overlay.messages import Beat, Exchange, ExchangeReply, LinkReply, LinkRequest, Packed, Unlink
from overlay.naming import NOT_KNOWN, REPLY_FRAME_BYTES, age_byte, fitting, id_ends, is_newer, with_ages
from overlay.packing import packed_id_end, packed_node_id, packed_version, unpack
from overlay.pointers import Pointers, keep_s, worth_knowing
from overlay.probing import Prober
from overlay.records import NodeRecord
from overlay.session_wire import MAX_BODY_BYTES
from overlay.sessions import Sessions
from overlay.speech import CLOSE, Speech

#: Records in one answer to an exchange, if they fit a datagram; of those, in a large overlay, so many that are new to
#: the asker. And in one to a join.
EXCHANGE_RECORDS: Final = 14
NEW_RECORDS: Final = 6
JOIN_RECORDS: Final = 8
#: How often the pointers are looked through.
REFRESH_INTERVAL_S: Final = 15.0
#: News about ourselves go to a neighbour this often at most; and while our place settles, as it changes all the time.
NEWS_INTERVAL_S: Final = 8.0
SETTLING_NEWS_INTERVAL_S: Final = 2.5
#: A surplus neighbour is parted with this often at most.
DROP_INTERVAL_S: Final = 3.0
#: Share of the exchanges that are about a node that was not heard of for long; of the others, share of those that go to
#: near neighbours; the rest look further. And how many may be unanswered.
DOUBTFUL_EXCHANGES: Final = 0.5
NEAR_EXCHANGES: Final = 0.75
MAX_QUESTIONS: Final = 4
#: One of the nearest that is no neighbour is asked this often at most: it takes a handshake. And after an answer that
#: names one of our nearest that was not known exchanges are so many times as far from each other as they were.
ASK_NEAREST_INTERVAL_S: Final = 4.0
AFTER_NEAREST: Final = 0.25
#: If neighbours were given up lately others have come since: exchanges are no more than so far apart.
DEATHS_EXCHANGE_INTERVAL_S: Final = 2.0
#: A settled node's place moves so many times a minute. (Of 400 nodes that came within 90 s half moved six times in
#: the third minute, three times in the fourth, once in the fifth; from the seventh on nine in ten once at most.)
USUAL_MOVES: Final = 1
#: One who was met just now may be about to become a neighbour: it is not probed yet, nor told that it is none.
UNEXPECTED_S: Final = 2.0


@dataclass(slots=True)
class Stranger:
    """Somebody with whom a session is open and who is no neighbour.

    ``is_probed``: one of us has probed the other. Who only asks or answers questions is mostly from our surroundings,
    and there are many of those while places settle: they are not probed, or we would know of nothing else.
    """

    boot_id: int
    since: float
    is_probed: bool = False


@dataclass(slots=True)
class Lost:
    """A former neighbour, given up for dead."""

    record: NodeRecord
    since: float


class Neighbourhood(Speech):
    """The tables of whom this node knows, and what is said to change them."""

    def __init__(
        self, record: NodeRecord, config: OverlayConfig, rng: random.Random, now: float, sessions: Sessions
    ) -> None:
        super().__init__(record, config, rng, now, sessions)
        sessions.is_kept = self._is_kept
        self._links = Links(config, rng)
        self._pointers = Pointers()
        self._refresh_at = now + REFRESH_INTERVAL_S
        #: By whom was asked: the pointers of which the question wanted to hear.
        self._asked_about: dict[NodeId, list[NodeId]] = {}
        self._prober = Prober(rng)
        #: By when they were last heard of, the longest ago first.
        self._strangers: dict[NodeId, Stranger] = {}
        self._samples: deque[tuple[NodeRecord, bytes]] = deque(maxlen=MAX_SAMPLES)
        self._lost: dict[NodeId, Lost] = {}
        #: Others that could not be reached; moves of our own place.
        self._unreached, self._moved = Lately(), Lately()
        self._exchange_at, self._exchange_interval_s = now, config.min_exchange_interval_s
        self._asks_nearest, self._ask_nearest_at = False, now
        self._drop_at = now
        self._tick_s = min(1.0, config.probe_interval_s)

    def _is_kept(self, node_id: NodeId) -> bool:
        return node_id in self._links

    def _is_peer(self, node_id: NodeId) -> bool:
        return node_id in self._links or node_id in self._strangers

    def _told(self, node_id: NodeId, now: float) -> None:
        link = self._links.table.get(node_id)
        if link is not None:
            link.told_at = now

    # --- what is periodic

    def _beat(self, now: float) -> None:
        """Be heard by those to whom nothing was said for a while, or to whom there is news."""
        self._tell_news(now)
        silence_s = self._config.beat_interval_s - self._tick_s / 2
        for node_id, link in self._links.table.items():
            if now - link.told_at >= silence_s:
                self._send(node_id, None)

    def _tell_news(self, now: float) -> None:
        """Let the neighbours hear what has changed about ourselves."""
        incarnation, interval_s = self._own.incarnation, self._news_interval_s
        for node_id, link in self._links.table.items():
            if link.told_incarnation != incarnation and now - link.news_at >= interval_s:
                link.told_incarnation, link.news_at = incarnation, now
                self._send(node_id, Beat(self._packed))

    def _exchange(self, now: float) -> None:
        """Ask whom they know that is worth knowing at our place: by turns a neighbour, and one of our nearest."""
        config = self._config
        most_s = config.max_exchange_interval_s
        if self._deaths_lately(now):
            most_s = min(most_s, max(DEATHS_EXCHANGE_INTERVAL_S, config.min_exchange_interval_s))
        self._exchange_interval_s = min(most_s, 2.0 * self._exchange_interval_s)
        self._exchange_at = now + self._exchange_interval_s * (0.75 + 0.5 * self._rng.random())
        self._asks_nearest = not self._asks_nearest
        if self._asks_nearest and now >= self._ask_nearest_at:
            nearest = self._pointers.nearest_to_ask(self._is_peer)
            if nearest is not None:
                self._ask_nearest_at = now + ASK_NEAREST_INTERVAL_S
                self._say(nearest.record, self._question(nearest.record.node_id), now)
                return
        partner = self._exchange_partner(now)
        if partner is not None:
            self._send(partner, self._question(partner))

    def _exchange_partner(self, now: float) -> NodeId | None:
        """By turns the neighbour most alike to whom we want to hear of most, and any neighbour, mostly an alike one."""
        doubtful = self._pointers.most_doubtful(now)
        if doubtful is not None and self._rng.random() < DOUBTFUL_EXCHANGES:
            alike = self._links.most_alike(doubtful.record.coordinate, 1, lambda node_id: False)
            return alike[0].record.node_id if alike else None
        groups: tuple[list[NodeId], list[NodeId]] = ([], [])
        for node_id, link in self._links.table.items():
            groups[link.far].append(node_id)
        first = self._rng.random() >= NEAR_EXCHANGES
        chosen = groups[first] or groups[not first]
        return self._rng.choice(chosen) if chosen else None

    def _question(self, partner: NodeId) -> Exchange:
        """Neighbours tell their news themselves; of those that we only know of we want to hear. With few neighbours
        any others are welcome."""
        pointers = {} if self._links.are_few else self._pointers.table
        while len(self._asked_about) >= MAX_QUESTIONS:
            del self._asked_about[next(iter(self._asked_about))]
        self._asked_about[partner] = list(pointers)
        known = b"".join([packed_id_end(known.packed) for known in [*pointers.values(), *self._links.table.values()]])
        versions = bytes(pointer.record.incarnation % 256 for pointer in pointers.values())
        return Exchange(self._packed, known, versions)

    def _exchange_soon(self, at: float) -> None:
        """There is something new to be learned: ask often again, and first ``at``."""
        self._exchange_interval_s = self._config.min_exchange_interval_s
        self._exchange_at = min(self._exchange_at, at)

    def _exchange_again(self, now: float) -> None:
        """There is more to be learned here than elsewhere."""
        interval_s = max(self._config.min_exchange_interval_s, AFTER_NEAREST * self._exchange_interval_s)
        self._exchange_interval_s = interval_s
        self._exchange_at = min(self._exchange_at, now + interval_s)

    def _deaths_lately(self, now: float) -> int:
        """How many neighbours were given up lately: MAX_LOST at most, as no more are remembered."""
        return sum(is_lately(lost.since, now) for lost in self._lost.values())

    def _dead_met_lately(self, now: float) -> int:
        """They, and how many others could not be reached: who has come lately has lost no neighbour yet."""
        return self._deaths_lately(now) + self._unreached.times(now)

    def _keep_s(self, now: float) -> float:
        """For how long what was heard of others is believed: what happens around us happens to them."""
        return keep_s(self._dead_met_lately(now) + max(0, self._moved.times(now) - USUAL_MOVES))

    def _is_odd(self, node_id: NodeId) -> bool:
        """It cannot be where it says: nothing that it says of others is believed, and it is named to nobody. While
        neighbours are few nobody is turned away: who knows few may be wrong about its own place."""
        return not self._links.are_few and self._prober.contradicts(node_id, self._own.coordinate)

    def _drop_surplus(self, now: float) -> None:
        """Part with a neighbour that is at odds with what is measured, or that is not needed; with a random one only
        if another can take its place."""
        self._drop_at = now + DROP_INTERVAL_S
        odd = next((node_id for node_id in self._links.table if self._is_odd(node_id)), None)
        if odd is not None:
            self._unlink(odd, now)
            return
        surplus = self._links.to_drop(now)
        if surplus is not None and (self._samples or not self._links.table[surplus].far):
            self._unlink(surplus, now)

    def _refresh_pointers(self, now: float) -> None:
        self._refresh_at = now + REFRESH_INTERVAL_S
        self._pointers.refresh(self._own.coordinate, self._links.table.values(), now, self._keep_s(now))
        for pointer in list(self._pointers.table.values()):
            if not pointer.covered:  # it may have a place for us by now
                self._ask_to_link(pointer.record, pointer.packed, now)

    def _mix(self, now: float) -> None:
        """Look for random neighbours among those that probing brought; with few, for any among those that are known."""
        if self._samples:
            self._ask_for_far_link(*self._samples[-1], now)
        if self._links.are_few and self._pointers.table:
            pointer = self._rng.choice(list(self._pointers.table.values()))
            self._ask_to_link(pointer.record, pointer.packed, now)

    # --- hearing of nodes

    def _take_sample(self, packed: bytes, now: float) -> None:
        record = unpack(packed, self._config.dimensions)
        if record.node_id != self._own.node_id and record.node_id not in self._lost:
            # A random node is asked as one first: a full one may have a place for such only.
            if not self._ask_for_far_link(record, packed, now):
                self._consider(record, packed, now)
            self._samples.append((record, packed))

    def _consider(self, record: NodeRecord, packed: bytes, now: float, age_s: float = 0.0) -> None:
        """We heard of a node, which was alive ``age_s`` ago: bring up to date what we know of it, or ask it to be our
        neighbour, or remember it at least, unless that was too long ago."""
        link = self._links.table.get(record.node_id)
        if link is not None:
            if record.boot_id == link.record.boot_id and record.supersedes(link.record):
                self._links.update(link, record, packed, self._own.coordinate)
        elif record.node_id != self._own.node_id and record.node_id not in self._lost:
            if age_s > self._keep_s(now):
                return
            self._point_to(record, packed, now - age_s)
            if self._ask_to_link(record, packed, now):
                self._exchange_interval_s = self._config.min_exchange_interval_s

    def _consider_packed(self, packed: bytes, now: float, age_s: float = 0.0) -> None:
        """As :meth:`_consider`; most of what is heard is known already, and not even read."""
        node_id = packed_node_id(packed)
        known = self._links.table.get(node_id) or self._pointers.table.get(node_id)
        version = packed_version(packed)
        if known is None or version > known.record.version:
            self._consider(unpack(packed, self._config.dimensions), packed, now, age_s)
        elif version == known.record.version:
            self._pointers.hear(node_id, now - age_s)

    def _ask_to_link(self, record: NodeRecord, packed: bytes, now: float) -> bool:
        """Ask a node to be our neighbour, if we want it."""
        is_asked = self._links.propose(record, packed, self._own.coordinate, now)
        if is_asked:
            self._request_link(record, far=False, now=now)
        return is_asked

    def _request_link(self, record: NodeRecord, *, far: bool, now: float) -> None:
        self._links.candidates[record.node_id].told_incarnation = self._own.incarnation
        self._bound_hearsay()
        self._say(record, LinkRequest(self._packed, far), now)

    def _point_to(self, record: NodeRecord, packed: bytes, alive_at: float) -> None:
        if record.node_id in self._links or record.node_id in self._lost:
            return
        self._pointers.consider(record, packed, alive_at, self._own.coordinate, self._links.table.values())
        self._bound_hearsay()

    def _bound_hearsay(self) -> None:
        """Pointers have the places that all others leave; most candidates are pointers, too."""
        room = MAX_REMEMBERED - MAX_SAMPLES - len(self._links) - len(self._strangers) - len(self._lost)
        pointers = self._pointers
        while pointers.table and self._hearsay() > room:
            pointers.shrink(len(pointers.table) - 1)

    def _hearsay(self) -> int:
        """Of how many we only know."""
        table = self._pointers.table
        return len(table) + sum([node_id not in table for node_id in self._links.candidates])

    def _refused(self, record: NodeRecord, packed: bytes, now: float) -> None:
        self._links.refused(record, packed, now)
        self._point_to(record, packed, now)

    def _known_to_others(self, but: NodeId = "") -> list[tuple[NodeRecord, Packed, float]]:
        """Whom we name to others, except ``but``, and how many seconds ago each was surely alive."""
        now = self._now
        named = [
            (link.record, link.packed, now - link.heard_at)
            for node_id, link in self._links.table.items()
            if not link.suspect and node_id != but and not self._is_odd(node_id)
        ]
        named += [
            (pointer.record, pointer.packed, now - pointer.alive_at)
            for node_id, pointer in self._pointers.table.items()
            if node_id != but
        ]
        return named

    def _answer_exchange(self, sender: NodeId, exchange: Exchange, now: float) -> None:
        place = self._introduced(sender, exchange.record)
        self._consider(place, exchange.record, now)
        known = id_ends(exchange.known)
        asked = dict(zip(known, exchange.versions, strict=False))
        heard: dict[bytes, int] = {}
        news: list[tuple[Packed, float]] = []
        others: list[tuple[NodeRecord, Packed, float]] = []
        heard_of: list[NodeRecord] = []
        there, not_wanted = place.coordinate, set(known)
        for record, packed, age_s in [(self._own, self._packed, 0.0), *self._known_to_others(but=sender)]:
            end = packed_id_end(packed)
            if end not in not_wanted:
                others.append((record, packed, age_s))
                continue
            heard_of.append(record)
            if end in asked:
                if is_newer(record.incarnation, asked[end]):
                    news.append((packed, age_s))
                elif record.incarnation % 256 == asked[end]:
                    heard[end] = age_byte(age_s)
        # In a small overlay all are to become known; in a large one there is always somebody else.
        are_few = len(known) <= self._config.few_links
        count = EXCHANGE_RECORDS if are_few else NEW_RECORDS
        best = worth_knowing(others, there, count, heard_of, welcome=are_few)
        wanted = [(packed, age_s) for _, packed, age_s in best]
        alive = bytes(heard.get(end, NOT_KNOWN) for end, _ in zip(known, exchange.versions, strict=False))
        room = MAX_BODY_BYTES - REPLY_FRAME_BYTES - len(alive)
        records, ages = fitting([*news, *wanted][:EXCHANGE_RECORDS], room)
        self._send(sender, ExchangeReply(records, ages, alive))

    def _take_exchange_reply(self, sender: NodeId, reply: ExchangeReply, now: float) -> None:
        if self._is_odd(sender):
            return
        known = {*self._pointers.table, *self._links.table}
        for packed, age_s in with_ages(reply.records[:EXCHANGE_RECORDS], reply.ages):
            self._consider_packed(packed, now, age_s)
        if not self._links.are_few and not known.issuperset(self._pointers.nearest()):
            self._exchange_again(now)
        for node_id, heard_s in zip(self._asked_about.pop(sender, ()), reply.alive, strict=False):
            if heard_s != NOT_KNOWN:
                self._pointers.hear(node_id, now - heard_s)

    # --- agreeing on links

    def _ask_for_far_link(self, record: NodeRecord, packed: bytes, now: float) -> bool:
        is_asked = self._links.propose_far(record, packed, now)
        if is_asked:
            self._request_link(record, far=True, now=now)
        return is_asked

    def _answer_link_request(self, sender: NodeId, request: LinkRequest, now: float) -> None:
        record = self._introduced(sender, request.record)
        self._is_back(sender, now)
        accepted, instead = self._links.accepts(record, request.far, self._own.coordinate)
        accepted = accepted and (sender in self._links or not self._is_odd(sender))
        if accepted:
            if instead is not None:
                self._unlink(instead, now)
            self._add_link(record, request.record, request.far, now, self._own.incarnation)
        else:
            self._point_to(record, request.record, now)
        self._send(sender, LinkReply(accepted, self._packed))

    def _take_link_reply(self, sender: NodeId, reply: LinkReply, now: float) -> None:
        record = self._introduced(sender, reply.record)
        candidate = self._links.candidates.get(sender)
        was_lost = self._is_back(sender, now)
        if not reply.accepted:
            if sender in self._links:
                self._drop_link(sender)
            self._refused(record, reply.record, now)
        elif sender in self._links or (
            (candidate is not None or was_lost) and len(self._links) < self._config.max_links
        ):
            # Who was lost is asked again without being a candidate, as a far one.
            far, told = (candidate.far, candidate.told_incarnation) if candidate is not None else (True, -1)
            self._add_link(record, reply.record, far, now, told)
        else:
            self._send(sender, Unlink(True))

    def _take_unlink(self, sender: NodeId, surplus: bool, now: float) -> None:
        link = self._links.table.get(sender)
        if link is None:
            self._part_with_stranger(sender)
        elif surplus:
            self._drop_link(sender)
            self._refused(link.record, link.packed, now)
        elif now - link.since > UNEXPECTED_S:
            self._forget_link(sender, now)

    def _take_heartbeat(self, sender: NodeId, now: float) -> None:
        """One who thinks that we are neighbours, and is mistaken, is told."""
        stranger = self._strangers.get(sender)
        if stranger is not None and now - stranger.since > UNEXPECTED_S:
            self._send(sender, Unlink(False))

    # --- beginning and ending them

    def _add_link(self, record: NodeRecord, packed: bytes, far: bool, now: float, told_incarnation: int) -> None:
        """``told_incarnation``: of our own, that the other end knows. If there is news since it is told at once."""
        node_id = record.node_id
        is_new = node_id not in self._links
        link = self._links.add(record, packed, far, self._own.coordinate, now)
        self._strangers.pop(node_id, None)
        self._pointers.remove(node_id)
        if is_new:
            is_news = told_incarnation != self._own.incarnation
            link.told_incarnation, link.news_at = told_incarnation, -math.inf if is_news else now
            self._bound_hearsay()
            if len(self._links) <= self._config.near_links:
                self._prober.probe_soon(node_id)
            self._events.append(MemberJoined(record))
            self._linked(node_id, now)

    def _unlink(self, node_id: NodeId, now: float) -> None:
        """Part with a neighbour that is there and well."""
        link = self._drop_link(node_id)
        if link is not None:
            self._send(node_id, Unlink(True))
            self._refused(link.record, link.packed, now)

    def _forget_link(self, node_id: NodeId, now: float) -> None:
        """The other end does not hold us for a neighbour: ask it again, if we want it."""
        link = self._drop_link(node_id)
        if link is not None:
            self._consider(link.record, link.packed, now)

    def _drop_link(self, node_id: NodeId) -> Link | None:
        """It becomes a stranger again."""
        link = self._remove_link(node_id)
        if link is not None:
            if self._sessions.is_open(node_id):
                self._meet(node_id, link.record.boot_id)
            else:
                self._prober.forget(node_id)
        return link

    def _remove_link(self, node_id: NodeId) -> Link | None:
        """Every link ends here."""
        return self._links.remove(node_id)

    # --- strangers

    def _meet(self, node_id: NodeId, boot_id: int) -> None:
        """Remember somebody with whom a session is open; the one not heard of for longest makes room, unless its answer
        is still waited for: one that concerns no search if there is any, and that is not probed."""
        self._strangers[node_id] = Stranger(boot_id, self._now)
        while len(self._strangers) > self._config.max_strangers:
            others = [other for other in self._strangers if other != node_id and not self._is_awaited(other)]
            searching = self._concerned_by_searches()
            oldest = min(others, key=lambda one: (one in searching, self._strangers[one].is_probed), default=node_id)
            self._send(oldest, Unlink(True), CLOSE)
            self._part_with_stranger(oldest, close=False)
        self._bound_hearsay()

    def _part_with_stranger(self, node_id: NodeId, *, close: bool = True) -> None:
        if self._strangers.pop(node_id, None) is not None:
            self._prober.forget(node_id)
        if close and node_id not in self._links:
            self._close(node_id)

    # --- left to the layers above

    @property
    def _news_interval_s(self) -> float:
        """How often a neighbour may hear news about ourselves."""
        raise NotImplementedError

    def _is_awaited(self, node_id: NodeId) -> bool:
        """Whether that node was asked something that it is to answer yet."""
        raise NotImplementedError

    def _concerned_by_searches(self) -> set[NodeId]:
        """Who is to tell us of a change, or to be told of ours, as a search is under way."""
        raise NotImplementedError

    def _is_back(self, node_id: NodeId, now: float) -> bool:
        """That node speaks to us, neighbour or not. Returns whether it was lost."""
        raise NotImplementedError

    def _linked(self, node_id: NodeId, now: float) -> None:
        """That node is a neighbour from now on."""
        raise NotImplementedError
