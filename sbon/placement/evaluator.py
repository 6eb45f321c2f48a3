"""The optimizers' memory: how a host watches the operators that it runs, and a keeper those of a whole query, from one
look to the next.

:mod:`sbon.placement.local_optimizer` says what is worth a search and what is worth a move. Here is what lies between
the two, without a clock and without sockets: :meth:`Evaluator.evaluate` is a generator of questions, as placement
strategies are (:mod:`sbon.placement.questions`), so the daemon and the simulator run the same code.

- *Searching on.* A search measures few hosts. When nothing has changed, the next one, later and later, measures others:
  what the first missed is found in time, and an operator ends nearer to its best host than one placement brings it.
- *Confirming.* Of many noisy measurements the best one looks better than it is. So a host that promises a saving is
  only a rival at first. It is measured anew, several times; the move is made when the mean of these savings, less what
  their own spread makes uncertain, is still above the minimum migration threshold, and the rival is dropped when even
  the most that it may save is below (a sequential test: A. Wald, "Sequential Tests of Statistical Hypotheses", 1945).
  A network that merely trembles moves nothing, however often it is looked at.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import msgspec

from sbon.network_usage import Link, placement_cost
from sbon.objectives import Host
from sbon.placement import strategies
from sbon.placement.capacity import Demand
from sbon.placement.choice import Placement
from sbon.placement.knowledge import Knowledge, learning
from sbon.placement.local_optimizer import (
    Action,
    Decision,
    LocalPolicy,
    Observation,
    decide,
    local_problem,
    observe,
    reason_to_search,
)
from sbon.placement.problem import CostView, PlacementProblem
from sbon.placement.questions import MeasurePaths, Pair, Question, Task, TellKnownPaths

#: With every so many searches, hosts that were tried may be tried again: they may have become better, or were better
#: already, by less than what a look is off.
SEARCHES_REMEMBERED = 5
#: The pause between searches of an unchanged network grows up to so many times the first one.
LONGEST_PAUSES = 16.0
#: Between two measurements that are to tell the same.
CONFIRM_EVERY_S = 1.0
#: What is taken for the noise of looks at first counts as so many; after so many more the oldest are forgotten.
NOISE_LOOKS = 4
NOISE_REMEMBERED = 100
#: A rival that is still undecided after so many looks is not worth a move. (Fewer put off by hours what is worth one:
#: with 10 % jitter a saving of 1.5 % takes thirty.)
MAX_LOOKS = 40
#: So many of them count when it is found again.
LOOKS_REMEMBERED = 10
#: So many rivals are remembered, the latest: while nothing changes there are ever more.
RIVALS_REMEMBERED = 100


@dataclass(frozen=True, slots=True)
class Situation:
    """A group of operators, as its query's keeper tells: all links of the query and where all operators run.

    ``own_load``: load that the group itself is to its host; wherever it goes, that goes with it. ``demand``: what each
    of its operators takes of a host; none: every host has room.
    """

    links: Sequence[Link]
    placement: Mapping[str, str]
    group: tuple[str, ...]
    state_bytes: Mapping[str, int]
    remaining_lifetime_s: float
    since_last_move_s: float
    own_load: float = 0.0
    demand: Mapping[str, Demand] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Why hosts were looked at, and what came of it."""

    because: str
    decision: Decision


@dataclass(slots=True)
class _Rival:
    """A placement that promises to be better; ``savings`` are shares of the present cost, one for each look."""

    placement: Placement
    targets: tuple[Host, ...]
    savings: list[float]


@dataclass(slots=True)
class _Watch:
    """What is remembered about one group."""

    observed: Observation | None = None
    tried: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    searches: int = 0
    pause_s: float = 0.0
    search_at_s: float = -math.inf
    because: str = ""  # of that search
    rival: _Rival | None = None
    #: What was measured of rivals, by their hosts: one that is found again goes on from there.
    savings: dict[tuple[str, ...], list[float]] = field(default_factory=dict)

    def savings_of(self, hosts: tuple[str, ...]) -> list[float]:
        """What is remembered of a rival on ``hosts``, to be added to."""
        savings = self.savings.pop(hosts, [])[-LOOKS_REMEMBERED:]
        self.savings[hosts] = savings
        if len(self.savings) > RIVALS_REMEMBERED:
            del self.savings[next(iter(self.savings))]
        return savings


