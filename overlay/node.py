"""The overlay as one node sees it, sans-I/O (DESIGN: Sans-I/O, and time as an argument).

An :class:`Overlay` is handed datagrams and the time; it hands back datagrams to send, when to be woken, and events. Its
shell keeps to this order: ``receive`` / ``handle_timer`` / a verb, then ``datagrams_to_send``, ``events`` and
``next_timer``. ``now`` is in seconds on any clock that never goes back; all randomness comes from the generator handed
in.

No node knows everybody. This one knows its neighbours (:mod:`overlay.links`), some others whom it could name
(:mod:`overlay.pointers`), some strangers that it met by probing or that probed it, and a few that it lost; at most
MAX_REMEMBERED in all. Once a second it does what is periodic; the rest are answers. This class is what shells and
users see; :mod:`overlay.speech` tells what is beneath it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from typing import Final

import msgspec

from overlay.config import MAX_REMEMBERED, OverlayConfig
from overlay.events import Event, JoinFailed, Left, SearchFinished
from overlay.followers import Followers
from overlay.identity import NodeId
from overlay.latency_estimate import LatencyEstimate
from overlay.messages import Leave, SearchReply, SearchRequest
from overlay.naming import ID_END_BYTES, REPLY_FRAME_BYTES, fitting, with_ages
from overlay.packing import pack, unpack
from overlay.records import Address, NodeRecord, Status
from overlay.search import MAX_CONTACTS, Search, best_by_turns
from overlay.session_wire import MAX_BODY_BYTES
from overlay.sessions import Sessions
from overlay.speech import CLOSE
from overlay.talk import Talk
from overlay.wire import encode
from sbon.coordinate import Coordinate
from sbon.cost_space import MAX_LOAD
from sbon.errors import UnavailableError
from sbon.objectives import NearestTo, Objective

MAX_JOINS: Final = 16
MAX_SEARCHES: Final = 16
#: A node looks for its own nearest when it has found its place, or after FIRST_LOOKUP_S; again after LOOKUP_S; then
#: after twice as long, and so on, up to SETTLING_LOOKUP_S while its place settles; then after SETTLED_LONGER times as
#: long each time, up to MAX_LOOKUP_S. And each time that it advertises another place while that settles, LOOKUP_S after
#: the last time at the earliest. Where neighbours die others have come: every AFTER_DEATH_S then, from which it grows
#: again.
FIRST_LOOKUP_S: Final = 20.0
LOOKUP_S: Final = 5.0
SETTLING_LOOKUP_S: Final = 40.0
SETTLED_LONGER: Final = 4.0
MAX_LOOKUP_S: Final = 1920.0
AFTER_DEATH_S: Final = 30.0
#: So many hosts are asked then, beside those on the way to them, and so many of the nearest are taken in.
LOOKUP_CONTACTS: Final = 12


class Overlay(Talk):
    """One node's part in the overlay. See the module's docstring for how to drive it."""

    def __init__(
        self, record: NodeRecord, config: OverlayConfig, rng: random.Random, now: float, sessions: Sessions
    ) -> None:
        """``record`` describes this node. Its coordinate is where the node was before a restart, which is tried, not
        trusted; one with an error of 1 says nothing (as :func:`sbon.coordinate.origin`).

        Raises ValueError if the record or the configuration cannot be used.
        """
        config.check()
        super().__init__(record, config, rng, now, sessions)
        self._searches: dict[int, Search] = {}
        self._followers = Followers()
        self._next_search_id = rng.getrandbits(31)
        self._looked_up_at = now
        self._lookup_at, self._lookup_interval_s = now + FIRST_LOOKUP_S, LOOKUP_S

    # --- reading

    @property
    def record(self) -> NodeRecord:
        """This node as it is advertised."""
        return self._own

    @property
    def coordinate(self) -> Coordinate:
        """The raw coordinate, which moves with every probe; ``record.coordinate`` is the advertised one."""
        return self._estimator.coordinate

    @property
    def settled_coordinate(self) -> Coordinate | None:
        """The place as it is advertised, once it is settled: worth to be tried after a restart."""
        return None if self._estimator.is_settling else self._own.coordinate

    @property
    def has_left(self) -> bool:
        return self._has_left

    def members(self) -> list[NodeRecord]:
        """The neighbours, by name; ``status`` tells who is suspected. In a small overlay that is everybody."""
        return sorted((link.shown for link in self._links.table.values()), key=lambda r: (r.name, r.node_id))

    def lost(self) -> list[NodeRecord]:
        """Former neighbours that were given up for dead and are still tried."""
        return [msgspec.structs.replace(lost.record, status=Status.DEAD) for lost in self._lost.values()]

    def known(self, node_id: NodeId) -> NodeRecord | None:
        """The record of this node or of a neighbour; None for anybody else."""
        if node_id == self._own.node_id:
            return self._own
        link = self._links.table.get(node_id)
        return None if link is None else link.shown

    def find(self, name_or_id: str) -> NodeRecord | None:
        """The neighbour, or this node, of that id or else of that name."""
        everyone = [self._own, *self.members()]
        for record in everyone:
            if record.node_id == name_or_id:
                return record
        return next((record for record in everyone if record.name == name_or_id), None)

    def measured_rtt_ms(self, node_id: NodeId) -> float | None:
        """The filtered round trip from here to ``node_id``; None if it is not measured now, 0 to ourselves."""
        return 0.0 if node_id == self._own.node_id else self._prober.measured_rtt_ms(node_id)

    def measured_paths(self) -> list[tuple[NodeId, Coordinate, float]]:
        """Every path from here that is measured now: its other end, where that is, and the filtered round trip."""
        return self._prober.measured()

    def latency(self, a_id: NodeId, b_id: NodeId) -> LatencyEstimate:
        """What is known here about the path between two known nodes. Raises UnavailableError for an unknown id."""
        a, b = self._coordinate_of(a_id), self._coordinate_of(b_id)
        if a_id == b_id:
            return LatencyEstimate(0.0, 0.0, 0, 0.0)
        error = max(a.error, b.error)
        own_id = self._own.node_id
        if own_id not in (a_id, b_id):
            return LatencyEstimate(a.rtt_ms(b), None, 0, error)
        other = b_id if a_id == own_id else a_id
        return LatencyEstimate(a.rtt_ms(b), self._prober.measured_rtt_ms(other), self._prober.samples(other), error)

    def _coordinate_of(self, node_id: NodeId) -> Coordinate:
        if node_id == self._own.node_id:
            return self.coordinate
        record = self.known(node_id)
        if record is None:
            raise UnavailableError(f"no node {node_id} is known here: see `sbon nodes`")
        return record.coordinate

    def remembered(self) -> int:
        """Of how many others anything is kept here, searches under way left out."""
        return len(
            set(self._sessions.peers())
            | self._links.table.keys()
            | self._links.candidates.keys()
            | self._strangers.keys()
            | self._pointers.table.keys()
            | self._lost.keys()
            | set(self._prober.peers())
            | {record.node_id for record, _ in self._samples}
        )

    def validate(self) -> None:
        """Assert what must always hold; for tests and simulations."""
        self._links.validate()
        self._pointers.validate()
        assert not self._pointers.table.keys() & (self._links.table.keys() | self._lost.keys())
        self._prober.validate()
        self._sessions.validate()
        assert self.remembered() <= MAX_REMEMBERED
        assert len(self._joins) <= MAX_JOINS
        assert len(self._searches) <= MAX_SEARCHES
        assert self._checks.table.keys() <= self._links.table.keys()
        assert not self._strangers.keys() & self._links.table.keys()
        assert set(self._prober.peers()) <= self._strangers.keys() | self._links.table.keys()
        self._own.check(self._config.dimensions)

    # --- verbs

    def join(self, address: Address, now: float) -> None:
        """Ask the node at ``address`` to take us in. Answered by a Joined or JoinFailed event with that address."""
        self._at(now)
        if address == self._own.address:
            self._events.append(JoinFailed(address, "this is the node's own address: name another member"))
            return
        if self._has_left:
            self._has_left = False
            self._change_own()
            self._lookup_at, self._lookup_interval_s = now + LOOKUP_S, LOOKUP_S
        if len(self._joins) >= MAX_JOINS and address not in self._joins:
            self._events.append(JoinFailed(address, "too many joins at once: wait for the others"))
        else:
            self._ask_to_join(address, now)

    def leave(self, now: float) -> None:
        """Say goodbye to everybody and forget them. Until the next join this node neither probes nor answers."""
        self._at(now)
        if self._has_left:
            return
        self._has_left = True
        for node_id in [*self._links.table, *self._strangers]:
            self._send(node_id, Leave(), CLOSE)
        self._forget_everybody()
        self._searches.clear()
        self._events.append(Left())

    def expel(self, node_id: NodeId, now: float) -> None:
        """Have nothing to do with that node any more: it was thrown out. Sessions refuse it from now on."""
        self._at(now)
        self._take_leave(node_id)
        self._close(node_id)

    def renew_sessions(self, now: float) -> None:
        """Show everybody the new certificate of this node."""
        self._at(now)
        self._sessions.renew(now)

    def set_load(self, load: float, now: float) -> None:
        """The host's load average per core, as measured. Advertised when it has changed enough."""
        if not load >= 0.0:
            raise ValueError(f"a load of {load}")
        self._at(now)
        load = min(load, MAX_LOAD)
        if abs(load - self._own.load) >= self._config.advertise_load:
            self._change_own(load=load)
            self._tell_news(now)

    def probe_soon(self, node_id: NodeId, now: float) -> None:
        """Probe a peer at the next chance, out of turn. Unknown ids are ignored: it may just have gone."""
        if node_id in self._links or node_id in self._strangers:
            self._prober.probe_soon(node_id)

    def search(
        self,
        objective: Objective,
        k: int,
        now: float,
        max_contacts: int = MAX_CONTACTS,
        known: Iterable[NodeRecord] = (),
        *,
        is_lookup: bool = False,
    ) -> int:
        """Look for the ``k`` hosts of least objective, this one among them. Ends with a SearchFinished of the id
        that is returned. ``known``: hosts that the caller knows to be near the goal, the ends of its streams, say.
        At most ``max_contacts`` hosts are asked, others for each that is dead and for each that was met dead lately,
        MOST_MORE at most, and, where many are dead, those of the best that were not.
        ``is_lookup``: this node looks for its own nearest; it and those that it asks get to know each other, and there
        is no event.

        Raises ValueError for a ``k`` that no search can answer and an objective that does not fit a datagram,
        UnavailableError if too many run.
        """
        self._at(now)
        if len(self._searches) >= MAX_SEARCHES:
            raise UnavailableError("too many searches at once: try again")
        alone = SearchRequest(self._next_search_id, objective, record=self._packed, is_new=True)
        room = MAX_BODY_BYTES - REPLY_FRAME_BYTES - len(encode(alone))
        search = Search(
            objective,
            k,
            self._config.search_patience_s,
            max_contacts,
            self._own.coordinate,
            max(0, room) // (ID_END_BYTES + 1),
            deaths=0 if is_lookup else self._dead_met_lately(now),
            is_lookup=is_lookup,
        )
        search.know(self._own, asked=True)
        for record, _, age_s in self._known_to_others():
            search.know(record, now - age_s)
        for record in [*(sample for sample, _ in self._samples), *known]:
            if record.node_id != self._own.node_id:
                search.know(record, now)
        self._next_search_id += 1
        self._searches[self._next_search_id] = search
        self._go_on_searching(self._next_search_id, now)
        return self._next_search_id

    # --- searching

    def _look_up_own_place(self, now: float) -> None:
        """Find our nearest, let them hear of us, and hear whom they know: the neighbours' exchanges get stuck where
        none of them knows anybody nearer. A node that is inserted into a navigable graph does no more (Y. Malkov,
        D. Yashunin, "HNSW", IEEE TPAMI 42, 2020, algorithm 1); but its place moves at first, and others come after
        it."""
        self._looked_up_at = now
        self._lookup_at = now + self._lookup_interval_s * (0.75 + 0.5 * self._rng.random())
        if not self._estimator.is_settling:
            self._lookup_interval_s = min(MAX_LOOKUP_S, SETTLED_LONGER * self._lookup_interval_s)
        elif self._lookup_interval_s < SETTLING_LOOKUP_S:
            self._lookup_interval_s *= 2.0
        if len(self._searches) < MAX_SEARCHES:
            place = NearestTo(self._own.coordinate, self._own.node_id)
            self.search(place, LOOKUP_CONTACTS, now, LOOKUP_CONTACTS, is_lookup=True)

    def _place_changed(self, now: float) -> None:
        self._lookup_at = min(self._lookup_at, max(now, self._looked_up_at + LOOKUP_S))

    def _place_found(self, now: float) -> None:
        super()._place_found(now)
        self._lookup_at = now

    def _give_up(self, node_id: NodeId, now: float) -> None:
        super()._give_up(node_id, now)
        self._lookup_interval_s = min(self._lookup_interval_s, AFTER_DEATH_S)
        self._lookup_at = min(self._lookup_at, max(now, self._looked_up_at + AFTER_DEATH_S))

    def _go_on_searching(self, search_id: int, now: float) -> None:
        search = self._searches[search_id]
        search.expire(now)
        introduction = self._packed if search.is_lookup else b""
        is_new = search.is_lookup and self._estimator.is_settling
        if asked := search.to_ask(now):
            request = SearchRequest(search_id, search.objective, *search.known(), introduction, is_new)
            for record in asked:
                self._say(record, request, now)
        if search.is_over:
            del self._searches[search_id]
            if search.is_lookup:
                found = [(record, pack(record), now - alive_at) for record, alive_at in search.best()]
                for record, packed, age_s in found:
                    self._consider(record, packed, now, age_s)
                if not self._links.are_few:
                    self._tell_surroundings((packed, age_s) for _, packed, age_s in found)
            else:
                self._events.append(SearchFinished(search_id, search.result(), search.contacts))

    def _take_search_reply(self, sender: NodeId, reply: SearchReply, now: float) -> None:
        search = self._searches.get(reply.search_id)
        if search is None:
            return
        answerer = self._introduced(sender, reply.record)
        named = [
            (unpack(packed, self._config.dimensions), now - age_s)
            for packed, age_s in with_ages(reply.records, reply.ages)
        ]
        if not search.answered(sender):
            if search.was_asked(sender):  # it has answered, and is elsewhere since
                search.know(answerer, now, asked=True)
            return
        if search.is_lookup:
            self._consider(answerer, reply.record, now)
        search.know(answerer, now, asked=True)
        for record, alive_at in named:
            # What we found dead, or know better, is not taken from others.
            if record.node_id not in self._lost:
                search.know(record, alive_at, asked=record.node_id == self._own.node_id)
        self._go_on_searching(reply.search_id, now)

    def _answer_search(self, sender: NodeId, request: SearchRequest, now: float) -> None:
        if request.record:
            record = self._introduced(sender, request.record)
            if request.is_new:
                self._hear_of_newcomer(record, request.record, now)
            else:
                self._consider(record, request.record, now)
        objective = request.objective
        objective.check(self._config.dimensions)
        best = best_by_turns(objective, self._known_to_others(but=sender), request)
        records, ages = fitting(best, MAX_BODY_BYTES - REPLY_FRAME_BYTES - len(self._packed))
        self._send(sender, SearchReply(request.search_id, self._packed, records, ages))
        if not request.record:
            self._followers.add(sender, request.search_id, now)

    def _close(self, node_id: NodeId) -> None:
        super()._close(node_id)
        self._followers.forget(node_id)

    def _change_own(self, **changes: object) -> None:
        """Those that are searching, and have asked this node, are told at once."""
        super()._change_own(**changes)
        for asker, search_id in self._followers.to_tell(self._now):
            if self._sessions.is_open(asker):
                self._send(asker, SearchReply(search_id, self._packed, ()))

    def _is_awaited(self, node_id: NodeId) -> bool:
        return any(search.waits_for(node_id) for search in self._searches.values())

    def _concerned_by_searches(self) -> set[NodeId]:
        found = {
            record.node_id for search in self._searches.values() if not search.is_lookup for record in search.result()
        }
        return found.union(asker for asker, _ in self._followers.to_tell(self._now))

    def _take_unlink(self, sender: NodeId, surplus: bool, now: float) -> None:
        """The session ends with it, perhaps before a request of ours has come to the other side."""
        super()._take_unlink(sender, surplus, now)
        if not self._sessions.is_open(sender):
            for search_id, search in list(self._searches.items()):
                search.was_not_heard(sender)
                self._go_on_searching(search_id, now)

    def _cannot_reach(self, node_id: NodeId, now: float) -> None:
        super()._cannot_reach(node_id, now)
        for search_id, search in list(self._searches.items()):
            search.failed(node_id)
            self._go_on_searching(search_id, now)

    # --- time

    def next_timer(self) -> float | None:
        """When :meth:`handle_timer` wants to be called next; None if never."""
        timer = self._timer()
        for search in self._searches.values():
            timer = min(timer, search.next_timer())
        self._woken_by = max(self._now, timer)
        return None if timer == math.inf else self._woken_by

    def handle_timer(self, now: float) -> None:
        """Do what is due. Too early a call does no harm."""
        self._at(now)
        self._do_what_is_due(now)
        if now >= self._lookup_at and not self._has_left:
            self._look_up_own_place(now)
        for search_id in list(self._searches):
            self._go_on_searching(search_id, now)

    def events(self) -> list[Event]:
        """What happened since the last call, oldest first."""
        if not self._events:
            return []
        happened = list(self._events)
        self._events.clear()
        return happened
