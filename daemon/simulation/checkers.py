"""What must hold, judged from outside: by the truth that only the simulator knows, never by a node's own opinion."""

from __future__ import annotations

import math
from collections import Counter, deque

from daemon.simulation.population import Population
from overlay.config import MAX_REMEMBERED
from overlay.events import Event, MemberFailed, MemberJoined, MemberRecovered

#: News of a node may be under way this long after its death; whoever is taken for alive later has been revived.
REVIVED_AFTER_S = 30.0
#: A removal this soon after a cut or a standstill of one of the two is no mistake.
EXCUSED_FOR_S = 20.0
MAX_REPORTED = 20


class Checkers:
    """Collects violations, one line each; the first :data:`MAX_REPORTED` are kept and all are counted."""

    def __init__(self, population: Population) -> None:
        self._population = population
        self.false_removals = 0
        #: The first of them, one line each.
        self.removals: list[str] = []
        self.peers_max = 0
        self.violations: list[str] = []
        self.counts: Counter[str] = Counter()
        #: Ends of the time in which somebody cannot be blamed: by endpoint.
        self._excused_until: dict[int, float] = {}
        #: In a safety run with partitions a false removal is a violation; in a measurement it is a figure.
        self.removals_are_violations = True
        self._to_validate: deque[int] = deque()
        self._one_sided: set[tuple[int, int]] | None = None
        population.watchers.append(self)

    def excuse(self, endpoint: int, until: float) -> None:
        """The endpoint is cut off or stands still until then: it may be removed, and may remove others."""
        until += EXCUSED_FOR_S
        self._excused_until[endpoint] = max(until, self._excused_until.get(endpoint, -math.inf))

    def _is_excused(self, endpoint: int, at: float) -> bool:
        return at < self._excused_until.get(endpoint, -math.inf)

    # --- as it happens

    def happened(self, endpoint: int, event: Event, at: float) -> None:
        if isinstance(event, MemberFailed):
            self._removed(endpoint, event, at)
        elif isinstance(event, MemberJoined | MemberRecovered):
            self._welcomed(endpoint, event, at)

    def _removed(self, endpoint: int, event: MemberFailed, at: float) -> None:
        population = self._population
        subject = population.endpoint_of(event.record.node_id)
        if subject is None or not population.is_live(subject):
            return
        if population.boot_ids[subject] != event.record.boot_id:
            return  # its predecessor, who is dead indeed
        if self._is_excused(endpoint, at) or self._is_excused(subject, at):
            return
        self.false_removals += 1
        what = f"n{endpoint} removed n{subject}, which lives"
        if len(self.removals) < MAX_REPORTED:
            self.removals.append(f"at {at:.3f} s: {what}")
        if self.removals_are_violations:
            self.broke(what, at, kind="false removal")

    def _welcomed(self, endpoint: int, event: MemberJoined | MemberRecovered, at: float) -> None:
        population = self._population
        subject = population.endpoint_of(event.record.node_id)
        if subject is None:
            return
        restarted = population.boot_ids[subject] != event.record.boot_id
        gone_at = population.started_at[subject] if restarted else population.gone_at[subject]
        if at > gone_at + REVIVED_AFTER_S:
            self.broke(f"n{endpoint} revived n{subject}, dead for {at - gone_at:.1f} s", at, kind="revival")

    def broke(self, what: str, at: float, kind: str = "broken") -> None:
        self.counts[kind] += 1
        if len(self.violations) < MAX_REPORTED:
            self.violations.append(f"at {at:.3f} s: {what}")

    # --- now and then

    def inspect(self, at: float, at_most: int | None = None) -> None:
        """Look at the nodes, the next ``at_most`` of them in turn."""
        if not self._to_validate:
            self._to_validate.extend(self._population.live())
        for _ in range(len(self._to_validate) if at_most is None else at_most):
            if not self._to_validate:
                return
            endpoint = self._to_validate.popleft()
            if self._population.is_live(endpoint):
                self._inspect(endpoint, at)

    def count_peers(self, at: float) -> None:
        """How many others each node remembers: everybody, as it is a promise about everybody."""
        for endpoint in self._population.live():
            peers = self._population.node(endpoint).remembered()
            if peers > self.peers_max:
                self.peers_max = peers
                if peers > MAX_REMEMBERED:
                    self.broke(f"n{endpoint} remembers {peers} others, {MAX_REMEMBERED} are allowed", at, "peers")

    def _inspect(self, endpoint: int, at: float) -> None:
        node = self._population.node(endpoint)
        coordinate = node.coordinate
        if not all(map(math.isfinite, (*coordinate.vector_ms, coordinate.height_ms, coordinate.error))):
            self.broke(f"n{endpoint} is at {coordinate}", at)
        if endpoint not in self._population.liars:
            try:
                node.validate()
            except AssertionError as error:
                self.broke(f"n{endpoint} is inconsistent: {error}", at)

    # --- after the faults

    def unsettled(self) -> list[str]:
        """What keeps the overlay from having converged; empty if nothing does.

        Every node has joined, nobody holds the dead or takes the living for lost, links are symmetric, and connect all
        live nodes. Some link is being made or given up at any time: a one-sided one counts if it was at all looks since
        the last call.
        """
        population = self._population
        live = population.live()
        problems = [f"n{endpoint} has not joined" for endpoint in live if endpoint in population.unjoined]
        views = {endpoint: self._view(endpoint) for endpoint in live}
        stale = self.look_at_links()
        self._one_sided = None
        for endpoint, view in views.items():
            for other, boot_id in view.items():
                if not population.is_live(other) or population.boot_ids[other] != boot_id:
                    problems.append(f"n{endpoint} holds n{other}, which is dead")
        for endpoint, other in sorted(stale):
            problems.append(f"n{endpoint} holds n{other} for a neighbour, but not the other way round")
        for endpoint in live:
            for record in population.node(endpoint).lost():
                lost = population.endpoint_of(record.node_id)
                if lost is not None and population.is_live(lost):
                    problems.append(f"n{endpoint} takes n{lost} for lost, which lives")
        unreached = self.unreached()
        if unreached:
            problems.append(f"{len(unreached)} of {len(live)} nodes are cut off, n{min(unreached)} for one")
        return problems

    def unreached(self) -> set[int]:
        """Live nodes that the first of them cannot reach over links that both ends hold."""
        views = {endpoint: self._view(endpoint) for endpoint in self._population.live()}
        return views.keys() - _reached(views)

    def look_at_links(self) -> set[tuple[int, int]]:
        """Links that only one end holds, now and at every look since the last :meth:`unsettled`."""
        views = {endpoint: self._view(endpoint) for endpoint in self._population.live()}
        now = {(a, b) for a, view in views.items() for b in view if b in views and a not in views[b]}
        self._one_sided = now if self._one_sided is None else self._one_sided & now
        return self._one_sided

    def _view(self, endpoint: int) -> dict[int, int]:
        """Endpoint and boot of each member that the node there knows."""
        population = self._population
        view = {}
        for record in population.node(endpoint).members():
            other = population.endpoint_of(record.node_id)
            if other is not None:
                view[other] = record.boot_id
        return view


def _reached(views: dict[int, dict[int, int]]) -> set[int]:
    """All that can be reached from the first one over links that both ends hold."""
    if not views:
        return set()
    start = next(iter(views))
    reached, todo = {start}, [start]
    while todo:
        here = todo.pop()
        for other in views[here]:
            if other in views and other not in reached and here in views[other]:
                reached.add(other)
                todo.append(other)
    return reached
