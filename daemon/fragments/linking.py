"""The ports of fragments here: what feeds them, where that is, and the engine told of it."""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from daemon.events import Events
from daemon.fragments.engine_supervisor import EngineSupervisor
from daemon.fragments.hosted_fragment import FragmentStore, HostedFragment, Phase
from daemon.peering.host_messages import ConnectTo, SetPorts
from daemon.peering.peers import Peers
from daemon.peering.query_messages import Locate, Location
from daemon.peering.requests import Done
from daemon.peering.subscription_messages import ReadThrough, RelayAt
from sbon.engine_messages import Connect, SetPort
from sbon.errors import SbonError, StaleGenerationError, UnavailableError

log = logging.getLogger("sbon.hosting")

#: Between two questions about one producer.
LOCATE_PAUSE_S = 1.0
#: So often links are looked for that should be there.
MISSING_PAUSE_S = 3.0


class Linking:
    """Points the ports of fragments at their producers."""

    def __init__(
        self,
        peers: Peers,
        supervisor: EngineSupervisor,
        events: Events,
        store: FragmentStore,
        find: Callable[[str], HostedFragment | None],
    ) -> None:
        """``find``: a fragment here by its id."""
        self._peers = peers
        self._supervisor = supervisor
        self._events = events
        self._store = store
        self._find = find
        self._locating: set[tuple[str, str]] = set()
        peers.handle(ConnectTo, self._connect_to)
        peers.handle(SetPorts, self._set_ports)
        peers.handle(ReadThrough, self._read_through)

    async def run(self, fragments: Callable[[], list[HostedFragment]]) -> None:
        """Ask for producers that were not up when they were last heard of. Whoever told that they are may have told us
        while we were down, and an engine does not complain of a link that it never had."""
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(MISSING_PAUSE_S)
                for fragment in fragments():
                    if fragment.up:
                        for producer in fragment.without_address():
                            nursery.start_soon(self.locate, fragment, producer)

    async def _connect_to(self, message: ConnectTo, sender: str) -> Done:
        fragment = self._find(message.consumer)
        if fragment is not None:
            fragment.record.assignment.check_keeper(sender)
            await self.repoint(fragment, message.producer)
        return Done()

    async def _set_ports(self, message: SetPorts, sender: str) -> Done:
        """Written down first: an engine that starts anew does with its ports as the assignment says."""
        new = message.assignment
        fragment = self._find(new.fragment_id)
        if fragment is None or fragment.generation != new.generation:
            raise StaleGenerationError(f"{new.fragment_id} is not here with generation {new.generation}")
        fragment.record.assignment.check_keeper(sender)
        async with fragment.lock:
            if not fragment.up or fragment.record.phase is not Phase.RUNNING:
                raise UnavailableError(f"{new.fragment_id} is starting or moving: try again in some seconds")
            before = fragment.record.assignment
            assignment = before.fed_by(new)
            if assignment is before:
                return Done()
            self._store.write(fragment, Phase.RUNNING, assignment)
            fragment.learn_producers(assignment)
            for port in assignment.spec.ports:
                if port not in before.spec.ports:
                    command = SetPort(fragment.fragment_id, fragment.generation, self._peers.node_id, port)
                    await self._supervisor.call(command)
            for producer in list(fragment.producers):
                await self.connect(fragment, producer)
        self._events.publish("ports-set", fragment=fragment.fragment_id)
        return Done()

    async def _read_through(self, message: ReadThrough, sender: str) -> Done:
        fragment = self._find(message.consumer)
        if fragment is None:
            return Done()
        fragment.record.assignment.check_keeper(sender)
        if message.producer in fragment.producers and fragment.relays.get(message.producer) != message.relay:
            fragment.relays.pop(message.producer, None)
            if message.relay is not None:
                fragment.relays[message.producer] = message.relay
            if fragment.up:
                await self.connect(fragment, message.producer)
        return Done()

    async def locate(self, fragment: HostedFragment, producer: str) -> None:
        """Ask where a producer is now, at most once in a while: the engine goes on complaining until it is found."""
        key = (fragment.fragment_id, producer)
        if key in self._locating:
            return
        self._locating.add(key)
        try:
            assignment = fragment.record.assignment
            location = await self._peers.ask_any(assignment.keepers, Locate(assignment.query_id, producer), Location)
            await self.repoint(fragment, location)
        except SbonError as error:
            log.info("%s cannot find %s: %s", fragment.fragment_id, producer, error)
        await trio.sleep(LOCATE_PAUSE_S)
        self._locating.discard(key)

    async def repoint(self, fragment: HostedFragment, location: Location) -> None:
        if not fragment.is_news(location):
            return
        fragment.producers[location.fragment_id] = location
        if fragment.up:
            await self.connect(fragment, location.fragment_id)

    async def connect_all(self, fragment: HostedFragment) -> None:
        """Of one that is about to be up: also to where producers are found to be meanwhile, as nobody else tells the
        engine before it is."""
        told: dict[str, tuple[Location, RelayAt | None]] = {}
        while told != (known := fragment.feeds()):
            for producer, feed in known.items():
                if told.get(producer) != feed:
                    told[producer] = feed
                    await self.connect(fragment, producer)

    async def connect(self, fragment: HostedFragment, producer: str) -> None:
        """Feed all ports that read this producer from where it is known to be; each from where it is by then: it may
        be elsewhere once the engine has answered."""
        for port in fragment.record.assignment.spec.ports:
            location, relay = fragment.feeds()[producer]
            if location.flight_address is None:
                return  # its host tells when its engine is up; run() asks
            if producer in port.producers:
                await self._supervisor.call(
                    Connect(
                        fragment_id=fragment.fragment_id,
                        generation=fragment.generation,
                        owner=self._peers.node_id,
                        port=port.name,
                        producer=producer,
                        producer_generation=location.generation,
                        address=location.flight_address,
                        through=None if relay is None else relay.flight_address,
                    )
                )
        node = self._peers.name(fragment.producers[producer].node_id)
        self._events.publish("link-connected", fragment=fragment.fragment_id, producer=producer, node=node)
