"""From a plan to fragments that run: hosts chosen, room reserved, engines prepared, one after the other started."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import trio

from daemon.fragments.engine_news import START_TIMEOUT_S
from daemon.fragments.reserving import Reserving
from daemon.peering.host_messages import Hosted, HostFragment, PrepareEngine
from daemon.peering.peers import Peers
from daemon.peering.query_messages import Reused
from daemon.peering.query_record import QueryRecord
from daemon.peering.requests import Done
from daemon.queries.keeper import Keeper
from sbon.errors import SbonError
from sbon.fragment import FragmentSpec
from sbon.network_usage import Link
from sbon.placement.capacity import Demand
from sbon.placement.choice import Placement
from sbon.placement.problem import PlacementProblem
from sbon.sql.query_plan import QueryPlan


class Launching:
    """Places and starts the fragments of queries that are kept here."""

    def __init__(self, peers: Peers, keeper: Keeper, reserving: Reserving) -> None:
        self._peers = peers
        self._keeper = keeper
        self._reserving = reserving

    async def place(self, plan: QueryPlan, reused: Iterable[Reused]) -> tuple[Placement, dict[str, Demand]]:
        """Hosts of all fragments, and why; and what each fragment takes there, which is reserved.

        What is read of what runs already is where it is, and takes some more of the bandwidth there.
        """
        found = await self._reserving.place(plan.query_id, problem_of(plan, reused))
        return found.placement, found.taken

    async def start(
        self,
        fragments: Sequence[FragmentSpec],
        hosts: Mapping[str, str],
        query_id: str,
        check: Callable[[QueryRecord], None],
    ) -> None:
        """Engines side by side, then each fragment as soon as those that feed it run.

        ``check`` raises an SbonError if the fragments of the record are not wanted any more.
        """
        has_started = {spec.fragment_id: trio.Event() for spec in fragments}

        async def prepare(node_id: str) -> None:
            try:
                await self._peers.ask(node_id, PrepareEngine(query_id), Done, START_TIMEOUT_S)
            except SbonError as error:
                raise type(error)(f"{self._peers.name(node_id)}: {error}") from error

        async def start(spec: FragmentSpec) -> None:
            for port in spec.ports:
                for producer in port.producers:
                    if producer in has_started:  # or else it runs already
                        await has_started[producer].wait()
            node_id = hosts[spec.fragment_id]
            message = HostFragment(self._keeper.record(query_id).assignment(spec.fragment_id))
            try:
                hosted = await self._peers.ask(node_id, message, Hosted, START_TIMEOUT_S)
            except SbonError as error:
                raise type(error)(f"{spec.fragment_id} on {self._peers.name(node_id)}: {error}") from error
            check(self._keeper.record(query_id))
            await self._keeper.started(query_id, spec.fragment_id, hosted.flight_address, hosted.output_schema)
            has_started[spec.fragment_id].set()

        try:
            async with trio.open_nursery() as nursery:
                for node_id in {hosts[spec.fragment_id] for spec in fragments}:
                    nursery.start_soon(prepare, node_id)
            async with trio.open_nursery() as nursery:
                for spec in fragments:
                    nursery.start_soon(start, spec)
        except* SbonError as errors:
            raise _first(errors) from None

    async def give_up(self, query_id: str, node_ids: Iterable[str]) -> None:
        """Nothing is held for the query any more that is not used."""
        await self._reserving.release(query_id, node_ids)


def problem_of(plan: QueryPlan, reused: Iterable[Reused]) -> PlacementProblem:
    """A plan as those see it who look for hosts."""
    links = tuple(Link(source, target, rate) for source, target, rate in plan.links)
    running = {each.fragment_id: each.location.node_id for each in reused}
    return PlacementProblem(links, {**plan.owners, **running})


def _first(errors: BaseExceptionGroup[SbonError]) -> SbonError:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, SbonError)
    return error
