"""Network usage of the demo's query, as it is and as it would be elsewhere, over the round trips really emulated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from daemon.demo.scenario import Scenario
from sbon.network_usage import Link, network_usage


@dataclass(slots=True)
class TrueNetwork:
    """The emulated round trips in ms between sites by name; :meth:`slow_down` is the change of the demo."""

    scenario: Scenario
    slow: dict[frozenset[str], float] = field(default_factory=dict)

    def rtt_ms(self, a: str, b: str) -> float:
        if a == b:
            return 0.0
        original = self.scenario.rtt_ms[self.scenario.site(a).index][self.scenario.site(b).index]
        return self.slow.get(frozenset((a, b)), original)

    def slow_down(self, a: str, b: str, rtt_ms: float) -> None:
        self.slow[frozenset((a, b))] = rtt_ms


@dataclass(slots=True)
class MeanRates:
    """Mean of the measured rate of each link over the samples in which anything flowed."""

    _sums: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    _counts: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))

    def add(self, links: Iterable[Link]) -> None:
        for link in links:
            if link.rate_bytes_per_s > 0:
                self._sums[link.source, link.target] += link.rate_bytes_per_s
                self._counts[link.source, link.target] += 1

    def links(self) -> tuple[Link, ...]:
        return tuple(
            Link(source, target, total / self._counts[source, target]) for (source, target), total in self._sums.items()
        )


def usage_bytes(
    links: Iterable[Link], placement: Mapping[str, str], network: TrueNetwork, moved: Mapping[str, str] | None = None
) -> float:
    """Bytes in transit of ``placement`` (fragment id -> site), with the fragments in ``moved`` elsewhere."""
    where = {**placement, **(moved or {})}
    return network_usage(
        (link for link in links if link.source in where and link.target in where), where, network.rtt_ms
    )
