"""From the text of a query to running fragments, at the owner of its sink, which becomes its keeper."""

from __future__ import annotations

import logging
import secrets
import time

import trio

from daemon.events import Events
from daemon.peering import query_record
from daemon.peering.peers import Peers
from daemon.peering.query_messages import (
    QueryStatus,
    SubmitQuery,
    Submitted,
)
from daemon.peering.query_record import KEEPERS, QueryRecord
from daemon.queries.catalog import CatalogService
from daemon.queries.fellow_keepers import keeper_candidates
from daemon.queries.keeper import Keeper
from daemon.queries.launching import Launching
from daemon.queries.reading_others import Agreed, ReadingOthers
from sbon.errors import QueryError, SbonError
from sbon.sql.catalog import Catalog
from sbon.sql.query_plan import QueryPlan

log = logging.getLogger("sbon.deployment")

DEPLOY_TIMEOUT_S = 540.0


class Deployment:
    """Submits queries from here, and deploys those whose sinks are here."""

    def __init__(
        self,
        peers: Peers,
        keeper: Keeper,
        catalog: CatalogService,
        reading: ReadingOthers,
        launching: Launching,
        events: Events,
    ) -> None:
        self._peers = peers
        self._keeper = keeper
        self._catalog = catalog
        self._reading = reading
        self._launching = launching
        self._events = events
        peers.handle(SubmitQuery, self._deploy_for)

    async def submit(self, query: SubmitQuery) -> str:
        """Have a query deployed by the owner of its (last) sink; its id, once it runs.

        Raises QueryError for a query that cannot be planned, SbonError for one that cannot be deployed; then nothing of
        it is left.
        """
        known = await self._catalog.gather(await trio.to_thread.run_sync(names_in, query.sql))
        try:
            plan = await _plan(query.sql, "q", known.catalog)
        except QueryError as error:
            raise known.mention_silent(error) from None
        owner = plan.owners[plan.fragments[-1].fragment_id]
        return (await self._peers.ask(owner, query, Submitted, DEPLOY_TIMEOUT_S)).query_id

    # --- deploying here

    async def _deploy_for(self, message: SubmitQuery, _sender: str) -> Submitted:
        if message.until_s is not None and message.until_s <= time.time():
            raise SbonError("the query would be over before it begins: give a later --until")
        known = await self._catalog.gather(await trio.to_thread.run_sync(names_in, message.sql))
        query_id = f"q{secrets.token_hex(4)}"
        try:
            agreed = await self._reading.plan(message, query_id, known, self._choose_keepers)
        except QueryError as error:
            raise known.mention_silent(error) from None
        try:
            await self._activate(agreed, message.until_s)
        except BaseException:
            with trio.CancelScope(shield=True), trio.move_on_after(30.0):
                await self._reading.withdraw(agreed)
            raise
        return Submitted(query_id)

    async def _activate(self, agreed: Agreed, until_s: float | None) -> None:
        """Place and start all fragments, or none."""
        plan, query_id = agreed.plan, agreed.plan.query_id
        chosen, taken = await self._launching.place(plan, agreed.reused)
        hosts = {spec.fragment_id: chosen.hosts[spec.fragment_id] for spec in plan.fragments}
        record = query_record.new_record(
            plan,
            hosts,
            chosen.choices,
            keepers=agreed.keepers,
            submitted_at_s=time.time(),
            taken=taken,
            reused=agreed.reused,
            until_s=until_s,
        )
        placement = {fragment_id: self._peers.name(node_id) for fragment_id, node_id in hosts.items()}
        self._events.publish("query-placed", query=query_id, placement=placement)
        try:
            await self._keeper.add(record)
            await self._launching.start(plan.fragments, hosts, query_id, _check_deploying)
            await self._keeper.set_running(query_id)
        except BaseException as error:
            with trio.CancelScope(shield=True), trio.move_on_after(30.0):
                await self._keeper.withdraw(query_id)
                await self._launching.give_up(query_id, hosts.values())
            if isinstance(error, SbonError):
                self._events.publish("query-failed", query=query_id, error=str(error))
            raise

    def _choose_keepers(self, plan: QueryPlan) -> tuple[str, ...]:
        """This node and two more, the owners of the query's streams first: without them there is nothing to keep.

        This node alone where there are fewer than three, and then nothing is taken over from a host that is lost.
        """
        others = keeper_candidates(self._peers, plan.owners.values())[: KEEPERS - 1]
        return (self._peers.node_id, *others) if len(others) == KEEPERS - 1 else (self._peers.node_id,)


def _check_deploying(record: QueryRecord) -> None:
    if record.status is not QueryStatus.DEPLOYING:
        raise SbonError(record.error or f"query {record.query_id} was cancelled while it was being started")


def names_in(sql: str) -> list[str]:
    """In a thread, as below."""
    from sbon.sql import dialect

    return dialect.names_in(sql)


async def _plan(sql: str, query_id: str, catalog: Catalog) -> QueryPlan:
    """See :func:`sbon.sql.plan.plan_query`. In a thread: importing sqlglot and parsing take a while."""

    def plan() -> QueryPlan:
        from sbon.sql.plan import plan_query  # needs sqlglot, which is large

        return plan_query(sql, query_id, catalog)

    return await trio.to_thread.run_sync(plan)
