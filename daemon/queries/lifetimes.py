"""Queries that are to end at some time: at that time, or as soon as one of their keepers is there again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import trio

from daemon.peering.query_messages import QueryStatus
from daemon.queries.keeper import Keeper
from daemon.queries.record_keeping import RecordKeeping
from sbon.errors import SbonError

log = logging.getLogger("sbon.keeper")

LOOK_PERIOD_S = 1.0


async def end_in_time(keeping: RecordKeeping, keeper: Keeper, wall_s: Callable[[], float] = time.time) -> None:
    """Until cancelled. ``wall_s`` is the time of day in seconds since the epoch."""
    while True:
        for record in keeping.records:
            if record.until_s is not None and record.until_s <= wall_s() and not record.status.ended:
                try:
                    await keeper.end(record.query_id, QueryStatus.FINISHED)
                except SbonError as error:
                    log.info("query %s does not end yet: %s", record.query_id, error)
        await trio.sleep(LOOK_PERIOD_S)