class Evaluator:
    """Evaluates groups of operators."""

    def __init__(self, policy: LocalPolicy, strategy: str, candidates: int, rng: Random) -> None:
        """``strategy`` is a name, loaded with the first search; a search measures ``candidates`` hosts at most."""
        self._policy = policy
        self._strategy = strategy
        self._candidates = candidates
        self._rng = rng
        self._watches: dict[tuple[str, ...], _Watch] = {}
        self._noise = Noise(policy.least_spread)

    def forget_all_but(self, here: Collection[str]) -> None:
        """Groups of which an operator is not ``here`` any more."""
        for group in [group for group in self._watches if not set(here).issuperset(group)]:
            del self._watches[group]

    @property
    def is_confirming(self) -> bool:
        """Whether a rival waits to be measured again, after :data:`CONFIRM_EVERY_S`."""
        return any(self.confirms(group) for group in self._watches)

    def confirms(self, group: tuple[str, ...]) -> bool:
        watch = self._watches.get(group)
        return watch is not None and watch.rival is not None

    def evaluate(
        self, situation: Situation, hosts: Iterable[Host], view: CostView, now_s: float
    ) -> Generator[Question, Any, Evaluation | None]:
        """Whether the group should move. None: there is nothing to be looked at now. ``hosts``: where it runs now."""
        problem = local_problem(situation.links, situation.placement, situation.group)
        look = _Look(problem, situation, Knowledge(_without_own(view, situation)), self._policy)
        watch = self._watches.setdefault(situation.group, _Watch())
        seen = observe(problem, look.here, look.knowledge.view, watch.observed)
        reason = reason_to_search(watch.observed, seen, self._policy)
        if reason is not None:
            fresh = _Watch(watch.observed, pause_s=self._policy.search_again_s)
            watch = self._watches[situation.group] = fresh
        elif watch.rival is not None:
            return (yield from self._confirm(look, watch, watch.rival, now_s))
        elif now_s < watch.search_at_s:
            return None
        else:
            reason = watch.because
        decision = yield from self._search(look, watch, {host.node_id: host for host in hosts})
        if _on_facts(decision):
            watch.observed = seen  # it stands until facts change
            self._rest(look, watch, decision, now_s)
        return Evaluation(reason, decision)

    def _rest(self, look: _Look, watch: _Watch, decision: Decision, now_s: float) -> None:
        """Search on after a pause or, if that is sooner, when the move may be repaid."""
        if decision.repaid_after_s is not None:
            # What remains of a query is reckoned to be as long as it has run, and so it grows.
            wait_s = max(decision.repaid_after_s - look.situation.remaining_lifetime_s, self._policy.rest_s)
            if wait_s < watch.pause_s:
                watch.search_at_s, watch.because = now_s + wait_s, "moving the state may be repaid by now"
                return
        watch.search_at_s = now_s + watch.pause_s * self._rng.uniform(0.8, 1.2)
        watch.because = f"nothing has changed for {watch.pause_s:.0f} s: other hosts may be better"
        watch.pause_s = min(2.0 * watch.pause_s, LONGEST_PAUSES * self._policy.search_again_s)

    def _search(self, look: _Look, watch: _Watch, hosts: Mapping[str, Host]) -> Generator[Question, Any, Decision]:
        problem, policy = look.problem, self._policy
        watch.searches += 1
        if watch.searches % SEARCHES_REMEMBERED == 0:
            watch.tried.clear()
        task = Task(
            problem,
            look.knowledge.view,
            self._rng,
            self._candidates,
            keep={operator: hosts[node_id] for operator, node_id in look.here.items()},
            tried=watch.tried,
            least_gain=policy.least_expected_saving,
            demand=look.situation.demand,
        )
        best = yield from learning(strategies.load(self._strategy).place(task), look.knowledge)
        decision = look.decide(best)
        # What saves enough is not done with: others get their turn if the best cannot hold what it promises, and
        # what is not repaid yet will be, as a query grows older.
        enough = decision.cost_now * (1.0 - policy.minimum_saving_ratio)
        for choice in best.choices:
            watch.tried[choice.operator].update(one.node_id for one in choice.candidates if one.measured_cost >= enough)
        if decision.action is Action.STAY or not policy.confirmations:
            return decision
        for operator in problem.unpinned:
            watch.tried[operator].add(best.hosts[operator])
        targets = {move.target: look.knowledge.hosts[move.target] for move in decision.moves}
        savings = watch.savings_of(tuple(best.hosts[operator] for operator in problem.unpinned))
        watch.rival = _Rival(best, tuple(targets.values()), savings)
        reason = f"a move may save {decision.saving / decision.cost_now:.0%} of the cost: that is being confirmed"
        return msgspec.structs.replace(decision, action=Action.STAY, moves=(), reason=reason)

    def _confirm(self, look: _Look, watch: _Watch, rival: _Rival, now_s: float) -> Generator[Question, Any, Evaluation]:
        """Measure both placements once more."""
        because = "a better placement is being confirmed"
        knowledge = look.knowledge
        knowledge.found(rival.targets)
        # They tell of themselves, too: others may have moved there meanwhile, and then they are busier.
        knowledge.told((yield TellKnownPaths(tuple(host.node_id for host in rival.targets))))
        # The present paths, too: what is known of them would be the same in every look, with the same error.
        pairs = look.paths_of(look.here, rival.placement.hosts)
        knowledge.measured((yield MeasurePaths(pairs, afresh=True)))
        cost_now, cost_then = look.cost(look.here), look.cost(rival.placement.hosts)
        if any(knowledge.view.measured(*pair) is None for pair in pairs) or cost_now <= 0.0:
            watch.rival = None
            return Evaluation(because, Decision(Action.STAY, "its paths cannot be measured now", cost_now, cost_then))
        rival.savings.append(1.0 - cost_then / cost_now)
        self._noise.learn(rival.savings)
        mean = sum(rival.savings) / len(rival.savings)
        confirmed = verdict(rival.savings, self._noise.spread, self._policy)
        if confirmed is None:
            reason = f"a move may save {mean:.0%} of the cost: that is being confirmed"
            return Evaluation(because, Decision(Action.STAY, reason, cost_now, cost_then))
        watch.rival = None
        if not confirmed:
            reason = f"measured again, a move saves {mean:.1%} of the cost: not enough"
            return Evaluation(because, Decision(Action.STAY, reason, cost_now, cost_then))
        decision = look.decide(msgspec.structs.replace(rival.placement, cost=cost_now * (1.0 - mean)))
        if decision.action is Action.STAY:  # not yet
            for operator in look.problem.unpinned:
                watch.tried[operator].discard(rival.placement.hosts[operator])
            self._rest(look, watch, decision, now_s)
        return Evaluation(because, decision)


