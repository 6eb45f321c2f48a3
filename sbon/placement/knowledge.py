"""What a strategy has learned so far: hosts, where they are, and what paths between them cost."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import Any, TypeVar

from sbon.coordinate import Coordinate
from sbon.objectives import Host
from sbon.placement.capacity import Resources
from sbon.placement.problem import CostView
from sbon.placement.questions import (
    FindHosts,
    Known,
    KnownPath,
    MeasurePaths,
    Pair,
    Question,
    SurveyHosts,
    TellKnownPaths,
    TellRoom,
)

T = TypeVar("T")


class Knowledge:
    """Grows with each answer. :attr:`view` always shows all of it."""

    def __init__(self, before: CostView) -> None:
        self.hosts: dict[str, Host] = {}
        #: Node id -> paths it had measured anyway.
        self.known_paths: dict[str, tuple[KnownPath, ...]] = {}
        #: Node id -> what it has left, of those that were asked.
        self.room: dict[str, Resources] = {}
        self._measured: dict[Pair, float] = {}
        #: What nodes told of paths: the view has none of it, for some of it is old.
        self._told: dict[Pair, float] = {}
        self._before = before
        self.view = CostView(
            self._coordinate_of, self._measured_rtt_ms, self._load_of, before.load_scale_ms, before.load_scaling
        )

    def learned(self, question: Question, answer: Any) -> None:
        """Take in whatever was answered."""
        if isinstance(question, FindHosts | SurveyHosts):
            self.found(answer)
        elif isinstance(question, MeasurePaths):
            self.measured(answer)
        elif isinstance(question, TellKnownPaths):
            self.told(answer)
        elif isinstance(question, TellRoom):
            self.room.update(answer)

    def found(self, hosts: Iterable[Host]) -> None:
        for host in hosts:
            self.hosts[host.node_id] = host

    def measured(self, rtt_ms: Mapping[Pair, float]) -> None:
        self._measured.update(rtt_ms)

    def told(self, answers: Mapping[str, Known]) -> None:
        for node_id, known in answers.items():
            self.found([known.host])
            self.known_paths[node_id] = known.paths
            self._told.update({(node_id, path.node_id): path.rtt_ms for path in known.paths})

    def has_told(self, a: str, b: str) -> bool:
        return (a, b) in self._told or (b, a) in self._told

    def measured_between(self, rows: Mapping[str, int], columns: Mapping[str, int]) -> Iterable[tuple[int, int, float]]:
        """(row, column, ms) of every path between two of these nodes that was told of or measured, the latter last."""
        for (a, b), rtt_ms in (*self._told.items(), *self._measured.items()):
            for one, other in ((a, b), (b, a)):
                if one in rows and other in columns:
                    yield rows[one], columns[other], rtt_ms

    def _coordinate_of(self, node_id: str) -> Coordinate:
        host = self.hosts.get(node_id)
        return self._before.coordinate_of(node_id) if host is None else host.coordinate

    def _load_of(self, node_id: str) -> float:
        host = self.hosts.get(node_id)
        return self._before.load_of(node_id) if host is None else host.load

    def _measured_rtt_ms(self, a: str, b: str) -> float | None:
        rtt_ms = self._measured.get((a, b))
        return self._before.measured_rtt_ms(a, b) if rtt_ms is None else rtt_ms


def learning(course: Generator[Question, Any, T], knowledge: Knowledge) -> Generator[Question, Any, T]:
    """The same course; whatever it is answered is known afterwards."""
    answer: Any = None
    while True:
        try:
            question = course.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        answer = yield question
        knowledge.learned(question, answer)
