"""Pings and pongs: what they tell about paths, and what follows for this node's own place (DESIGN: Cost space).

Once in an interval one peer is probed. A pong may name a random far neighbour of the answerer: so probing walks the
overlay at random, and brings fresh nodes to probe and to link with.
"""

from __future__ import annotations

import math
import random
from typing import Final

import msgspec

from overlay.config import MAX_SAMPLES, OverlayConfig
from overlay.events import PathChanged
from overlay.identity import NodeId
from overlay.messages import Beat, Message, Ping, Pong
from overlay.neighbourhood import NEWS_INTERVAL_S, SETTLING_NEWS_INTERVAL_S, UNEXPECTED_S
from overlay.records import NodeRecord, Status
from overlay.sessions import Sessions
from overlay.telling import Telling
from sbon.coordinate import MAX_ERROR, Coordinate
from sbon.coordinate_estimator import CoordinateEstimator
from sbon.update_filter import UpdateFilter

#: An error estimate is advertised anew when it changed by this much.
ADVERTISE_ERROR: Final = 0.1
#: Whose peers' samples are off by more than this, in the median, meets fresh ones more often. (At rest that is half of
#: 1,000 nodes of PlanetLab-490: with a fresh one in each probe handshakes were the largest part of the traffic.)
UNSURE_ERROR: Final = 0.05
#: A settled node looks this often whether it has moved: neighbours are not told more often anyway.
MOVED_INTERVAL_S: Final = NEWS_INTERVAL_S / 2
#: A peer's pings tell where it is this often at most, in intervals of probes: it probes one node in each.
HEARD_EVERY: Final = 0.5


