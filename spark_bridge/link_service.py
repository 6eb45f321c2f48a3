"""What an engine answers to those who read its links: in its own process, or over Flight (spark_bridge.flight_links).

Requests carry (fragment, generation, consumer). A generation that is not the one that runs here is refused, and so is
who does not know the engine's secret. A reader may pull through another one, which relays what it pulls itself
(:mod:`spark_bridge.relay`).
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import msgspec

from sbon.engine_messages import FlightAddress
from sbon.errors import SbonError, UnavailableError
from spark_bridge.link_credentials import LinkCredentials
from spark_bridge.link_log import LinkLog, LogFaultError
from spark_bridge.relay import NotHereError, Relay

_IDLE_S = 1.0  # how long a pull waits for the next segment before the consumer asks again


class PullRequest(msgspec.Struct, frozen=True):
    """Segments of ``fragment_id`` from ``from_batch`` on."""

    fragment_id: str
    generation: int
    consumer: str
    from_batch: int
    secret: bytes = b""


class Acknowledgement(msgspec.Struct, frozen=True):
    """``consumer`` has read ``up_to_batch`` and all before it for good."""

    fragment_id: str
    generation: int
    consumer: str
    up_to_batch: int
    secret: bytes = b""


@dataclass(frozen=True, slots=True)
class Served:
    """A log that may be pulled, under which generation, until ``stopping``, and while its owner ``is_owner``."""

    log: LinkLog
    generation: int
    stopping: threading.Event
    is_owner: Callable[[], bool] = lambda: True
    #: Told what is wrong with the log.
    fault: Callable[[str], None] = lambda _: None


class Directory(Protocol):
    """Which log a fragment has here, None if it does not run here; and what is kept of one that is read here, None if
    it is not."""

    def served(self, fragment_id: str) -> Served | None: ...

    def relayed(self, fragment_id: str) -> Relay | None: ...


class Link(Protocol):
    """A way to the logs of one engine. Segments are whole, checksum included; they end when none has come for a while.

    All of it raises SbonError while that engine does not answer, or refuses.
    """

    def pull(self, request: PullRequest) -> Iterable[bytes]: ...

    def relay(self, request: PullRequest) -> Iterable[bytes]: ...

    def acknowledge(self, request: Acknowledgement) -> None: ...


class LinkService:
    """The links of this engine: the :class:`Link` of readers in the same process, who read the files themselves."""

    def __init__(self, directory: Directory) -> None:
        self.credentials = LinkCredentials.generate()
        self._directory = directory

    def is_at(self, address: FlightAddress) -> bool:
        """Whether this engine is meant, by whatever name its host goes."""
        return address.certificate == self.credentials.certificate

    def pull(self, request: PullRequest) -> Iterator[bytes]:
        """Of the log itself."""
        served = self._served(request)
        try:
            for data in served.log.segments_from(request.from_batch, _IDLE_S, served.stopping):
                if not served.is_owner():
                    return
                yield data
        except LogFaultError as error:
            served.fault(str(error))
            raise
        except OSError as error:  # it has just been stopped, and its folder deleted, say
            raise UnavailableError(f"the log of {request.fragment_id} cannot be read: {error}") from None

    def relay(self, request: PullRequest) -> Iterator[bytes]:
        """Of what is kept for others that read the same."""
        self._check_secret(request)
        relay = self._directory.relayed(request.fragment_id)
        if relay is None:
            raise UnavailableError(f"{request.fragment_id} is not read here")
        try:
            yield from relay.segments_from(request.from_batch, _IDLE_S)
        except NotHereError as error:
            raise UnavailableError(str(error)) from None

    def acknowledge(self, request: Acknowledgement) -> None:
        """They may be trimmed."""
        served = self._served(request)
        try:
            served.log.acknowledge(request.consumer, request.up_to_batch)
        except OSError as error:  # the disk is full, say: it is acknowledged again
            raise UnavailableError(f"the log of {request.fragment_id} notes nothing now: {error}") from None

    def _check_secret(self, request: PullRequest | Acknowledgement) -> None:
        if not hmac.compare_digest(request.secret, self.credentials.secret):
            raise SbonError("whoever pulls from here knows this engine's secret")

    def _served(self, request: PullRequest | Acknowledgement) -> Served:
        self._check_secret(request)
        fragment_id, generation = request.fragment_id, request.generation
        served = self._directory.served(fragment_id)
        if served is None or served.stopping.is_set():
            raise UnavailableError(f"{fragment_id} does not run here")
        if not served.is_owner():
            raise UnavailableError(f"{fragment_id} may have another owner by now")
        if served.generation != generation:
            raise UnavailableError(
                f"{fragment_id} is served under generation {served.generation} here, not {generation}"
            )
        return served
