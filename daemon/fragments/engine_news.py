"""Waiting for what the engine does with a fragment."""

from __future__ import annotations

from collections.abc import Callable

import trio

from daemon.fragments.hosted_fragment import HostedFragment
from daemon.peering.move_messages import AwaitRunning, NowRunning
from sbon.engine_messages import FragmentState, FragmentStatus
from sbon.errors import SbonError, StaleGenerationError, UnavailableError

#: How long a first batch may take before a fragment that runs is taken to have nothing to do.
FIRST_BATCH_S = 5.0
START_TIMEOUT_S = 180.0
_LOOK_PERIOD_S = 1.0


class EngineNews:
    """Wakes those who wait whenever something has happened."""

    def __init__(
        self, find: Callable[[str], HostedFragment | None], status_of: Callable[[str], FragmentStatus | None]
    ) -> None:
        self._find = find
        self._status_of = status_of
        self._event = trio.Event()

    def tell(self) -> None:
        self._event.set()
        self._event = trio.Event()

    async def wait(self) -> None:
        """Return at the next news."""
        await self._event.wait()

    async def until_running(self, message: AwaitRunning, _sender: str) -> NowRunning:
        """Return when the fragment has done a batch, or runs and has nothing to do.

        Raises SbonError if it does not come up, or is not here under that generation.
        """
        fragment_id, generation = message.fragment_id, message.generation
        began_s = trio.current_time()
        running_s: float | None = None
        while True:
            fragment, status, now_s = self._find(fragment_id), self._status_of(fragment_id), trio.current_time()
            if fragment is None or fragment.generation != generation:
                raise StaleGenerationError(f"{fragment_id} is not here with generation {generation}")
            if fragment.error is not None:
                raise SbonError(fragment.error)
            if fragment.up and status is not None and status.state is not FragmentState.STARTING:
                running_s = now_s if running_s is None else running_s
                if status.batch_id >= 0 or now_s >= running_s + FIRST_BATCH_S:
                    return NowRunning(status.batch_id, now_s - running_s)
            if now_s >= began_s + START_TIMEOUT_S:
                raise UnavailableError(f"{fragment_id} did not start within {START_TIMEOUT_S:g} s: it goes on")
            with trio.move_on_after(_LOOK_PERIOD_S):
                await self.wait()
