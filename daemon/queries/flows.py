"""What flows over the links of the queries kept here, as their hosts have measured it, and what that is in transit.

Estimates start a query; within seconds what its hosts report takes their place. It is kept while a link is interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

from daemon.peering.peers import Peers
from daemon.peering.query_messages import FragmentReport, LinkFlow, Measured
from daemon.peering.query_record import QueryRecord
from daemon.peering.subscription_messages import Reading
from sbon.engine_messages import PortStatus
from sbon.network_usage import Link, network_usage
from sbon.placement.problem import CostView


class Flows:
    """Of all queries that this node keeps."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        #: By (producer, consumer).
        self._measured: dict[tuple[str, str], Measured] = {}
        #: By (node, node), and for which query that was said last.
        self._rtt_ms: dict[tuple[str, str], float] = {}
        self._said_for: dict[tuple[str, str], str] = {}
        #: By (producer, consumer): the node of another reader, through whom it is read.
        self._relays: dict[tuple[str, str], str] = {}
        #: What the readers of a query's fragments have said of themselves, by cursor (daemon.queries.subscribing).
        self.readings: Callable[[QueryRecord], Mapping[str, Reading]] = lambda _: {}

    def note_paths(self, record: QueryRecord, owner: str, rtt_ms: Mapping[str, float]) -> None:
        """Round trips from the owner of a fragment to other hosts of the query, as it has measured them."""
        hosts = set(record.placement.values())
        for node_id, each_ms in rtt_ms.items():
            if node_id in hosts and math.isfinite(each_ms) and each_ms >= 0.0:
                self._rtt_ms[owner, node_id] = each_ms
                self._said_for[owner, node_id] = record.query_id

    def note(self, report: FragmentReport) -> None:
        measured: dict[tuple[str, str], list[PortStatus]] = {}
        for port in report.status.ports if report.status is not None else ():
            if port.settled:
                measured.setdefault((port.producer, report.fragment_id), []).append(port)
        for link, ports in measured.items():
            self._measured[link] = Measured(
                sum(port.rate_bytes_per_s for port in ports), sum(port.rate_rows_per_s for port in ports)
            )

        for link in [link for link in self._relays if link[1] == report.fragment_id]:
            del self._relays[link]
        self._relays.update({(producer, report.fragment_id): node_id for producer, node_id in report.relays.items()})

    def forget_all_but(self, fragment_ids: AbstractSet[str], query_ids: AbstractSet[str]) -> None:
        """Only these are kept here still, or read by what is."""
        for known in (self._measured, self._relays):
            for link in [link for link in known if not fragment_ids >= set(link)]:
                del known[link]
        for path in [path for path, query_id in self._said_for.items() if query_id not in query_ids]:
            del self._rtt_ms[path], self._said_for[path]

    def rate(self, producer: str, consumer: str) -> float | None:
        """Bytes/s on a link, None while it is not measured here."""
        known = self._measured.get((producer, consumer))
        return None if known is None else known.bytes_per_s

    def relay(self, producer: str, consumer: str) -> str | None:
        """The node through which a fragment is read, None if directly, as far as known here."""
        return self._relays.get((producer, consumer))

    def read_at(self, record: QueryRecord) -> dict[str, str]:
        """Where the query has what it reads of others: on which node it runs, or on which it is relayed to the query.

        By fragment id, for those of which all that read them here say the same.
        """
        found = {}
        for fragment_id, reused in record.reused.items():
            relays = {self.relay(fragment_id, consumer) for consumer, _ in record.consumers(fragment_id)}
            relay = relays.pop() if len(relays) == 1 else None
            found[fragment_id] = reused.location.node_id if relay is None else relay
        return found

    def of(self, record: QueryRecord, placement: Mapping[str, str]) -> tuple[LinkFlow, ...]:
        """The links of a query, with those to readers of other queries, whose ends are at ``placement``.

        Readers read what the query itself reads.
        """
        ends: list[tuple[str, str, Measured | None]] = [
            (link.source, link.target, self._measured.get((link.source, link.target)))
            for link in record.links
            if link.target not in record.fragments or not record.fragments[link.target].released
        ]
        for cursor, reading in self.readings(record).items():
            if reading.through is not None:
                continue  # what another reader relays goes out from there
            said = reading.rate_bytes_per_s
            ends.append((record.readers[cursor].fragment_id, cursor, None if said is None else Measured(said)))
        estimated = {link.source: link.rate_bytes_per_s for link in record.links}
        view = self.cost_view()
        return tuple(
            LinkFlow(
                source,
                target,
                estimated.get(source, 0.0),
                measured,
                0.0 if record.is_over else view.rtt_ms(placement[source], placement[target]),
            )
            for source, target, measured in ends
        )

    def usages(self, record: QueryRecord, links: tuple[Link, ...], elsewhere: Mapping[str, str]) -> tuple[float, float]:
        """Bytes in transit now, and if all unpinned operators ran at the consumer."""
        view = self.cost_view()
        placement = record.placement | dict(elsewhere)
        at_consumer = dict(elsewhere) | {
            fragment_id: fragment.owner if fragment.spec.pinned else record.consumer
            for fragment_id, fragment in record.fragments.items()
        }
        return network_usage(links, placement, view.rtt_ms), network_usage(links, at_consumer, view.rtt_ms)

    def cost_view(self) -> CostView:
        """Paths as this node and the hosts of its queries have measured them."""
        return self._peers.cost_view(self._rtt_ms)
