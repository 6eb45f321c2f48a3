"""What nodes say to each other in datagrams. Unknown fields are skipped, so that newer nodes may say more.

The shortest of all is :data:`HEARTBEAT`: it says no more than that its sender is there. A record travels as
:func:`overlay.packing.pack` made it (:data:`Packed`), so that handing one on costs nothing.
"""

from __future__ import annotations

from typing import Final

import msgspec

from sbon.objectives import Objective

MAX_REASON_LENGTH: Final = 200
Packed = bytes
HEARTBEAT: Final = b"\0"


class Ping(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A probe. ``wants_sample``: the answer shall name a random node.

    ``place``: the raw coordinate of an asker that is new, as :meth:`sbon.coordinate.Coordinate.to_bytes` makes it.
    All others that are new can learn from it.
    """

    nonce: int
    wants_sample: bool = False
    place: bytes = b""


class Pong(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The answer to a ping. ``place`` is the raw coordinate, not the advertised one.

    ``held_us``: how long the ping waited in the answering process; it is no part of the path's round trip. ``linked``:
    whether the answerer holds the asker for a neighbour.
    """

    nonce: int
    held_us: int
    place: bytes
    linked: bool
    sample: Packed = b""


class Beat(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A heartbeat with news: the sender as it is advertised now."""

    record: Packed


class Join(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A wish to become a member, sent until it is answered with the same nonce."""

    nonce: int
    dimensions: int
    record: Packed


class JoinReply(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Welcome, and whom to begin with; or, with a ``reason``, why not, in one line for the user."""

    nonce: int
    record: Packed
    others: tuple[Packed, ...] = ()
    reason: str = ""


class LinkRequest(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Shall we be neighbours? ``far``: not for being near, but to keep the overlay mixed."""

    record: Packed
    far: bool


class LinkReply(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Whether we are neighbours from now on."""

    accepted: bool
    record: Packed


class Unlink(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """We are no neighbours (any more). Not a goodbye: the sender stays in the overlay.

    ``surplus``: the sender has enough others; otherwise it never was the receiver's neighbour, or has forgotten it.
    """

    surplus: bool


class Leave(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """The sender leaves the overlay."""


class Exchange(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """Whom do you know that is worth knowing at ``record``'s place?

    ``known``: the ends of the ids of those that need not be named. ``versions``: for the first of them, the last byte
    of the incarnation that is known; of these a newer record is wanted, and whether they live.
    """

    record: Packed
    known: bytes = b""
    versions: bytes = b""


class ExchangeReply(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """Newer records of nodes that the asker knows, then others that are worth knowing where it is.

    ``ages``: for each of the records, how many seconds ago its node was surely alive. ``alive``: the same for each of
    the ``versions`` that were asked about; NOT_KNOWN if the sender does not know that node, or knows another version.
    """

    records: tuple[Packed, ...]
    ages: bytes = b""
    alive: bytes = b""


class Relay(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """Please ping that node for me: I do not hear it (SWIM's ping-req)."""

    nonce: int
    target: Packed


class Relayed(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """The node that you asked me to ping has answered me."""

    nonce: int


class SearchRequest(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """Which hosts do you know of least cost? ``known`` and ``versions``: of these only newer records are wanted; as in
    :class:`Exchange`, for all of them. ``record``: of an asker that looks for its own nearest, to whom it is near.
    ``is_new``: its place settles yet, so that others are to hear of it, too."""

    search_id: int
    objective: Objective
    known: bytes = b""
    versions: bytes = b""
    record: Packed = b""
    is_new: bool = False


class SearchReply(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """The answerer itself, and the best of whom it knows and the asker does not, as many as fit a datagram.

    ``ages``: as in :class:`ExchangeReply`.
    """

    search_id: int
    record: Packed
    records: tuple[Packed, ...]
    ages: bytes = b""


class Newcomer(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """There is somebody new near you, who was surely alive so many seconds ago (at most 254)."""

    record: Packed
    age_s: int


class Surroundings(msgspec.Struct, frozen=True, array_like=True, tag=17):
    """Those that the sender has found nearest to itself just now, for a neighbour alike to it, which has mostly the
    same. ``ages``: as in :class:`ExchangeReply`."""

    records: tuple[Packed, ...]
    ages: bytes = b""


Message = (
    Ping
    | Pong
    | Beat
    | Join
    | JoinReply
    | LinkRequest
    | LinkReply
    | Unlink
    | Leave
    | Exchange
    | ExchangeReply
    | Relay
    | Relayed
    | SearchRequest
    | SearchReply
    | Newcomer
    | Surroundings
)

#: For counters and for people.
KIND_OF: dict[type[Message], str] = {
    Ping: "ping",
    Pong: "pong",
    Beat: "beat",
    Join: "join",
    JoinReply: "join-reply",
    LinkRequest: "link-request",
    LinkReply: "link-reply",
    Unlink: "unlink",
    Leave: "leave",
    Exchange: "exchange",
    ExchangeReply: "exchange-reply",
    Relay: "relay",
    Relayed: "relayed",
    SearchRequest: "search-request",
    SearchReply: "search-reply",
    Newcomer: "newcomer",
    Surroundings: "surroundings",
}
