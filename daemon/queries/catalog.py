"""What there is to be queried: streams and sinks as their owners declare them, and what running operators put out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec
import trio

from daemon.config import Config
from daemon.control.messages import StreamInfo
from daemon.fragments.hosted_fragment import HostedFragment
from daemon.fragments.hosting import Hosting
from daemon.peering.host_messages import DerivedStream, Describe, Description
from daemon.peering.peers import Gathered, Peers
from daemon.queries.notices import Notices
from overlay.records import NodeRecord
from sbon.engine_messages import FragmentState
from sbon.errors import QueryError
from sbon.planning.signature import Signature
from sbon.sql.catalog import Catalog
from sbon.sql.query_plan import QueryPlan
from sbon.streams import StreamSpec


@dataclass(frozen=True, slots=True)
class Known:
    """What can be named in a query now, and what runs, by fragment id, with the node that runs it.

    ``twice`` are names that several nodes claim, ``silent`` who did not answer, ``measured`` the streams with measured
    rates. ``rates``: bytes/s of what a part of a query has put out as it ran, by what it computes.
    """

    catalog: Catalog
    derived: dict[str, tuple[DerivedStream, str]]
    twice: dict[str, str]
    silent: tuple[str, ...]
    measured: frozenset[str] = frozenset()
    rates: Mapping[Signature, float] = field(default_factory=dict)

    def described(self, name_of: Callable[[str], str]) -> tuple[StreamInfo, ...]:
        """For people: ``name_of(node_id)`` is what they call a node."""
        streams = [
            StreamInfo(
                each.name,
                "stream",
                name_of(owner),
                each.schema,
                each.event_time,
                each.rate_bytes_per_s,
                rate_is_measured=each.name in self.measured,
            )
            for each, owner in self.catalog.streams.values()
        ]
        sinks = [StreamInfo(each.name, "sink", name_of(owner)) for each, owner in self.catalog.sinks.values()]
        derived = [
            StreamInfo(
                fragment_id,
                "derived",
                name_of(host),
                ", ".join(each.computes.columns),
                each.computes.event_time,
                each.rate_bytes_per_s,
                each.query_id,
                each.computes.text,
                rate_is_measured=True,
            )
            for fragment_id, (each, host) in self.derived.items()
        ]
        return tuple(sorted((*streams, *sinks, *derived), key=lambda info: (info.kind, info.name)))

    def mention_silent(self, error: QueryError) -> QueryError:
        """What is missing may be declared by a node that does not answer."""
        return QueryError(f"{error} (no answer from {', '.join(self.silent)})") if self.silent else error

    def refuse_ambiguous(self, plan: QueryPlan) -> None:
        """Raise QueryError if the query names what two nodes declare."""
        for spec in plan.fragments:
            for declared in (spec.stream, spec.sink):
                owners = self.twice.get(declared.name.lower()) if declared is not None else None
                if declared is not None and owners is not None:
                    raise QueryError(f"{declared.name} is declared by {owners}: rename one of them")


class CatalogService:
    """Says what this node has, and asks others."""

    def __init__(self, peers: Peers, hosting: Hosting, config: Config) -> None:
        self._peers = peers
        self._hosting = hosting
        self._config = config
        #: Of the streams here, by name, as far as they were read.
        self._rows_per_s: dict[str, float] = {}
        self._notices = Notices(peers, self.topics)
        peers.handle(Describe, self._describe)

    async def run(self) -> None:
        """Leave word of what is here, until cancelled."""
        await self._notices.run()

    async def gather(self, names: Iterable[str] | None = None) -> Known:
        """What neighbours have, and what can be found of these ``names`` anywhere in the overlay; None: of all."""
        described: list[Gathered] = []
        found: list[NodeRecord] = []

        async def ask_neighbours() -> None:
            described.append(await self._peers.gather(Describe(), Description))

        async def find() -> None:
            found.extend(await self._notices.find(names))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_neighbours)
            nursery.start_soon(find)
        others = [owner.node_id for owner in found if owner.node_id not in described[0].answers]
        described.append(await self._peers.gather(Describe(), Description, others))
        answers = {node_id: answer for gathered in described for node_id, answer in gathered.answers.items()}
        silent = {name: None for gathered in described for name in gathered.silent}
        return _known(Gathered(answers, tuple(silent)), self._peers)

    def topics(self) -> frozenset[str]:
        """Names of all that is here; of what a running fragment offers, the first of the streams that it is made of."""
        declared = [stream.name for stream in self._config.stream] + [sink.name for sink in self._config.sink]
        derived = (self._derived(fragment) for fragment in self._hosting.fragments)
        return frozenset((*declared, *(each.computes.streams[0] for each in derived if each is not None)))

    async def _describe(self, _message: Describe, _sender: str) -> Description:
        derived = (self._derived(fragment) for fragment in self._hosting.fragments)
        self._measure()
        streams = tuple(self._as_measured(stream) for stream in self._config.stream)
        running = tuple(each for each in derived if each is not None)
        return Description(streams, self._config.sink, running, tuple(self._rows_per_s))

    def _measure(self) -> None:
        """What the engine says of the sources here; it is remembered when nobody reads them any more."""
        for fragment in self._hosting.fragments:
            stream, status = fragment.record.assignment.spec.stream, self._hosting.status(fragment.fragment_id)
            if stream is not None and status is not None and status.stream_rows_per_s is not None:
                self._rows_per_s[stream.name] = status.stream_rows_per_s

    def _as_measured(self, stream: StreamSpec) -> StreamSpec:
        rows_per_s = self._rows_per_s.get(stream.name)
        if rows_per_s is None:
            return stream
        return msgspec.structs.replace(stream, rate_bytes_per_s=rows_per_s * stream.row_bytes)

    def _derived(self, fragment: HostedFragment) -> DerivedStream | None:
        """What the fragment puts out, if it runs and others can read it."""
        assignment, status = fragment.record.assignment, self._hosting.status(fragment.fragment_id)
        computes = None if assignment.spec.stream is not None else assignment.spec.computes
        runs = fragment.up and fragment.confirmed and not fragment.conducting
        if computes is None or not runs or status is None or status.state is not FragmentState.RUNNING:
            return None
        records = (self._peers.known(keeper) for keeper in assignment.keepers)
        return DerivedStream(
            fragment.fragment_id,
            assignment.query_id,
            computes,
            assignment.keepers,
            status.output_rate_bytes_per_s,
            tuple(record for record in records if record is not None),
        )


def _known(gathered: Gathered, peers: Peers) -> Known:
    owners: dict[str, str] = {}
    twice: dict[str, str] = {}
    streams, sinks, derived = {}, {}, {}
    measured = frozenset(name for description in gathered.answers.values() for name in description.measured)
    for node_id, description in gathered.answers.items():
        streams.update({stream.name: (stream, node_id) for stream in description.streams})
        sinks.update({sink.name: (sink, node_id) for sink in description.sinks})
        derived.update({each.fragment_id: (each, node_id) for each in description.derived})
        for name in [spec.name.lower() for spec in (*description.streams, *description.sinks)]:
            first = owners.setdefault(name, node_id)
            if first != node_id:
                twice[name] = f"{peers.name(first)} and {peers.name(node_id)}"
    return Known(Catalog(streams, sinks), derived, twice, gathered.silent, measured)
