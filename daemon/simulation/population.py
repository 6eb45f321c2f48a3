"""Who lives where and since when: starting, joining, leaving, crashing, coming back, and being replaced."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Protocol

from daemon.simulation.faults import Conditions
from daemon.simulation.latency import Network
from daemon.simulation.nodes import Identity, Kind, make_identity, make_node
from daemon.simulation.world import World
from overlay.config import OverlayConfig
from overlay.events import Event, Joined, JoinFailed
from overlay.identity import NodeId
from overlay.node import Overlay
from overlay.packing import keep_unpacked

#: Who could not join tries another member after this.
REJOIN_S = 1.0

MakeKind = Callable[[int], Kind]


class Watcher(Protocol):
    """Told of what happens, in virtual seconds."""

    def happened(self, endpoint: int, event: Event, at: float) -> None: ...

    def broke(self, what: str, at: float) -> None: ...


#: A newcomer asks so many to be let in.
ENTRIES = 3
#: So many different records of each node are about at a time: while it settles it tells a new one every few seconds.
RECORDS_ABOUT = 4


class Population:
    """The nodes of one run. It is the world's observer, and hands everything on to ``watchers``."""

    def __init__(self, seed: int, network: Network, conditions: Conditions, config: OverlayConfig) -> None:
        self.seed = seed
        self.config = config
        self.world = World(network, conditions, seed, self)
        self.watchers: list[Watcher] = []
        #: Which class of node runs at an endpoint; liars are of another one.
        self.kind_of: MakeKind = lambda endpoint: Overlay
        self.identities: list[Identity] = []
        self.boot_ids: list[int] = []
        #: When the node that runs (or last ran) there was started, joined for the first time, and was gone; else inf.
        self.started_at: list[float] = []
        self.joined_at: list[float] = []
        self.gone_at: list[float] = []
        self.liars: set[int] = set()
        self.rng = random.Random(f"{seed}/population")
        self.unjoined: set[int] = set()
        self._endpoint_of_id: dict[NodeId, int] = {}
        self._live: dict[int, None] = {}

    # --- reading

    def live(self) -> list[int]:
        """Endpoints at which a node runs that has not left, oldest first."""
        return list(self._live)

    def honest(self) -> list[int]:
        return [endpoint for endpoint in self._live if endpoint not in self.liars]

    def is_live(self, endpoint: int) -> bool:
        return endpoint in self._live

    def node(self, endpoint: int) -> Overlay:
        node = self.world.nodes[endpoint]
        assert node is not None
        return node

    def endpoint_of(self, node_id: NodeId) -> int | None:
        """None for an id that nobody ever had: a liar's invention."""
        return self._endpoint_of_id.get(node_id)

    # --- life

    def add(self, like: int | None = None, *, rate: float = 1.0, offset_s: float = 0.0) -> int:
        """An endpoint with an identity; nobody runs there yet."""
        endpoint = self.world.add_endpoint(like, rate=rate, offset_s=offset_s)
        keep_unpacked(RECORDS_ABOUT * (endpoint + 1))
        identity = make_identity(self.seed, endpoint, self.world.addresses[endpoint])
        self.identities.append(identity)
        self._endpoint_of_id[identity.node_id] = endpoint
        self.boot_ids.append(0)
        for times in (self.started_at, self.joined_at, self.gone_at):
            times.append(math.inf)
        return endpoint

    def start(self, endpoint: int) -> None:
        """Start a node there, anew if one ran there before, and let it join."""
        world = self.world
        self.boot_ids[endpoint] = max(self.boot_ids[endpoint] + 1, int(world.now * 1000.0))
        node = make_node(
            self.identities[endpoint],
            self.boot_ids[endpoint],
            self.config,
            self.seed,
            world.clock(endpoint),
            self.kind_of(endpoint),
        )
        self.started_at[endpoint], self.gone_at[endpoint] = world.now, math.inf
        world.start(endpoint, node)
        self._live[endpoint] = None
        self.unjoined.add(endpoint)
        self._join(endpoint)

    def _join(self, endpoint: int) -> None:
        """Through some live nodes, as a list of known hosts would give them: one of them may be a liar."""
        if endpoint not in self.unjoined or not self.is_live(endpoint):
            return
        sample = dict.fromkeys(self._sample(2 * ENTRIES))
        others = [other for other in sample if other != endpoint and other not in self.unjoined][:ENTRIES]
        others = others or [other for other in self._live if other != endpoint][:1]
        if others:
            node = self.node(endpoint)
            for other in others:
                node.join(self.world.addresses[other], self.world.clock(endpoint))
            self.world.settle(endpoint)
        else:
            self._joined(endpoint)  # the first of all

    def _sample(self, count: int) -> list[int]:
        live = self._live
        if len(live) <= count:
            return list(live)
        keys = list(live)
        return [keys[self.rng.randrange(len(keys))] for _ in range(count)]

    def _joined(self, endpoint: int) -> None:
        self.unjoined.discard(endpoint)
        if self.joined_at[endpoint] == math.inf:
            self.joined_at[endpoint] = self.world.now

    def crash(self, endpoint: int) -> None:
        """Without a word."""
        if self.is_live(endpoint):
            self._gone(endpoint)

    def leave(self, endpoint: int) -> None:
        """With a goodbye; the process ends right after it."""
        if self.is_live(endpoint):
            self.node(endpoint).leave(self.world.clock(endpoint))
            self.world.settle(endpoint)
            self._gone(endpoint)

    def _gone(self, endpoint: int) -> None:
        self.world.stop(endpoint)
        del self._live[endpoint]
        self.unjoined.discard(endpoint)
        self.gone_at[endpoint] = self.world.now

    def replace(self, endpoint: int) -> int:
        """The node crashes, and another one, with an identity of its own, starts at the same place."""
        self.crash(endpoint)
        newcomer = self.add(like=endpoint)
        if endpoint in self.liars:
            self.liars.add(newcomer)
        self.start(newcomer)
        return newcomer

    # --- observing

    def happened(self, endpoint: int, event: Event, at: float) -> None:
        if isinstance(event, Joined):
            self._joined(endpoint)
        elif isinstance(event, JoinFailed):
            self.world.call_at(at + REJOIN_S, lambda: self._join(endpoint))
        for watcher in self.watchers:
            watcher.happened(endpoint, event, at)

    def broke(self, what: str, at: float) -> None:
        for watcher in self.watchers:
            watcher.broke(what, at)
