"""The streams that run: the outputs of operators and of sinks, found by what they compute, alive while somebody reads.

A shared operator belongs to no query; it lives while a lease on it lives (DESIGN: Queries, fragments, ports).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from sbon.placement.optimum import Truth
from sbon.planning.problem import Feed, Join, JoinQuery, RunningStream, Tree, Use, submasks
from sbon.planning.signature import Signature

#: Readers by stream, results by query.
Snapshot = tuple[dict[RunningStream, int], dict[str, RunningStream]]


class Running:
    """What has been deployed. Mutated by :meth:`deploy` and :meth:`withdraw` alone."""

    def __init__(self) -> None:
        self._by_body: dict[str, list[RunningStream]] = defaultdict(list)
        #: How many links read a stream; a query's sink counts as one reader of its result.
        self._readers: dict[RunningStream, int] = {}
        self._results: dict[str, RunningStream] = {}

    @property
    def streams(self) -> Iterator[RunningStream]:
        return iter(self._readers)

    @property
    def queries(self) -> tuple[str, ...]:
        return tuple(self._results)

    def usable(self, query: JoinQuery) -> list[Use]:
        """Running streams that the query can read for some set of its streams, or as its whole result."""
        found: list[Use] = []
        for mask in submasks(query.everything):
            wanted = [query.signatures[mask]] if query.joinable(mask) else []
            if mask == query.everything and query.result not in wanted:
                wanted.append(query.result)
            for body in dict.fromkeys(signature.body for signature in wanted):
                found += [
                    Use(mask, stream.host, stream)
                    for stream in self._by_body.get(body, ())
                    if any(stream.signature.serves(signature) for signature in wanted)
                ]
        return found

    def deploy(self, query: JoinQuery, tree: Tree) -> RunningStream:
        """Start the new operators of a plan; the result at the sink. Raises ValueError for a query that runs."""
        if query.name in self._results:
            raise ValueError(f"{query.name} runs already")
        result = self._start(query.result, query.sink, (self._feed(query, tree, query.result_rate),))
        self._readers[result] += 1
        self._results[query.name] = result
        return result

    def withdraw(self, name: str) -> None:
        """Drop the leases of a query; what nobody reads then ends."""
        self._drop(self._results.pop(name))

    def snapshot(self) -> Snapshot:
        """What is running now, for :meth:`restore`."""
        return dict(self._readers), dict(self._results)

    def restore(self, snapshot: Snapshot) -> None:
        """As if nothing had been deployed or withdrawn since."""
        self._readers, self._results = dict(snapshot[0]), dict(snapshot[1])
        self._by_body.clear()
        for stream in self._readers:
            self._by_body[stream.signature.body].append(stream)

    def network_usage(self, truth: Truth) -> float:
        """Bytes in transit on all links, as a reported figure: without load."""
        return sum(
            feed.rate_bytes_per_s * float(truth.one_way_s[feed.host, stream.host])
            for stream in self._readers
            for feed in stream.feeds
        )

    def validate(self) -> None:
        """Assert that the readers are those that there are."""
        counted: dict[RunningStream, int] = dict.fromkeys(self._readers, 0)
        for stream in self._readers:
            for feed in stream.feeds:
                if feed.running is not None:
                    counted[feed.running] += 1
        for result in self._results.values():
            counted[result] += 1
        assert counted == self._readers
        assert all(counted.values())
        assert sorted(map(id, (s for streams in self._by_body.values() for s in streams))) == sorted(map(id, counted))

    def _feed(self, query: JoinQuery, tree: Tree, rate: float) -> Feed:
        if isinstance(tree, Use):
            if tree.running is not None:
                self._readers[tree.running] += 1
            return Feed(tree.host, tree.running, rate)
        stream = self._join(query, tree)
        self._readers[stream] += 1
        return Feed(tree.host, stream, rate)

    def _join(self, query: JoinQuery, join: Join) -> RunningStream:
        feeds = tuple(self._feed(query, part, query.rates[part.mask]) for part in (join.left, join.right))
        return self._start(query.signatures[join.mask], join.host, feeds)

    def _start(self, signature: Signature, host: int, feeds: tuple[Feed, ...]) -> RunningStream:
        stream = RunningStream(signature, host, feeds)
        self._by_body[signature.body].append(stream)
        self._readers[stream] = 0
        return stream

    def _drop(self, stream: RunningStream) -> None:
        self._readers[stream] -= 1
        if self._readers[stream]:
            return
        del self._readers[stream]
        self._by_body[stream.signature.body].remove(stream)
        for feed in stream.feeds:
            if feed.running is not None:
                self._drop(feed.running)
