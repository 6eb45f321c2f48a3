"""Word of streams, left and found through nodes that search for the same places; the overlay between them is a fake."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import trio
import trio.testing

from daemon.fragments.hosting import Hosting
from daemon.peering.peers import Gathered, Peers
from daemon.queries.catalog import CatalogService
from daemon.queries.notices import LOOK_PERIOD_S, LeaveNotices
from overlay.records import NodeRecord
from overlay.shelves import NOTICE_S, RENEW_S
from sbon.coordinate import Coordinate
from sbon.errors import SbonError, UnavailableError
from sbon.objectives import Objective
from sbon.streams import StreamSpec
from tests.daemon.real_daemons import make_config


class FakePeers:
    """A node that can ask those whom it knows, and finds any by a search. It knows its neighbours on a ring."""

    def __init__(self, nodes: list[FakePeers], number: int) -> None:
        place = Coordinate((20.0 * number - 50.0, 0.0, 0.0, 0.0), 1.0, 0.1)
        record = NodeRecord(f"{number:032x}", f"n{number}", "127.0.0.1", 1000 + number, 1, place)
        self.overlay = SimpleNamespace(record=record, coordinate=place)
        self.nodes = nodes
        self.handlers: dict[type, Callable[[Any, str], Awaitable[msgspec.Struct]]] = {}
        self.is_up = True
        self.met: dict[str, NodeRecord] = {}

    def handle(self, message_type: type, handler: Callable[[Any, str], Awaitable[msgspec.Struct]]) -> None:
        self.handlers[message_type] = handler

    def name(self, node_id: str) -> str:
        return f"n{int(node_id, 16)}"

    def known(self, node_id: str) -> NodeRecord | None:
        return self.met.get(node_id)

    def meet(self, record: NodeRecord) -> None:
        self.met[record.node_id] = record

    async def search(self, objective: Objective, k: int) -> list[NodeRecord]:
        records = [node.overlay.record for node in self.nodes if node.is_up]
        found = sorted(records, key=objective.cost)[:k]
        for record in found:
            self.meet(record)
        return found

    async def ask(self, node_id: str, message: Any, _reply: type, _timeout_s: float = 0.0) -> Any:
        there = self.nodes[int(node_id, 16)]
        near = abs(self.nodes.index(self) - self.nodes.index(there)) <= 1
        if not there.is_up or not (near or node_id in self.met):
            raise UnavailableError(f"{node_id} is not known here")
        return await there.handlers[type(message)](message, self.overlay.record.node_id)

    async def gather(
        self, message: Any, reply: type, node_ids: Iterable[str] | None = None, _timeout_s: float = 0.0
    ) -> Gathered:
        at = self.nodes.index(self)
        if node_ids is None:
            node_ids = [node.overlay.record.node_id for node in self.nodes[max(0, at - 1) : at + 2]]
        answers, silent = {}, []
        for node_id in node_ids:
            try:
                answers[node_id] = await self.ask(node_id, message, reply)
            except SbonError:
                silent.append(self.name(node_id))
        return Gathered(answers, tuple(silent))


def cluster(folder: Path) -> tuple[list[FakePeers], list[CatalogService]]:
    """Eight nodes in a row; the first one has the flights."""
    nodes: list[FakePeers] = []
    nodes += [FakePeers(nodes, number) for number in range(8)]
    nothing_runs = cast(Hosting, SimpleNamespace(fragments=[], status=lambda _: None))
    catalogs = []
    for number, node in enumerate(nodes):
        streams = (StreamSpec("Flights", "replay", "ts TIMESTAMP", "ts"),) if number == 0 else ()
        config = msgspec.structs.replace(make_config(folder, f"n{number}", port=1000 + number), stream=streams)
        catalogs.append(CatalogService(cast(Peers, node), nothing_runs, config))
    return nodes, catalogs


async def test_a_stream_is_found_from_afar_for_as_long_as_its_owner_is_there(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    nodes, catalogs = cluster(tmp_path)
    assert not (await catalogs[7].gather(["flights"])).catalog.streams
    async with trio.open_nursery() as nursery:
        for catalog in catalogs:
            nursery.start_soon(catalog.run)
        await trio.sleep(2 * LOOK_PERIOD_S)
        for names in (["FLIGHTS", "out"], None):
            known = await catalogs[7].gather(names)
            assert {name: owner for name, (_, owner) in known.catalog.streams.items()} == {"Flights": f"{0:032x}"}
            assert known.described(nodes[7].name)[0].node == "n0"
        assert not (await catalogs[7].gather(["weather"])).catalog.streams
        await trio.sleep(3 * NOTICE_S)
        assert (await catalogs[5].gather(["flights"])).catalog.streams, "it is left anew"
        for node in nodes[1:4]:  # holders come and go
            node.is_up = False
        await trio.sleep(RENEW_S + LOOK_PERIOD_S)
        assert (await catalogs[6].gather(["flights"])).catalog.streams
        nodes[0].is_up = False
        assert not (await catalogs[7].gather(["flights"])).catalog.streams
        assert (await catalogs[7].gather(["flights"])).silent == ("n0",)
        nursery.cancel_scope.cancel()


async def test_nobody_leaves_word_of_what_others_have(tmp_path: Path) -> None:
    nodes, _ = cluster(tmp_path)
    with pytest.raises(SbonError, match="of what it has itself"):
        await nodes[3].ask(f"{4:032x}", LeaveNotices(nodes[5].overlay.record, ("flights",)), object)
