"""Records of queries that their keepers agree on: the shares of this node, on disk, and rounds over requests.

The protocol is :mod:`sbon.ownership.register`; here its messages travel and its shares are written down.
"""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec
import trio

from daemon.durable import on_disk, remove_durably, write_durably
from daemon.peering import query_rules
from daemon.peering.keeper_messages import (
    AcceptedRecord,
    AcceptRecord,
    AskMissed,
    ForgetRecord,
    Holding,
    LeasesRenewed,
    Missed,
    PreparedRecord,
    PrepareRecord,
    RenewLeases,
)
from daemon.peering.peers import Peers
from daemon.peering.query_record import QueryRecord
from daemon.peering.requests import Done
from sbon.errors import SbonError, UnavailableError
from sbon.ownership.leases import LeaseTable
from sbon.ownership.register import Ballot, Register, Round, Stage
from sbon.ownership.share import Share

log = logging.getLogger("sbon.keeper")

Change = Callable[[QueryRecord | None], QueryRecord | None]

#: Records that a node keeps at most, its own and those of others.
MAX_RECORDS = 2000
#: A query that this node has been asked to keep, and then has never got the record of, is forgotten after so long. Two
#: rounds about it that both began before that would have to be under way still for the promise to mean anything.
PROMISES_LAST_S = 3600.0
ROUND_TIMEOUT_S = 3.0
ATTEMPTS = 5
#: Keepers that propose at once get in each other's way; the next attempt comes after a random part of this.
PAUSE_S = 0.5
_SUFFIX = ".query"
_SAFE_ID = re.compile(r"[A-Za-z0-9]{1,64}")


