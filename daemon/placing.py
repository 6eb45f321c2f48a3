"""The placement strategies' questions, answered by this daemon: by searches, by other nodes, and by measuring."""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from daemon.config import PlacementConfig
from daemon.peering.host_messages import MeasuredPaths, RoomLeft, TellMeasuredPaths, TellRoomLeft
from daemon.peering.peers import Peers
from overlay.identity import NodeId
from overlay.records import NodeRecord
from sbon.placement import strategies
from sbon.placement.capacity import Demand, Resources
from sbon.placement.choice import Placement
from sbon.placement.knowledge import Knowledge, learning
from sbon.placement.problem import CostView, PlacementProblem
from sbon.placement.questions import (
    FindHosts,
    Known,
    MeasurePaths,
    Question,
    SurveyHosts,
    Task,
    TellKnownPaths,
    TellRoom,
    TellRoutes,
    placement_without_choices,
)

T = TypeVar("T")

#: An end that does not say by then what it has measured is done without.
TELL_TIMEOUT_S = 3.0
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Placed:
    """Where the operators are to be, and all that was learned on the way."""

    placement: Placement
    view: CostView


class Placing:
    """Places plans by the configured strategy."""

    def __init__(self, peers: Peers, settings: PlacementConfig) -> None:
        self._peers = peers
        self._settings = settings
        self._rng = random.Random()
        peers.handle(TellMeasuredPaths, self._tell)

    def demand(self, problem: PlacementProblem) -> dict[str, Demand]:
        """What each operator that is to be placed is reckoned to take, beside bandwidth."""
        settings = self._settings
        each = Demand(settings.operator_cpu_cores, settings.operator_memory_mb * MIB)
        return dict.fromkeys(problem.unpinned, each)

    async def place(self, problem: PlacementProblem, room: Mapping[str, Resources] | None = None) -> Placed:
        """Hosts for all operators; ``room``: what some nodes are known to have left.

        Raises UnavailableError if no host takes them.
        """
        settings = self._settings
        if not problem.unpinned:
            view = self._peers.cost_view({}, settings.load_scale_ms, settings.load_scaling)
            return Placed(placement_without_choices(problem, {}, view), view)
        knowledge = Knowledge(self._peers.cost_view({}, settings.load_scale_ms, settings.load_scaling))
        task = Task(
            problem,
            knowledge.view,
            self._rng,
            settings.candidates,
            demand=self.demand(problem),
            room={} if room is None else room,
        )
        course = strategies.load(settings.strategy).place(task)
        return Placed(await self.answered(learning(course, knowledge)), knowledge.view)

    async def answered(self, course: Generator[Question, Any, T]) -> T:
        """What the course comes to, once all that it asks has been answered."""
        answer: Any = None
        while True:
            try:
                question = course.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            answer = await self._answer(question)

    async def _answer(self, question: Question) -> Any:
        peers = self._peers
        if isinstance(question, FindHosts):
            return await peers.search(question.objective, question.k)
        if isinstance(question, MeasurePaths):
            return await peers.measure(question.pairs, afresh=question.afresh)
        if isinstance(question, TellKnownPaths):
            answers = await peers.gather(TellMeasuredPaths(), MeasuredPaths, question.node_ids, TELL_TIMEOUT_S)
            told_of_itself = {
                node_id: answer for node_id, answer in answers.answers.items() if answer.record.node_id == node_id
            }
            for answer in told_of_itself.values():
                peers.meet(answer.record)
            return {node_id: Known(answer.record, answer.paths) for node_id, answer in told_of_itself.items()}
        if isinstance(question, TellRoom):
            told = await peers.gather(TellRoomLeft(), RoomLeft, question.node_ids, TELL_TIMEOUT_S)
            return {node_id: answer.room for node_id, answer in told.answers.items()}
        if isinstance(question, TellRoutes):
            return {}  # hosts know nothing of the routers between them
        if isinstance(question, SurveyHosts):
            return self._hosts()
        return await self._survey()

    def _hosts(self) -> list[NodeRecord]:
        return [self._peers.overlay.record, *self._peers.overlay.members()]

    async def _survey(self) -> Any:
        """All hosts known here, with every path between them measured as far as can be: for small overlays."""
        import numpy as np

        from sbon.placement.optimum import Truth

        hosts = self._hosts()
        pairs = [(a.node_id, b.node_id) for i, a in enumerate(hosts) for b in hosts[:i]]
        settings, measured = self._settings, await self._peers.measure(pairs)
        view = self._peers.cost_view(measured, settings.load_scale_ms, settings.load_scaling)
        rtt_ms = np.zeros((len(hosts), len(hosts)))
        for i, a in enumerate(hosts):
            for j, b in enumerate(hosts[:i]):
                rtt_ms[i, j] = rtt_ms[j, i] = view.rtt_ms(a.node_id, b.node_id)
        return Truth.of(
            [host.node_id for host in hosts],
            rtt_ms,
            takes=np.array([host.accepts_operators for host in hosts]),
            load_ms=np.array([view.load_ms(host.node_id) for host in hosts]),
        )

    async def _tell(self, _message: TellMeasuredPaths, _sender: NodeId) -> MeasuredPaths:
        return MeasuredPaths(self._peers.overlay.record, self._peers.known_paths())
