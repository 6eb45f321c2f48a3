"""Before a fragment arrives: is there room for its state, is Spark the same here, and does it run?

All of it is asked while the fragment still runs where it is, so a refusal costs it nothing. The engine is started and
runs the fragment for a moment on nothing: it starts faster then.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path

import trio

from daemon.fragments.engine_news import START_TIMEOUT_S
from daemon.fragments.engine_supervisor import EngineSupervisor
from daemon.fragments.reserving import HostBook
from daemon.peering.peers import Peers
from daemon.peering.query_messages import Assignment, PrepareEngine
from daemon.peering.requests import Done
from daemon.peering.room import check_room
from sbon.engine_messages import Rehearse
from sbon.errors import SbonError, UnavailableError

log = logging.getLogger("sbon.hosting")


def check_spark(node: str, here: str, fragment_id: str, its: str) -> None:
    """Raises SbonError unless the state of a fragment, which Spark ``its`` has written, can be opened by Spark ``here``
    on this ``node``. No version of Spark promises to read another one's state, and some give wrong rows."""
    if its != here:
        raise SbonError(
            f"{node} has Spark {here}, and the state of {fragment_id} is of Spark {its}: install the same version of "
            "sbon, and with it of Spark, on both"
        )


class Preparing:
    """Answers whoever is about to send a fragment, or to start one here."""

    def __init__(self, peers: Peers, supervisor: EngineSupervisor, book: HostBook, scratch: Path) -> None:
        """``scratch``: a folder on the disk of the fragments."""
        self._peers = peers
        self._supervisor = supervisor
        self._book = book
        self._scratch = scratch
        self._expected_until_s = -math.inf
        peers.handle(PrepareEngine, self._prepare)

    @property
    def expects_one(self) -> bool:
        """Whether a fragment is on its way here."""
        return trio.current_time() < self._expected_until_s

    def has_come(self) -> None:
        """One has arrived."""
        self._expected_until_s = -math.inf

    async def _prepare(self, message: PrepareEngine, _sender: str) -> Done:
        """It may have to wait for others that feed it, once all is ready."""
        coming = message.coming
        node = self._peers.overlay.record.name
        if coming is not None:
            check_room(node, self._scratch.parent, f"the state of {coming.fragment_id}", message.state_bytes)
        self._book.commit(message.query_id)
        hello = await self._supervisor.prepare()
        if coming is not None:
            check_spark(node, hello.spark_version, coming.fragment_id, message.spark_version)
            await self._rehearse(coming)
        self._expected_until_s = trio.current_time() + START_TIMEOUT_S
        return Done()

    async def _rehearse(self, coming: Assignment) -> None:
        """In a folder of which nothing is left. Raises SbonError if the fragment cannot run here; one that only takes
        too long to try will take long to start, too."""
        command = Rehearse(
            fragment_id=coming.fragment_id,
            generation=coming.generation,
            owner=self._peers.node_id,
            spec=coming.spec,
            folder=str(self._scratch / f"{coming.fragment_id}.rehearsal"),
            port_schemas=coming.port_schemas,
        )
        try:
            await self._supervisor.call(command, START_TIMEOUT_S / 2.0)
        except UnavailableError as error:
            log.info("%s is not rehearsed: %s", coming.fragment_id, error)
