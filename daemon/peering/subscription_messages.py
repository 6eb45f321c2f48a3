"""What keepers say to each other about fragments that several queries read, and to the hosts of these."""

from __future__ import annotations

import msgspec

from daemon.peering.query_messages import Assignment, KeptBy, Location
from overlay.records import NodeRecord
from sbon.engine_messages import FlightAddress
from sbon.fragment import Computes, Start


class AskOffered(msgspec.Struct, frozen=True):
    """To a keeper of ``query_id``: what does this fragment compute, and who keeps it?"""

    query_id: str
    fragment_id: str


class Offered(msgspec.Struct, frozen=True):
    """``computes`` is None if there is nothing to be read."""

    computes: Computes | None
    keepers: tuple[str, ...]


class Subscribe(msgspec.Struct, frozen=True):
    """To a keeper of ``query_id``: let these cursors of the query ``reader`` read a fragment. It holds for a while."""

    query_id: str
    fragment_id: str
    cursors: tuple[str, ...]
    reader: str
    reader_keepers: tuple[str, ...]


class Subscribed(msgspec.Struct, frozen=True):
    """``starts``: by cursor, where it begins. Nothing from there on is let go before it is acknowledged."""

    location: Location
    output_schema: str
    starts: dict[str, Start]


class Unsubscribe(msgspec.Struct, frozen=True):
    """These cursors of others are not used any more."""

    query_id: str
    cursors: tuple[str, ...]


class Reading(msgspec.Struct, frozen=True):
    """How a cursor does: the node that reads, and bytes/s, None while they are not measured.

    ``flight_address``: of the engine there, None while it is not known. ``through``: the node of another reader that
    relays to it.
    """

    node_id: str
    rate_bytes_per_s: float | None
    flight_address: FlightAddress | None = None
    through: str | None = None


class Fellow(msgspec.Struct, frozen=True):
    """Somebody else who reads ``fragment_id``, not through anybody; the engine there may relay it. ``is_own``: it is of
    the same query, and never reads through others."""

    fragment_id: str
    cursor: str
    record: NodeRecord
    flight_address: FlightAddress
    is_own: bool

    @property
    def consumer(self) -> str:
        return self.cursor.partition(":")[0]


class RelayAt(msgspec.Struct, frozen=True):
    """The engine of another reader, which relays what it pulls."""

    node_id: str
    flight_address: FlightAddress


class ReadThrough(msgspec.Struct, frozen=True):
    """To the host of ``consumer``: pull ``producer`` through ``relay``; None: from where it is."""

    consumer: str
    producer: str
    relay: RelayAt | None


class RenewSubscriptions(msgspec.Struct, frozen=True):
    """From each keeper of a query that reads, to each keeper of ``query_id``, every few seconds. By cursor."""

    query_id: str
    readings: dict[str, Reading]


class SubscriptionsRenewed(msgspec.Struct, frozen=True):
    """``locations`` of what is read. ``gone``: cursors that there are not, as far as this keeper knows, and why.
    ``kept_by``: who keeps the query now; a former keeper says nothing else. ``fellows``: who else reads the same."""

    locations: tuple[Location, ...]
    gone: dict[str, str]
    kept_by: KeptBy | None = None
    fellows: tuple[Fellow, ...] = ()


class AskUnread(msgspec.Struct, frozen=True):
    """Between keepers: have you not heard of this cursor's query for as long as a subscription lasts, either?"""

    query_id: str
    cursor: str


class Unread(msgspec.Struct, frozen=True):
    unread: bool


class SetConsumers(msgspec.Struct, frozen=True):
    """To the owner of a fragment: its consumers are those of this assignment now. Nothing else of it is news."""

    assignment: Assignment


class ConsumersSet(msgspec.Struct, frozen=True):
    """Where they begin, by cursor."""

    starts: dict[str, Start]
