"""One search for all purposes: best first over the links of the overlay, with the objective as an argument.

The searching node asks the best hosts that it knows of for the best that *they* know of, neighbours and pointers, until
all of the best it knows have been asked or enough hosts were. A host that does not answer in time is stepped over: it
is asked once or twice more, others are meanwhile, and the search waits for it at the end only if it belongs to the
result.

Hosts are named in answers in turns by the objective and by its *guide* (:mod:`sbon.objectives`): those who know the
best need not be the best themselves. So at first the search *walks*: it asks whoever is better by the guide than all
that have answered, one at a time, since each answer tells whom to ask next. Then two in three questions go to the best
known, the third to the one, among the good ones, that is farthest from all that were asked. For where many hosts are,
the best known are neighbours of each other, and all of them know the same ones. As long as answers change the result,
each is waited for, as it tells whom to ask; with each that does not, one more is asked at a time, up to PARALLEL.

Where hosts die there is no time for that: what was heard grows old. PARALLEL are asked at a time, and of those that
would be the result now the one first that nobody has heard of for longest: it may be elsewhere. One that nobody has
heard of for a while is dead, more likely than not: it is left out.

Asking the best also makes sure that they live, and brings what they say about themselves now. When nobody else is left
to be asked, those of whom nobody has heard for a while are *checked*: asked once more, in a few rounds, as answers may
bring others to be asked, and what was fresh grows old meanwhile.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from overlay.identity import NodeId
from overlay.messages import Packed, SearchRequest
from overlay.naming import id_end, id_ends, is_newer
from overlay.packing import packed_id_end
from overlay.records import NodeRecord
from sbon.coordinate import Coordinate
from sbon.objectives import Objective

#: Hosts asked in all, and at most at the same time.
MAX_CONTACTS: Final = 20
PARALLEL: Final = 4
#: For each that turns out to be dead, and for each that the asker met dead lately, so many others are asked, up to so
#: many more in all. Where hosts die, others have come, and what is said of the rest is out of date, too.
PER_DEAD: Final = 2
MOST_MORE: Final = 20
#: Once so many were dead, a search does without those of whom nobody has heard for so long, unless they were asked.
#: (While a fifth of 800 nodes was replaced every minute, one seed, 22 % of those that were asked after a silence of 10
#: to 20 s had not answered by the end, 56 % up to 40 s, and 83 to 90 % beyond: some were late, not dead.) Who lives is
#: named by others that have heard of it.
MANY_DEAD: Final = 2
SILENT_S: Final = 20.0
#: A host is stepped over after as long as so many predicted round trips take (two are needed, one to shake hands), and
#: a bit, where both places are known that well; and after so long at the latest.
ROUND_TRIPS: Final = 3.0
LEAST_STEP_OVER_S: Final = 0.2
STEP_OVER_S: Final = 1.0
PREDICTS_BELOW: Final = 0.3
#: One that is late where many were dead, and of which nothing was heard for so long, is given up after so long already.
LONG_SILENT_S: Final = 10.0
DOUBTED_PATIENCE_S: Final = 1.0
#: The others are asked a third time, after this share of the patience with them. (Where one datagram in twenty is lost,
#: one host in a hundred has not heard or answered two questions.)
ASKED_AGAIN_AFTER: Final = 0.5
#: Those of so many of the best that were last heard of longer ago are checked at the end: so many at a time (a node has
#: sessions with a dozen strangers at most), in so many rounds, or in so many at most where hosts die.
CHECKED_BEST: Final = 16
FRESH_S: Final = 0.5
CHECKED: Final = 8
CHECKS: Final = 2
MOST_CHECKS: Final = 4
#: A search is over when so many of the best, or ``k`` if that is more, have been asked.
WIDTH: Final = 24
#: Hosts remembered while a search is under way: no fewer than so many contacts name.
MAX_FOUND: Final = 400
MAX_K: Final = 64
#: So many of them at most are named in a question, for news of them only.
MAX_KNOWN: Final = 64
#: Of the contacts so many at most are for walking; afterwards one follows so many of the best, elsewhere among so many
#: good ones. The best are asked themselves, as what others know of them may be out of date.
WALKED: Final = 12
BY_COST: Final = 2
GOOD: Final = 24


@dataclass(slots=True)
class _Found:
    record: NodeRecord
    cost: float
    guide_cost: float
    #: When it surely was alive, by the asker's clock.
    alive_at: float
    asked: bool = False


class Search:
    """One search under way. It decides whom to ask for what; it sends nothing."""

    def __init__(
        self,
        objective: Objective,
        k: int,
        patience_s: float,
        max_contacts: int = MAX_CONTACTS,
        here: Coordinate | None = None,
        most_known: int = MAX_KNOWN,
        *,
        deaths: int = 0,
        is_lookup: bool = False,
    ) -> None:
        """``here``: from where it is asked. A host that is silent for ``patience_s`` is taken for dead. ``most_known``:
        how many of those that it knows may be named in a question. ``deaths``: how many the asker met dead lately.
        ``is_lookup``: the asker looks for its own nearest, to get to know each other; the way to them is not
        counted, however large the overlay.

        Raises ValueError for a ``k`` that no search can answer.
        """
        if not 1 <= k <= MAX_K:
            raise ValueError(f"a search for {k} hosts: 1 to {MAX_K} are possible")
        self.contacts = 0
        self.is_lookup = is_lookup
        self.objective = objective
        self._guide = objective.guide()
        self._k = k
        self._patience_s = patience_s
        self._here = here if here is not None and here.error <= PREDICTS_BELOW else None
        self._max_contacts = max_contacts
        self._deaths = deaths
        self._most_known = min(most_known, MAX_KNOWN)
        self._found: dict[NodeId, _Found] = {}
        self._dead: set[NodeId] = set()
        #: Who was not heard of since then is taken for dead, unless it was asked.
        self._heard_from = -math.inf
        #: The least guide cost of those that have answered.
        self._reached = math.inf
        #: So many of the contacts were steps of the walk.
        self._walked = 0
        #: The result as it was after the latest answer, and how many in a row have not changed it.
        self._best_then: set[NodeId] = set()
        self._unchanged = 0
        self._has_answer = False
        #: In how many rounds the best were checked. A lookup needs no more than that they have heard of the asker.
        self._checks = MOST_CHECKS if is_lookup else 0
        #: When those are stepped over that are waited for, and when those are given up that were stepped over.
        self._waiting: dict[NodeId, float] = {}
        self._late: dict[NodeId, float] = {}
        #: Those stepped over just now: question or answer may have been lost, and they are asked again.
        self._repeat: list[NodeId] = []
        #: When those of the late are asked for the last time.
        self._ask_again: dict[NodeId, float] = {}

    def know(self, record: NodeRecord, alive_at: float = math.inf, *, asked: bool = False) -> None:
        """Take in a host that somebody, or this node itself (``asked``), knows of; it surely was alive at ``alive_at``,
        as it is by default."""
        node_id = record.node_id
        found = self._found.get(node_id)
        if found is not None:
            if record.supersedes(found.record):
                found.record = record
                found.cost, found.guide_cost = self.objective.cost(record), self._guide.cost(record)
            found.asked = found.asked or asked
            found.alive_at = max(found.alive_at, alive_at)
        elif node_id not in self._dead:
            cost, guide_cost = self.objective.cost(record), self._guide.cost(record)
            self._found[node_id] = _Found(record, cost, guide_cost, alive_at, asked)
            if len(self._found) > MAX_FOUND:
                self._drop_worst()

    def _drop_worst(self) -> None:
        worst = max(self._found, key=lambda known: (self._found[known].cost, known))
        if worst not in self._waiting and worst not in self._late:
            del self._found[worst]

    def was_asked(self, node_id: NodeId) -> bool:
        found = self._found.get(node_id)
        return found is not None and found.asked

    def waits_for(self, node_id: NodeId) -> bool:
        return node_id in self._waiting or node_id in self._late

    def answered(self, node_id: NodeId) -> bool:
        """An answer came; False if none was waited for."""
        waited = self._waiting.pop(node_id, None) is not None
        is_answer = self._late.pop(node_id, None) is not None or waited
        self._ask_again.pop(node_id, None)
        self._has_answer = self._has_answer or is_answer
        if is_answer and node_id in self._found:
            self._reached = min(self._reached, self._found[node_id].guide_cost)
        return is_answer

    def was_not_heard(self, node_id: NodeId) -> None:
        """It lives, but has not got what we asked."""
        if self.answered(node_id) and node_id in self._found:
            self._found[node_id].asked = False

    def failed(self, node_id: NodeId) -> None:
        """It cannot be reached. The walk has come as far all the same: where hosts die it has no questions to lose."""
        if self.answered(node_id):
            self._found.pop(node_id, None)
            self._dead.add(node_id)

    def expire(self, now: float) -> None:
        """Step over those whose answers are late, and give up those that were stepped over long ago."""
        for node_id in [node_id for node_id, deadline in self._waiting.items() if deadline <= now]:
            del self._waiting[node_id]
            self._repeat.append(node_id)
            if self._is_doubted(node_id, now):
                self._late[node_id] = now + min(self._patience_s, DOUBTED_PATIENCE_S)
            else:
                self._late[node_id] = now + self._patience_s
                self._ask_again[node_id] = now + ASKED_AGAIN_AFTER * self._patience_s
        for node_id in [node_id for node_id, at in self._ask_again.items() if at <= now]:
            del self._ask_again[node_id]
            self._repeat.append(node_id)
        for node_id in [node_id for node_id, deadline in self._late.items() if deadline <= now]:
            self.failed(node_id)
        if self._are_many_dead:
            self._heard_from = now - SILENT_S

    def _is_silent(self, found: _Found) -> bool:
        return found.alive_at < self._heard_from and not found.asked

    def _is_doubted(self, node_id: NodeId, now: float) -> bool:
        """Whether one that is late is dead, more likely than a datagram was lost; a lookup can do without it."""
        found = self._found.get(node_id)
        was_silent = found is not None and found.alive_at < now - LONG_SILENT_S
        return self.is_lookup or (self._are_many_dead and (was_silent or self._checks > 0))

    def to_ask(self, now: float) -> list[NodeRecord]:
        """The hosts to ask now. They count as contacts from here on, once each."""
        chosen = [self._found[node_id].record for node_id in self._repeat if node_id in self._late]
        self._repeat.clear()
        at_a_time = self._at_a_time()
        while self.contacts < self._allowed:
            ahead = self._ahead()
            if len(self._waiting) >= (at_a_time if ahead is None else 1):
                break
            best = ahead or self._chosen()
            if best is None:
                break
            self._walked += ahead is not None
            chosen.append(self._ask(best, now))
        if self.is_over and self._checks < (MOST_CHECKS if self._are_many_dead else CHECKS):
            self._checks += 1
            chosen += [self._ask(found, now) for found in self._outdated(now)[:CHECKED]]
        return chosen

    def _at_a_time(self) -> int:
        """How many to wait for at the same time, once the walk is over."""
        if self._is_in_haste:  # from then on for good
            return PARALLEL
        if self._has_answer:
            best = set(self._best())
            self._unchanged = self._unchanged + 1 if best == self._best_then else 0
            self._best_then, self._has_answer = best, False
        return min(PARALLEL, 1 + self._unchanged)

    @property
    def _is_in_haste(self) -> bool:
        """What was heard grows old, or not all of the best are needed: a lookup only has to bring its asker in."""
        return self.is_lookup or self._are_many_dead

    @property
    def _are_many_dead(self) -> bool:
        return self._deaths + len(self._dead) >= MANY_DEAD

    def _ask(self, found: _Found, now: float) -> NodeRecord:
        if not found.asked:
            found.asked = True
            self.contacts += 1
        self._waiting[found.record.node_id] = now + self._step_over_s(found.record)
        return found.record

    def _outdated(self, now: float) -> list[_Found]:
        """Those of the best that were last heard of a while ago, the longest first: they may have died since, or moved.
        Where many were dead also those that were not asked, because enough others were."""
        heard_of = [found for found in self._found.values() if not self._is_silent(found) and found.cost < math.inf]
        best = heapq.nsmallest(CHECKED_BEST, heard_of, key=lambda found: (found.cost, found.record.node_id))
        outdated = [
            found
            for found in best
            if found.alive_at < now - FRESH_S
            and (found.asked or self._are_many_dead)
            and found.record.node_id not in self._late
        ]
        return sorted(outdated, key=lambda found: found.alive_at)

    @property
    def _allowed(self) -> int:
        # One that is late may just be slow; where others were dead it counts as dead.
        dead = self._deaths + (len(self._dead) + len(self._late) if self._dead else 0)
        walked = self._walked if self.is_lookup else 0
        return self._max_contacts + walked + min(PER_DEAD * dead, MOST_MORE)

    def _chosen(self) -> _Found | None:
        """Whom to ask now that the walk is over."""
        another = None
        if self.contacts % (1 + BY_COST) == BY_COST:
            another = self._next(True) if self.is_lookup else self._elsewhere()
        if another is None and self._is_in_haste:
            another = self._least_heard_of()
        return another or self._next(False) or self._next(True)

    def _ahead(self) -> _Found | None:
        """The next step of the walk: not asked yet, or waited for."""
        if self.contacts >= WALKED:
            return None
        left = [
            (found.guide_cost, node_id)
            for node_id, found in self._found.items()
            if found.guide_cost < self._reached
            and (node_id in self._waiting or (not found.asked and not self._is_silent(found)))
        ]
        return self._found[min(left)[1]] if left else None

    def _least_heard_of(self) -> _Found | None:
        """Of those that would be the result now, not asked yet, the one that nobody has heard of for longest."""
        best = ((found, node_id) for node_id in self._best() if not (found := self._found[node_id]).asked)
        return min(best, key=lambda one: (one[0].alive_at, one[0].cost, one[1]), default=(None, ""))[0]

    def _elsewhere(self) -> _Found | None:
        """Of the good ones that were not asked, the one that is farthest from those that were."""
        good = heapq.nsmallest(GOOD, ((found.cost, node_id, found) for node_id, found in self._found.items()))
        asked = [found.record.coordinate for found in self._found.values() if found.asked]
        others = [
            (min([found.record.coordinate.rtt_ms(there) for there in asked], default=math.inf), node_id, found)
            for cost, node_id, found in good
            if not found.asked and cost < math.inf and not self._is_silent(found)
        ]
        return max(others)[2] if others else None

    def known(self) -> tuple[bytes, bytes]:
        """Whom nobody need name any more, unless there is news of them: the ends of the ids of the best, and the last
        bytes of their incarnations."""
        half = self._most_known // 2
        heard_of = [found for found in self._found.values() if not self._is_silent(found)]
        best = sorted(heard_of, key=lambda found: found.cost)[:half]
        best += sorted(heard_of, key=lambda found: found.guide_cost)[:half]
        records = {found.record.node_id: found.record for found in best}
        return b"".join(map(id_end, records)), bytes(record.incarnation % 256 for record in records.values())

    def _step_over_s(self, record: NodeRecord) -> float:
        if self._here is None or record.coordinate.error > PREDICTS_BELOW:
            return STEP_OVER_S
        rtt_s = self._here.rtt_ms(record.coordinate) / 1000.0
        return min(STEP_OVER_S, LEAST_STEP_OVER_S + ROUND_TRIPS * rtt_s)

    def _next(self, guided: bool) -> _Found | None:
        """The best not asked yet, if it is among the best WIDTH: nothing better, we trust, is behind the others."""
        best_id, best_cost, best, is_any_fit = "", math.inf, None, False
        for node_id, found in self._found.items():
            cost = found.guide_cost if guided else found.cost
            if node_id in self._late or self._is_silent(found):
                continue
            if cost < math.inf:
                is_any_fit = True
            if not found.asked and (best is None or cost < best_cost or (cost == best_cost and node_id < best_id)):
                best_id, best_cost, best = node_id, cost, found
        # Where nobody known fits yet, any host may know of one that does.
        if best is None or (is_any_fit and best_cost == math.inf):
            return None
        better = 0
        for node_id, found in self._found.items():
            cost = found.guide_cost if guided else found.cost
            if cost < best_cost or (cost == best_cost and node_id < best_id):
                better += node_id not in self._late and not self._is_silent(found)
        return best if better < max(WIDTH, self._k) else None

    @property
    def is_over(self) -> bool:
        """Whether nobody is waited for, nobody is left to be asked, and nobody late belongs to the result."""
        if self._waiting:
            return False
        if self.contacts < self._allowed and (self._next(True) or self._next(False)):
            return False
        return not self._late or self._late.keys().isdisjoint(self._best())

    def next_timer(self) -> float:
        timers = (self._waiting, self._late, self._ask_again)
        return min(min(timer.values(), default=math.inf) for timer in timers)

    def result(self) -> tuple[NodeRecord, ...]:
        """At most ``k`` hosts by ascending cost; ties go by node id, the same everywhere."""
        return tuple(record for record, _ in self.best())

    def best(self) -> list[tuple[NodeRecord, float]]:
        """They, and when each surely was alive."""
        return [(self._found[node_id].record, self._found[node_id].alive_at) for node_id in self._best()]

    def _best(self) -> list[NodeId]:
        fit = (
            (found.cost, node_id)
            for node_id, found in self._found.items()
            if math.isfinite(found.cost) and not self._is_silent(found)
        )
        return [node_id for _, node_id in heapq.nsmallest(self._k, fit)]


def best_by_turns(
    objective: Objective, known: Iterable[tuple[NodeRecord, Packed, float]], request: SearchRequest
) -> Iterator[tuple[Packed, float]]:
    """What a host answers: of those that it knows (records, packed, and their ages) and the asker does not, the best by
    the cost and the best by its guide, in turns, as one of them the asker is after."""
    guide = objective.guide()
    asker_knows = dict(zip(id_ends(request.known), request.versions, strict=False))
    news = [
        (record, packed, age_s)
        for record, packed, age_s in known
        if is_newer(record.incarnation, asker_knows.get(packed_id_end(packed), record.incarnation - 1))
    ]
    by_cost = _ranked([objective.cost(record) for record, _, _ in news])
    by_guide = _ranked([guide.cost(record) for record, _, _ in news])
    order = dict.fromkeys(index for pair in zip(by_cost, by_guide, strict=True) for index in pair)
    return ((news[index][1], news[index][2]) for index in order)


def _ranked(costs: list[float]) -> list[int]:
    """Their indices, the least first; what is not a number goes last."""
    comparable = [math.inf if math.isnan(cost) else cost for cost in costs]
    return sorted(range(len(comparable)), key=comparable.__getitem__)
