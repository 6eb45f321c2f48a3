"""Connections to other daemons, kept open for the next request.

Owners report once a second, renew leases and ship state after each batch: a connection for each request would cost two
round trips, two signatures and four verifications before the first byte of each. So whoever asks keeps a connection for
KEPT_S after an answer. It is used again only while nothing was heard on it, for then its other end has not closed it,
and while what was shown on it would be shown again: no certificate has expired meanwhile or was revoked, and no new one
has come.

The server keeps it for longer, and closes it earlier only if it needs the room: with the frame NOT_TAKEN, so that who
has just asked knows that the request was not carried out, and may ask again.
"""

from __future__ import annotations

import select
from collections import deque
from dataclasses import dataclass
from typing import Final

import trio

from daemon.peering.frame_stream import FrameStream
from daemon.peering.peer_tls import PeerTls, Proof, TlsStream
from overlay.identity import NodeId
from overlay.records import Address

#: Instead of an answer: ask again, over another connection.
NOT_TAKEN: Final = b""
#: For how long a connection is kept after an answer, by the one who asked.
KEPT_S: Final = 20.0
#: How many are kept to one peer, and in all.
MAX_KEPT_EACH: Final = 4
MAX_KEPT: Final = 64

#: Where it leads, and to whom; to whoever is there if that is empty.
_Key = tuple[Address, str]


@dataclass(slots=True)
class Connection:
    """A connection to a member of the cluster, whose key and certificate it has shown."""

    key: _Key
    plain: trio.SocketStream
    stream: TlsStream
    frames: FrameStream
    proof: Proof
    kept_at_s: float = 0.0
    is_kept: bool = False

    @property
    def peer_id(self) -> NodeId:
        return self.proof.node_id

    def close(self) -> None:
        self.plain.socket.close()

    def is_silent(self) -> bool:
        """Whether its other end has neither closed it nor said anything."""
        poll = select.poll()
        poll.register(self.plain.socket.fileno(), select.POLLIN | select.POLLRDHUP)
        return not poll.poll(0)


class Connections:
    """Opens them, and keeps those that may be used again."""

    def __init__(self, tls: PeerTls) -> None:
        self._tls = tls
        #: The one kept for longest first.
        self._kept: deque[Connection] = deque()
        self._runs = False

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._kept)

    async def open(
        self, address: Address, target: str, max_frame_bytes: int, cluster_id: bytes | None = None
    ) -> Connection:
        """A new one. Errors as of :meth:`PeerTls.connect`, and OSError if nobody is there."""
        plain = await trio.open_tcp_stream(*address)
        try:
            stream, proof = await self._tls.connect(plain, target or None, cluster_id)
        except BaseException:
            plain.socket.close()
            raise
        return Connection((address, target), plain, stream, FrameStream(stream, max_frame_bytes), proof)

    def take(self, address: Address, target: str) -> Connection | None:
        """One that was kept, and is as good as a new one."""
        self._close_old()
        for connection in reversed(self._kept):
            if connection.key == (address, target):
                self._kept.remove(connection)
                if connection.is_silent() and self._tls.holds(connection.proof):
                    return connection
                connection.close()
                return self.take(address, target)
        return None

    def keep(self, connection: Connection) -> None:
        """Its request was answered, and nothing is under way on it. None is kept if nobody would close it: see
        :meth:`run`."""
        if not self._runs:
            return
        alike = [kept for kept in self._kept if kept.key == connection.key]
        surplus = alike[0] if len(alike) >= MAX_KEPT_EACH else self._kept[0] if len(self._kept) >= MAX_KEPT else None
        if surplus is not None:
            self._kept.remove(surplus)
            surplus.close()
        connection.kept_at_s, connection.is_kept = trio.current_time(), True
        self._kept.append(connection)

    def _close_old(self) -> None:
        while self._kept and trio.current_time() - self._kept[0].kept_at_s > KEPT_S:
            self._kept.popleft().close()

    async def run(self) -> None:
        """Close those that nobody uses any more, and all at the end."""
        self._runs = True
        try:
            while True:
                await trio.sleep(KEPT_S / 2.0)
                self._close_old()
        finally:
            self._runs = False
            while self._kept:
                self._kept.popleft().close()
