"""Before a fragment arrives, the engine here runs it for a moment on nothing: it starts faster then."""

from __future__ import annotations

import logging
from pathlib import Path

from daemon.fragments.engine_news import START_TIMEOUT_S
from daemon.fragments.engine_supervisor import EngineSupervisor
from daemon.peering.query_messages import Assignment
from sbon.engine_messages import Rehearse
from sbon.errors import UnavailableError

log = logging.getLogger("sbon.hosting")


async def rehearse(supervisor: EngineSupervisor, owner: str, folder: Path, coming: Assignment | None) -> None:
    """In a folder under ``folder`` of which nothing is left. Raises SbonError if the fragment cannot run here; one that
    only takes too long to try will take long to start, too."""
    if coming is None:
        return
    command = Rehearse(
        fragment_id=coming.fragment_id,
        generation=coming.generation,
        owner=owner,
        spec=coming.spec,
        folder=str(folder / f"{coming.fragment_id}.rehearsal"),
        port_schemas=coming.port_schemas,
    )
    try:
        await supervisor.call(command, START_TIMEOUT_S / 2.0)
    except UnavailableError as error:
        log.info("%s is not rehearsed: %s", coming.fragment_id, error)
