"""What this host tells the keepers of the fragments that it runs: every second or so, and when there is news."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable

import trio

from daemon.fragments.engine_supervisor import EngineSupervisor
from daemon.fragments.hosted_fragment import HostedFragment, Phase
from daemon.peering.peers import Peers
from daemon.peering.query_messages import FragmentReport, KeptBy, Report, Reported
from sbon.errors import SbonError

log = logging.getLogger("sbon.hosting")

REPORT_PERIOD_S = 1.0
REPORT_TIMEOUT_S = 5.0


class Reporting:
    """``fragments()`` are those here; ``disowned(fragment)`` is called for one that is not ours by what keepers say,
    ``learn_keepers(fragment, kept_by)`` with who they are."""

    def __init__(
        self,
        peers: Peers,
        supervisor: EngineSupervisor,
        fragments: Callable[[], list[HostedFragment]],
        disowned: Callable[[HostedFragment], None],
        learn_keepers: Callable[[HostedFragment, KeptBy], None],
    ) -> None:
        self._peers = peers
        self._supervisor = supervisor
        self._fragments = fragments
        self._disowned = disowned
        self._learn_keepers = learn_keepers
        self._due = trio.Event()
        self._reporting: set[str] = set()

    def soon(self) -> None:
        """There is news."""
        self._due.set()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                with trio.move_on_after(REPORT_PERIOD_S):
                    await self._due.wait()
                self._due = trio.Event()
                by_query: defaultdict[str, list[HostedFragment]] = defaultdict(list)
                for fragment in self._fragments():
                    if fragment.record.phase is Phase.RUNNING and fragment.confirmed and not fragment.conducting:
                        by_query[fragment.record.assignment.query_id].append(fragment)
                for query_id, fragments in by_query.items():
                    if query_id not in self._reporting:
                        self._reporting.add(query_id)
                        nursery.start_soon(self._report, query_id, fragments)

    async def _report(self, query_id: str, fragments: list[HostedFragment]) -> None:
        """One report; it is no misfortune if it does not arrive, the next one comes soon."""
        sources = {location.node_id for fragment in fragments for location in fragment.producers.values()}
        measured = ((node_id, self._peers.overlay.measured_rtt_ms(node_id)) for node_id in sources)
        report = Report(
            query_id,
            tuple(self._fragment_report(fragment) for fragment in fragments),
            {node_id: rtt_ms for node_id, rtt_ms in measured if rtt_ms is not None},
        )
        try:
            keepers = fragments[0].record.assignment.keepers
            reported = await self._peers.ask_any(keepers, report, Reported, REPORT_TIMEOUT_S)
            for fragment in fragments:
                if fragment.fragment_id in reported.not_yours:
                    self._disowned(fragment)
            for fragment in fragments:
                if reported.kept_by is not None:
                    self._learn_keepers(fragment, reported.kept_by)
        except SbonError as error:
            log.debug("no report of %s: %s", query_id, error)
        finally:
            self._reporting.discard(query_id)

    def _fragment_report(self, fragment: HostedFragment) -> FragmentReport:
        status = self._supervisor.status(fragment.fragment_id) if fragment.up else None
        return FragmentReport(
            fragment.fragment_id,
            fragment.generation,
            fragment.flight_address,
            status,
            fragment.error,
            fragment.record.assignment.consumer_changes,
            fragment.record.assignment.spec.port_changes,
            {producer: relay.node_id for producer, relay in fragment.relays.items()},
        )