@dataclass(frozen=True)
class _Look:
    """One group, looked at once."""

    problem: PlacementProblem
    situation: Situation
    knowledge: Knowledge
    policy: LocalPolicy

    @property
    def here(self) -> dict[str, str]:
        """Operator -> node id, of the group."""
        return {operator: self.situation.placement[operator] for operator in self.problem.unpinned}

    def cost(self, hosts: Mapping[str, str]) -> float:
        """Of the group on ``hosts``."""
        view, placement = self.knowledge.view, {**self.problem.pinned, **hosts}
        return placement_cost(self.problem.links, placement, self.problem.unpinned, view.rtt_ms, view.load_ms)

    def decide(self, best: Placement) -> Decision:
        return decide(
            self.problem,
            self.here,
            best,
            self.knowledge.view,
            state_bytes=self.situation.state_bytes,
            remaining_lifetime_s=self.situation.remaining_lifetime_s,
            since_last_move_s=self.situation.since_last_move_s,
            policy=self.policy,
        )

    def paths_of(self, *placements: Mapping[str, str]) -> tuple[Pair, ...]:
        """The paths of the group's links with it placed in these ways; who runs the operator measures."""
        pairs: dict[Pair, None] = {}
        for link in self.problem.links:
            a, b = (link.target, link.source) if link.source in self.problem.pinned else (link.source, link.target)
            for placed in placements:
                hosts = {**self.problem.pinned, **placed}
                if hosts[a] != hosts[b] and (hosts[b], hosts[a]) not in pairs:
                    pairs[hosts[a], hosts[b]] = None
        return tuple(pairs)


class Noise:
    """How much measured savings differ from look to look, whichever rival is looked at: of few looks at one, nothing
    sure could be said."""

    def __init__(self, least_spread: float) -> None:
        self._squares = NOISE_LOOKS * least_spread**2
        self._looks = float(NOISE_LOOKS)
        self._least_spread = least_spread

    def learn(self, savings: Sequence[float]) -> None:
        """The last of ``savings`` is new."""
        if len(savings) > 1:
            before = savings[:-1]
            mean = sum(before) / len(before)
            self._squares += (savings[-1] - mean) ** 2 * len(before) / len(savings)
            self._looks += 1.0
            if self._looks > NOISE_REMEMBERED:
                self._squares *= NOISE_REMEMBERED / self._looks
                self._looks = float(NOISE_REMEMBERED)

    @property
    def spread(self) -> float:
        """Standard deviation of one look."""
        return max(self._least_spread, math.sqrt(self._squares / self._looks))


def verdict(savings: Sequence[float], spread: float, policy: LocalPolicy) -> bool | None:
    """Whether the mean saving is surely enough (True), surely not (False), or not known yet (None).

    ``savings`` are shares of the present cost, independently measured; ``spread`` is the standard deviation of one.
    """
    count = len(savings)
    mean = sum(savings) / count
    margin = policy.surety * spread / math.sqrt(count)
    if count >= policy.confirmations and mean - margin >= policy.minimum_saving_ratio:
        return True
    if mean + margin < policy.minimum_saving_ratio or count >= MAX_LOOKS:
        return False
    return None


def _on_facts(decision: Decision) -> bool:
    return all(choice.candidates[0].measured for choice in decision.choices)


def _without_own(view: CostView, situation: Situation) -> CostView:
    """Load as the group would find it: its own is no reason to leave, for it would be the same elsewhere."""
    here = {situation.placement[operator] for operator in situation.group}

    def load_of(node_id: str) -> float:
        load = view.load_of(node_id)
        return max(0.0, load - situation.own_load) if node_id in here else load

    return replace(view, load_of=load_of)