class RecordKeeping:
    """This node's shares. ``monotonic_s`` is the clock of leases."""

    def __init__(
        self, peers: Peers, root: Path, lease_s: float, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        """``root`` is the folder of the records. Raises SbonError if one of them cannot be read."""
        self._peers = peers
        self._root = root
        self._monotonic_s = monotonic_s
        self._leases = LeaseTable(lease_s, monotonic_s())
        self._shares: dict[str, Share[QueryRecord]] = {}
        #: When each was last asked to take part in a round.
        self._asked_s: dict[str, float] = {}
        #: Of queries that are being changed now: anybody may ask about any.
        self._turns: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()
        self._highest = 0
        self._nursery: trio.Nursery | None = None
        root.mkdir(parents=True, exist_ok=True)
        for path in root.glob(f"*{_SUFFIX}"):
            self._load(path)
        peers.handle(PrepareRecord, self._prepare)
        peers.handle(AcceptRecord, self._accept)
        peers.handle(ForgetRecord, self._forget_for)
        peers.handle(RenewLeases, self._renew)
        peers.handle(AskMissed, self._answer_missed)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    # --- reading

    @property
    def records(self) -> list[QueryRecord]:
        """The newest of each query that this node has accepted and keeps; it may be behind the others."""
        return [record for query_id in self._shares if (record := self.find(query_id)) is not None]

    def find(self, query_id: str) -> QueryRecord | None:
        """None if the query is not kept here, as far as known here."""
        record = self.last_known(query_id)
        return None if record is None or self._peers.node_id not in record.keepers else record

    def last_known(self, query_id: str) -> QueryRecord | None:
        """As :meth:`find`, but also what a former keeper has."""
        share = self._shares.get(query_id)
        return None if share is None else share.register.value

    def overdue(self) -> list[tuple[QueryRecord, str]]:
        """(record, fragment) of owners that have not renewed their leases here for as long as one lasts."""
        leased = {
            fragment_id: record
            for record in self.records
            for fragment_id, fragment in record.fragments.items()
            if query_rules.is_leased(record, fragment)
        }
        owners = {fragment_id: record.fragment(fragment_id).generation for fragment_id, record in leased.items()}
        return [(leased[fragment_id], fragment_id) for fragment_id in self._leases.overdue(owners, self._monotonic_s())]

    # --- changing

    async def change(self, query_id: str, keepers: tuple[str, ...], change: Change) -> QueryRecord | None:
        """Have a majority of its keepers agree on what ``change`` makes of the record; the record then.

        ``keepers`` are those that the caller knows of; it does not matter if there are others by now.
        Raises the SbonError that ``change`` raised about what was agreed on before, and UnavailableError if there is no
        majority; then the change may still come into force.
        """
        async with self._turns.setdefault(query_id, trio.Lock()):
            for attempt in range(ATTEMPTS):
                if attempt:
                    await trio.sleep(random.uniform(0.0, PAUSE_S))
                self._highest += 1
                ballot = Ballot(self._highest, self._peers.node_id)
                round_ = Round(ballot, keepers, change, lambda record: record.keepers)
                await self._carry_out(query_id, round_)
                self._highest = max(self._highest, round_.highest)
                if round_.stage is Stage.CHOSEN:
                    if round_.error is not None:
                        raise round_.error
                    return round_.value
        raise UnavailableError(f"no majority of the keepers of query {query_id} answers: try again when they are back")

    async def _carry_out(self, query_id: str, round_: Round[QueryRecord]) -> None:
        """Return when it is decided; those who have not answered by then are asked to the end."""
        news = trio.Event()

        async def prepare(keeper: str) -> None:
            message = PrepareRecord(query_id, round_.ballot)
            reply = await self._peers.ask(keeper, message, PreparedRecord, ROUND_TIMEOUT_S)
            if reply.granted:
                round_.promised(keeper, Register(reply.promised, reply.accepted, reply.record))
            elif round_.stage is Stage.PREPARING:
                round_.refused(keeper, reply.promised)

        async def accept(keeper: str) -> None:
            assert round_.value is not None
            message = AcceptRecord(round_.ballot, round_.value)
            reply = await self._peers.ask(keeper, message, AcceptedRecord, ROUND_TIMEOUT_S)
            if reply.granted:
                round_.accepted(keeper, message.ballot)
            elif round_.ballot == message.ballot:
                round_.refused(keeper, reply.promised)

        async def ask(keeper: str, stage: Stage) -> None:
            try:
                await (prepare if stage is Stage.PREPARING else accept)(keeper)
            except SbonError as error:
                log.debug("keeper %s: %s", self._peers.name(keeper), error)
                if round_.stage is stage:
                    round_.lost(keeper)
            news.set()

        while round_.stage not in (Stage.CHOSEN, Stage.FAILED):
            if self._nursery is None:
                raise UnavailableError("the daemon is starting or shutting down: try again")
            for keeper in round_.unasked():
                self._nursery.start_soon(ask, keeper, round_.stage)
            await news.wait()
            news = trio.Event()

    async def forget(self, record: QueryRecord) -> None:
        """The query has ended, and nobody asks for it any more, or it never began: no majority of those who were to
        keep it has answered. Keepers that do not hear of it forget it later."""
        await self._peers.gather(ForgetRecord(record.query_id), Done, (*record.keepers, *record.former_keepers))

    # --- answering

    async def _prepare(self, message: PrepareRecord, _sender: str) -> PreparedRecord:
        share = self._share(message.query_id)
        granted = share.prepare(message.ballot)
        register = share.register
        return PreparedRecord(granted, register.promised, register.accepted, register.value if granted else None)

    async def _accept(self, message: AcceptRecord, _sender: str) -> AcceptedRecord:
        query_id = message.record.query_id
        if self._peers.node_id not in message.record.keepers and self.last_known(query_id) is None:
            raise SbonError(f"this node is no keeper of query {message.record.query_id}")
        share = self._share(query_id)
        granted = share.accept(message.ballot, message.record, self._monotonic_s())
        return AcceptedRecord(granted, share.register.promised)

    async def _renew(self, message: RenewLeases, sender: str) -> LeasesRenewed:
        known = {holding.query_id: self.last_known(holding.query_id) for holding in message.holdings}
        return LeasesRenewed(
            tuple(holding.fragment_id for holding in message.holdings if self._grant(holding, sender)),
            {query_id: record.kept_by for query_id, record in known.items() if record is not None},
        )

    async def _answer_missed(self, message: AskMissed, _sender: str) -> Missed:
        return Missed(
            any(
                fragment_id == message.fragment_id and record.fragment(fragment_id).generation == message.generation
                for record, fragment_id in self.overdue()
            )
        )

    def _grant(self, holding: Holding, sender: str) -> bool:
        record = self.find(holding.query_id)
        if record is None or not query_rules.owns(record, sender, holding.fragment_id, holding.generation):
            return False
        self._leases.grant(holding.fragment_id, holding.generation, self._monotonic_s())
        return True

    async def _forget_for(self, message: ForgetRecord, sender: str) -> Done:
        share = self._shares.get(message.query_id)
        if share is None:
            return Done()
        record = share.register.value
        if record is None:
            # Only who submits a query proposes it before it has a record. What he may still be asking for in his old
            # rounds is always the same.
            is_due = share.register.promised.proposer == sender
        else:
            is_due = self._peers.node_id not in record.keepers or (sender in record.keepers and record.is_over)
        if is_due:
            self._drop(message.query_id)
        return Done()

    def _forget_promises(self) -> None:
        """Of queries that never began, as far as known here: who submitted one may have died at that."""
        long_ago_s = self._monotonic_s() - PROMISES_LAST_S
        promised = [query_id for query_id, share in self._shares.items() if share.register.value is None]
        for query_id in promised:
            if self._asked_s[query_id] <= long_ago_s:
                self._drop(query_id)

    def _drop(self, query_id: str) -> None:
        remove_durably(self._path(query_id))
        del self._shares[query_id], self._asked_s[query_id]

    # --- on disk

    def _share(self, query_id: str) -> Share[QueryRecord]:
        """Raises SbonError for an id that is not one of ours: it comes from a peer, and becomes a path."""
        share = self._shares.get(query_id)
        if share is None:
            if not _SAFE_ID.fullmatch(query_id):
                raise SbonError(f"{query_id[:100]!r} is not the id of a query")
            self._forget_promises()
            if len(self._shares) >= MAX_RECORDS:
                raise SbonError(f"the node keeps {MAX_RECORDS} queries already")
            share = self._shares[query_id] = self._new_share(query_id, Register())
        self._asked_s[query_id] = self._monotonic_s()
        return share

    def _new_share(self, query_id: str, register: Register[QueryRecord]) -> Share[QueryRecord]:
        def store(register: Register[QueryRecord]) -> None:
            write_durably(self._path(query_id), msgspec.msgpack.encode(register))

        joined = partial(query_rules.newly_kept, self._peers.node_id)
        return Share(register, self._leases, query_rules.takeovers, store, joined)

    def _load(self, path: Path) -> None:
        try:
            with on_disk(path):
                register = msgspec.msgpack.decode(path.read_bytes(), type=Register[QueryRecord])
        except msgspec.MsgspecError as error:
            raise SbonError(f"{path} cannot be read ({error}): move it away to start without that query") from error
        self._shares[path.stem] = self._new_share(path.stem, register)
        self._asked_s[path.stem] = self._monotonic_s()

    def _path(self, query_id: str) -> Path:
        return self._root / f"{query_id}{_SUFFIX}"
