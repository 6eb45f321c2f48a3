"""What members tell about themselves and about each other.

A record belongs to the node that it describes: only that node changes its content, and counts ``incarnation`` up when
it does. Others hand it on as it is; of two, the one of the higher version counts. A process that starts again has a
higher ``boot_id`` under the same id, which outdates everything that its predecessor said. ``status`` does not travel:
it is each node's own opinion of a neighbour (:mod:`overlay.checks`), and no rumour of a death goes round.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from overlay.identity import NodeId, is_node_id
from sbon.coordinate import Coordinate
from sbon.cost_space import MAX_LOAD
from sbon.errors import RemoteProtocolError

Address = tuple[str, int]

MAX_NAME_BYTES: Final = 64
MAX_HOST_BYTES: Final = 255
MAX_BOOT_ID: Final = 2**60
MAX_INCARNATION: Final = 2**32 - 1
_UNREACHABLE_HOSTS = frozenset({"", "0.0.0.0", "::", "*"})


class Status(StrEnum):
    ALIVE = "alive"
    SUSPECT = "suspect"  # silent, and being checked: any sign of life ends that
    DEAD = "dead"  # silent through a whole check; tried again now and then
    LEFT = "left"  # it said goodbye


class NodeRecord(msgspec.Struct, frozen=True):
    """One member. UDP and TCP use the same ``port``. ``load`` is the load average per core.

    ``boot_id`` grows with every start of the process: the daemon hands in milliseconds since the epoch.
    ``coordinate`` is the advertised one: it changes only when the node has really moved.
    """

    node_id: NodeId
    name: str
    host: str
    port: int
    boot_id: int
    coordinate: Coordinate
    incarnation: int = 0
    load: float = 0.0
    accepts_operators: bool = True
    status: Status = Status.ALIVE

    @property
    def address(self) -> Address:
        return self.host, self.port

    @property
    def version(self) -> tuple[int, int]:
        return self.boot_id, self.incarnation

    def supersedes(self, other: NodeRecord) -> bool:
        """Whether this is the newer word on the same node."""
        return self.version > other.version

    def check(self, dimensions: int) -> None:
        """Raise RemoteProtocolError unless every field can be true, with a coordinate of ``dimensions`` dimensions."""
        if not is_node_id(self.node_id):
            raise RemoteProtocolError("a node id that is not the hash of a key")
        if not self.name.isprintable() or not 0 < len(self.name.encode()) <= MAX_NAME_BYTES:
            raise RemoteProtocolError("a node name that is empty, too long or not printable")
        if not self.host.isprintable() or len(self.host.encode()) > MAX_HOST_BYTES or self.host in _UNREACHABLE_HOSTS:
            raise RemoteProtocolError(f"an address that nobody can reach: {self.host!r}")
        if not 0 < self.port < 65536:
            raise RemoteProtocolError(f"a port of {self.port}")
        if not (0 <= self.boot_id <= MAX_BOOT_ID and 0 <= self.incarnation <= MAX_INCARNATION):
            raise RemoteProtocolError(f"a version of {self.version}")
        if not 0.0 <= self.load <= MAX_LOAD:  # false for NaN, too
            raise RemoteProtocolError(f"a load of {self.load}")
        self.coordinate.check(dimensions)