class Measuring(Telling):
    """Probes, and the coordinate that is estimated from them."""

    def __init__(
        self, record: NodeRecord, config: OverlayConfig, rng: random.Random, now: float, sessions: Sessions
    ) -> None:
        last = record.coordinate
        hint = None if last.error >= MAX_ERROR else last
        self._estimator = CoordinateEstimator(config.dimensions, use_height=config.use_height, hint=hint)
        self._update_filter = UpdateFilter(config.advertise_ratio, config.advertise_distance_ms)
        own = msgspec.structs.replace(record, coordinate=self._estimator.coordinate, status=Status.ALIVE)
        super().__init__(own, config, rng, now, sessions)
        self._probe_at = self._fresh_at = self._moved_at = now

    # --- asking

    def _probe(self, now: float) -> None:
        if now >= self._fresh_at and self._samples:
            self._fresh_at = now + self._fresh_interval_s
            record = self._samples.popleft()[0]
            if not self._sessions.is_open(record.node_id) and record.node_id not in self._links.candidates:
                self._say(record, Ping(0), now, record.coordinate)
                return
        candidates = self._links.candidates
        chosen = self._prober.choose(
            (node_id for node_id, link in self._links.table.items() if not link.suspect),
            (
                node_id
                for node_id, stranger in self._strangers.items()
                if stranger.is_probed and now - stranger.since > UNEXPECTED_S and node_id not in candidates
            ),
        )
        if chosen is not None:
            self._ping(chosen, is_probe=True)

    @property
    def _fresh_interval_s(self) -> float:
        """How often a probe goes to a fresh node: each one of a new node; and more often if peers do not agree on where
        this one is, as by chance a third of them may be liars, and go on to be."""
        if self._estimator.is_settling or self._links.are_few:
            return 0.0
        is_unsure = self._estimator.coordinate.error > UNSURE_ERROR
        return self._config.unsure_fresh_peer_interval_s if is_unsure else self._config.fresh_peer_interval_s

    def _ping(self, node_id: NodeId, *, is_probe: bool) -> None:
        link = self._links.table.get(node_id)
        extra = link.record.coordinate if is_probe and link is not None else is_probe
        self._send(node_id, Ping(0, wants_sample=len(self._samples) < MAX_SAMPLES), extra)

    def _answer_ping(self, sender: NodeId, ping: Ping, now: float) -> None:
        far = self._links.random_far() if ping.wants_sample else None
        is_named = far is not None and not far.suspect and far.record.node_id != sender
        sample = far.packed if far is not None and is_named and not self._is_odd(far.record.node_id) else b""
        place = self._estimator.coordinate.to_bytes()
        self._send(sender, Pong(ping.nonce, 0, place, sender in self._links, sample), now)
        self._note_probed(sender)
        if ping.place:
            self._take_place(sender, self._read(ping.place), now)

    def _note_probed(self, node_id: NodeId) -> None:
        if node_id in self._strangers:
            self._strangers[node_id].is_probed = True

    def _finish(self, node_id: NodeId, body: Message, extra: object, now: float) -> Message | None:
        """``extra``: whether a ping is a probe, or where the node that is probed is said to be; and when the ping that
        a pong answers was received."""
        if isinstance(body, Ping):
            said = extra if isinstance(extra, Coordinate) else None
            is_probe = (extra is True or said is not None) and self._is_peer(node_id)
            if is_probe:
                self._note_probed(node_id)
            nonce = self._prober.sent(node_id, now, is_probe=is_probe, said=said)
            place = self._estimator.coordinate.to_bytes() if self._estimator.is_settling else b""
            return Ping(nonce, body.wants_sample, place)
        if isinstance(body, Pong) and isinstance(extra, float):
            held_us = int(max(0.0, now - extra) * 1e6)
            return Pong(body.nonce, held_us, body.place, body.linked, body.sample)
        return body

    @property
    def _news_interval_s(self) -> float:
        return SETTLING_NEWS_INTERVAL_S if self._estimator.is_settling else NEWS_INTERVAL_S

    # --- learning

    def _take_pong(self, sender: NodeId, pong: Pong, now: float) -> None:
        if not pong.linked and sender in self._links and now - self._links.table[sender].since > UNEXPECTED_S:
            self._forget_link(sender, now)
        place = self._read(pong.place)
        if not self._prober.awaits(pong.nonce):
            return
        # Names are taken from neighbours, once there are enough: they are as many as agreed to be, while a chain of
        # liars that name each other would never end.
        if pong.sample and (sender in self._links or self._links.are_few) and not self._is_odd(sender):
            self._take_sample(pong.sample, now)
        path = self._prober.answered(pong.nonce, sender, pong.held_us / 1000.0, now)
        if path is None or path.filter.value is None:
            return
        if self._prober.is_at(path, place):
            self._update_filter.compare(path.filter.value, place, self._estimator.coordinate)
            self._estimator.update(path.filter.value, place, self._rng)
            self._advertise_if_moved(now)
        else:
            self.counters["dropped.jumped"] += 1
        config = self._config
        changed = self._prober.has_changed(path, config.path_change_ms, config.path_change_ratio)
        link = self._links.table.get(sender)
        if changed is not None and link is not None:
            self._events.append(PathChanged(link.record, *changed))

    def _take_beat(self, sender: NodeId, beat: Beat, now: float) -> None:
        """A neighbour has news about itself."""
        if sender not in self._links:
            self._take_heartbeat(sender, now)
            return
        record = self._introduced(sender, beat.record)
        self._consider(record, beat.record, now)

    def _take_place(self, sender: NodeId, place: Coordinate, now: float) -> None:
        """A new peer that asks us says where it is: what its path measured tells more about our own place now."""
        if not self._estimator.is_settling:
            return
        rtt_ms = self._prober.heard_rtt_ms(sender, now, HEARD_EVERY * self._config.probe_interval_s)
        if rtt_ms is not None:
            self._estimator.hear(rtt_ms, place, self._rng)
            self._advertise_if_moved(now)

    def _read(self, packed: bytes) -> Coordinate:
        place = Coordinate.from_bytes(packed, self._config.dimensions)
        place.check(self._config.dimensions)
        return place

    def _advertise_if_moved(self, now: float) -> None:
        """The advertised coordinate stays until we have really moved (DESIGN: Cost space)."""
        estimator, news, advertised = self._estimator, self._update_filter, self._own.coordinate
        was_lost = not news.has_found
        place = news.take(estimator.coordinate, estimator.updates)
        if was_lost and news.has_found:
            self._place_found(now)
        if now < self._moved_at:
            return
        self._moved_at = now if estimator.is_settling else now + MOVED_INTERVAL_S
        if abs(place.error - advertised.error) >= ADVERTISE_ERROR or news.is_news(
            place, ((link.record.coordinate, link.away_ms) for link in self._links.table.values())
        ):
            self._change_own(coordinate=place)
            self._moved.happened(now)
            self._links.moved(self._own.coordinate)
            self._tell_news(now)
            if estimator.is_settling and news.has_found:
                self._place_changed(now)
            # What nobody can have heard of is no better known for being newer.
            self._moved_at = now + NEWS_INTERVAL_S if news.has_found else now

    def _place_changed(self, now: float) -> None:
        """This node's place settles yet, and is another one now."""

    def _place_found(self, now: float) -> None:
        """This node is new, and knows from now on where it is: neighbours hear of it at once."""
        for link in self._links.table.values():
            link.news_at = -math.inf
