"""Leases of the fragments on this host: renewed while they run, and what it means when they cannot be.

The rules are :mod:`sbon.ownership.leases`. One request to each keeper renews everything that it keeps of what is here.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable

import trio

from daemon.fragments.hosted_fragment import HostedFragment
from daemon.peering.keeper_messages import Holding, LeasesRenewed, RenewLeases
from daemon.peering.peers import Peers
from daemon.peering.query_messages import KeptBy
from sbon.errors import SbonError

log = logging.getLogger("sbon.hosting")

#: A lease is renewed so often while it lasts.
RENEWALS = 5
#: So often keepers are asked before a start: a deployment is not to fail because one was busy for a moment.
ATTEMPTS = 3


class Leasing:
    """Renews. ``lease_s`` is the same on all nodes."""

    def __init__(self, peers: Peers, lease_s: float, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._peers = peers
        self.lease_s = lease_s
        self.monotonic_s = monotonic_s
        #: Set by whoever has the fragments: told who keeps one's query, as a keeper sees it.
        self.on_kept_by: Callable[[HostedFragment, KeptBy], None] = lambda _fragment, _kept_by: None

    @property
    def period_s(self) -> float:
        return self.lease_s / RENEWALS

    def holds(self, fragment: HostedFragment) -> bool:
        """Whether the fragment may run here now; what needs no lease always may."""
        return fragment.lease is None or fragment.lease.holds(self.monotonic_s())

    async def run(
        self,
        fragments: Callable[[], list[HostedFragment]],
        tell: Callable[[HostedFragment], Awaitable[object]],
        suspend: Callable[[HostedFragment], Awaitable[None]],
    ) -> None:
        """Renew the leases of what runs here, have the engine know, and suspend what has lost its own.

        That may take an engine a minute or more: neither the other fragments nor the next renewal wait for it.
        """
        busy: set[tuple[HostedFragment, bool]] = set()

        async def act_on(fragment: HostedFragment, holds: bool) -> None:
            if not holds:
                await suspend(fragment)
            elif fragment.up:
                with contextlib.suppress(SbonError):  # an engine that ends need not be told
                    await tell(fragment)
            busy.discard((fragment, holds))

        async with trio.open_nursery() as nursery:
            while True:
                began_s = trio.current_time()
                leased = [fragment for fragment in fragments() if fragment.up and fragment.lease is not None]
                await self.renew(leased)
                for fragment in leased:
                    action = fragment, self.holds(fragment)
                    if action not in busy:
                        busy.add(action)
                        nursery.start_soon(act_on, *action)
                await trio.sleep_until(began_s + self.period_s)

    async def acquire(self, fragment: HostedFragment) -> bool:
        """Whether the fragment may run here now; its keepers are asked, a few times, until a majority has agreed."""
        next_s = trio.current_time()
        for _ in range(ATTEMPTS):
            if self.holds(fragment):
                break
            await trio.sleep_until(next_s)
            next_s = trio.current_time() + self.period_s
            await self.renew([fragment], until=lambda: self.holds(fragment))
        return self.holds(fragment)

    async def renew(self, fragments: Iterable[HostedFragment], until: Callable[[], bool] = lambda: False) -> None:
        """Ask all their keepers once; whoever does not answer in time, or before ``until()`` holds, does not count."""
        by_keeper: defaultdict[str, list[HostedFragment]] = defaultdict(list)
        for fragment in fragments:
            if fragment.lease is not None:
                for keeper in fragment.record.assignment.keepers:
                    by_keeper[keeper].append(fragment)
        asked_at_s = self.monotonic_s()

        async def ask(keeper: str, fragments: list[HostedFragment]) -> None:
            leases = {fragment.fragment_id: fragment.lease for fragment in fragments}
            holdings = (
                Holding(fragment.record.assignment.query_id, fragment.fragment_id, fragment.generation)
                for fragment in fragments
            )
            try:
                reply = await self._peers.ask(keeper, RenewLeases(tuple(holdings)), LeasesRenewed, 2.0 * self.period_s)
            except SbonError:
                return
            for fragment in fragments:  # first of all: whose grant counts depends on it
                if kept_by := reply.kept_by.get(fragment.record.assignment.query_id):
                    try:
                        self.on_kept_by(fragment, kept_by)
                    except SbonError as error:
                        log.info("%s does not know its keepers now: %s", fragment.fragment_id, error)
                        del leases[fragment.fragment_id]
            for fragment_id in reply.fragment_ids:
                lease = leases.get(fragment_id)
                if lease is not None:
                    lease.granted(keeper, asked_at_s)
            if until():
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for keeper, of_keeper in by_keeper.items():
                nursery.start_soon(ask, keeper, of_keeper)
