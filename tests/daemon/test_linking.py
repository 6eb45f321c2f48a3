"""A fragment's ports and where what feeds them is, with keepers and an engine that are fakes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import trio
import trio.testing

from daemon.events import Events
from daemon.fragments.engine_supervisor import EngineSupervisor
from daemon.fragments.hosted_fragment import FragmentStore, HostedFragment, HostingRecord
from daemon.fragments.linking import MISSING_PAUSE_S, Linking
from daemon.peering.peers import Peers
from daemon.peering.query_messages import Assignment, Locate, Location
from sbon.engine_messages import Command, Connect, FlightAddress
from sbon.errors import UnavailableError
from sbon.fragment import FragmentKind, FragmentSpec, PortSpec

SPEC = FragmentSpec("q1-sink1", "q1", FragmentKind.SINK, "SELECT * FROM in0", (PortSpec("in0", ("q1-join1",)),))
STARTING = Location("q1-join1", 2, "west", None)
UP = Location("q1-join1", 2, "west", FlightAddress("10.0.0.1", 9000))


class FakePeers:
    """The keepers tell ``location``, and nothing if there is none."""

    node_id = "me"

    def __init__(self) -> None:
        self.location: Location | None = STARTING
        self.asked = 0

    def handle(self, *_: object) -> None:
        pass

    def name(self, node_id: str) -> str:
        return node_id

    async def ask_any(self, keepers: tuple[str, ...], message: Locate, _reply: type) -> Location:
        await trio.lowlevel.checkpoint()
        assert (keepers, message) == (("k",), Locate("q1", "q1-join1"))
        self.asked += 1
        if self.location is None:
            raise UnavailableError("no keeper answers")
        return self.location


class FakeSupervisor:
    def __init__(self) -> None:
        self.commands: list[Command] = []

    async def call(self, command: Command) -> None:
        await trio.lowlevel.checkpoint()
        self.commands.append(command)


class BusySupervisor(FakeSupervisor):
    """While it is told the first thing, ``meanwhile`` happens."""

    def __init__(self, meanwhile: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self._meanwhile = meanwhile

    async def call(self, command: Command) -> None:
        await super().call(command)
        if len(self.commands) == 1:
            await self._meanwhile()

    def told(self) -> dict[str, FlightAddress]:
        """Where each port reads in the end."""
        return {command.port: command.address for command in self.commands if isinstance(command, Connect)}


@pytest.fixture
def fragment(tmp_path: Path) -> HostedFragment:
    hosted = HostedFragment(HostingRecord("me", Assignment(SPEC, 1, keepers=("k",), producers=(STARTING,))), tmp_path)
    hosted.up = True
    return hosted


def make_linking(peers: FakePeers, supervisor: FakeSupervisor, folder: Path) -> Linking:
    anything = cast("Any", object)
    return Linking(
        cast("Peers", peers),
        cast("EngineSupervisor", supervisor),
        Events("me"),
        FragmentStore(folder / "fragments", "me"),
        anything,
    )


async def test_a_producer_is_asked_for_that_is_said_to_be_up_to_one_who_is_down(
    tmp_path: Path, fragment: HostedFragment, autojump_clock: trio.testing.MockClock
) -> None:
    """Seen with a keeper that was killed in the end of a move: its sink had no rows for good."""
    peers, supervisor = FakePeers(), FakeSupervisor()
    linking = make_linking(peers, supervisor, tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(linking.run, lambda: [fragment])
        await trio.sleep(3.5 * MISSING_PAUSE_S)
        peers.location = None
        await trio.sleep(MISSING_PAUSE_S)
        assert peers.asked >= 3
        assert not supervisor.commands
        peers.location = UP
        await trio.sleep(2.0 * MISSING_PAUSE_S)
        (command,) = supervisor.commands
        assert isinstance(command, Connect)
        assert (command.fragment_id, command.port, command.address) == ("q1-sink1", "in0", UP.flight_address)
        asked = peers.asked
        await trio.sleep(10.0 * MISSING_PAUSE_S)
        assert peers.asked == asked, "nobody is asked for a link that is there"
        nursery.cancel_scope.cancel()


async def test_nothing_is_asked_for_one_that_does_not_run(
    tmp_path: Path, fragment: HostedFragment, autojump_clock: trio.testing.MockClock
) -> None:
    peers = FakePeers()
    fragment.up = False
    with trio.move_on_after(5.0 * MISSING_PAUSE_S):
        await make_linking(peers, FakeSupervisor(), tmp_path).run(lambda: [fragment])
    assert not peers.asked


@pytest.mark.parametrize("is_up", [False, True])
async def test_a_producer_that_is_found_elsewhere_while_the_engine_is_told_is_read_there(
    tmp_path: Path, fragment: HostedFragment, is_up: bool
) -> None:
    """Seen with a daemon that was killed, and whose engine had another address when it was back: a join that started
    beside its two sources read one of them at the old address for good, as the new one was no news any more."""
    ports = (PortSpec("in0", ("q1-join1",)), PortSpec("in1", ("q1-join1",)))
    assignment = Assignment(msgspec.structs.replace(SPEC, ports=ports), 1, keepers=("k",), producers=(UP,))
    fragment = HostedFragment(HostingRecord("me", assignment), tmp_path)
    fragment.up = is_up
    back = Location("q1-join1", 2, "west", FlightAddress("10.0.0.1", 9001))

    async def found() -> None:
        await linking.repoint(fragment, back)

    supervisor = BusySupervisor(found)
    linking = make_linking(FakePeers(), supervisor, tmp_path)
    await (linking.connect(fragment, "q1-join1") if is_up else linking.connect_all(fragment))
    assert supervisor.told() == dict.fromkeys(("in0", "in1"), back.flight_address)
