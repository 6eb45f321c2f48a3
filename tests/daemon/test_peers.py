"""Paths between nodes that are no neighbours: real requests over loopback, with an overlay that knows nobody."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from daemon.peering import peers as peers_module
from daemon.peering.emulation import Emulation
from daemon.peering.host_messages import Latencies, MeasureLatency
from daemon.peering.peer_tls import PeerTls
from daemon.peering.peers import MAX_MET, MAX_PINGED, Peers
from daemon.peering.requests import PeerRequests
from overlay.certificates import Trust
from overlay.records import NodeRecord
from sbon.coordinate import Coordinate
from sbon.errors import SbonError, UnavailableError
from tests.daemon.fake_network import FakeNetwork
from tests.overlay.session_nodes import identity

ASKER, CANDIDATE, END = identity(1), identity(2), identity(3)
RTT_MS = 60.0


def record(who: Any, port: int = 1) -> NodeRecord:
    return NodeRecord(who.node_id, f"n{port}", "127.0.0.1", port, 1, Coordinate((3.0, 4.0), 0.0, 0.1))


class FakeOverlay:
    """A node that knows its neighbours, and what paths to them cost."""

    def __init__(self, own: NodeRecord, measured_ms: dict[str, float]) -> None:
        self.record = own
        self.coordinate = own.coordinate
        self.measured_ms = measured_ms

    def members(self) -> list[NodeRecord]:
        return []

    def find(self, name_or_id: str) -> NodeRecord | None:
        return self.record if name_or_id == self.record.node_id else None

    def measured_rtt_ms(self, node_id: str) -> float | None:
        return self.measured_ms.get(node_id)

    def measured_paths(self) -> list[tuple[str, Coordinate, float]]:
        return []


class FakeShell:
    def probe_soon(self, node_id: str) -> None:
        raise AssertionError("a node that is no neighbour cannot be probed")

    async def search(self, objective: Any, k: int) -> Any:
        raise NotImplementedError


@asynccontextmanager
async def nodes(tmp_path: Path, known_ms: float | None = None) -> AsyncIterator[tuple[Peers, Peers, Peers]]:
    """Three nodes. To and from the end everything takes RTT_MS; the candidate believes in ``known_ms``."""
    async with trio.open_nursery() as nursery:
        listeners = [await trio.open_tcp_listeners(0, host="127.0.0.1") for _ in range(3)]
        ports = [some[0].socket.getsockname()[1] for some in listeners]
        started = []
        for who, port, some in zip((ASKER, CANDIDATE, END), ports, listeners, strict=True):
            emulation = Emulation({f"127.0.0.1:{ports[2]}": RTT_MS}, list)
            tls = PeerTls(who, Trust(is_open=True), lambda: 0.0)
            requests = PeerRequests(tls, 1, tmp_path / str(port), 2, emulation)
            measured_ms = {} if known_ms is None or who is not CANDIDATE else {END.node_id: known_ms}
            started.append(Peers(FakeOverlay(record(who, port), measured_ms), requests, FakeShell()))
            await nursery.start(requests.serve, some)
        yield started[0], started[1], started[2]
        nursery.cancel_scope.cancel()


async def test_a_candidate_measures_an_end_that_is_no_neighbour(tmp_path: Path) -> None:
    pair = CANDIDATE.node_id, END.node_id
    async with nodes(tmp_path) as (asker, candidate, end):
        assert await asker.measure([pair]) == {}  # nobody has told who these are
        asker.meet(candidate.overlay.record)
        assert await asker.measure([pair]) == {}
        asker.meet(end.overlay.record)
        measured = await asker.measure([pair])
        assert measured[pair] >= RTT_MS


async def test_what_is_known_is_told_unless_it_is_to_be_measured_afresh(tmp_path: Path) -> None:
    pair = CANDIDATE.node_id, END.node_id
    async with nodes(tmp_path, known_ms=1.5) as (asker, candidate, end):
        asker.meet(candidate.overlay.record)
        asker.meet(end.overlay.record)
        assert await asker.measure([pair]) == {pair: 1.5}
        assert (await asker.measure([pair], afresh=True))[pair] >= RTT_MS


async def test_an_end_that_is_gone_is_not_measured(tmp_path: Path) -> None:
    async with nodes(tmp_path) as (asker, candidate, _):
        asker.meet(candidate.overlay.record)
        asker.meet(record(END, 1))  # nobody listens there
        assert await asker.measure([(CANDIDATE.node_id, END.node_id)]) == {}


async def test_nodes_that_were_met_have_places_and_are_forgotten_in_time(tmp_path: Path) -> None:
    async with nodes(tmp_path) as (asker, _, end):
        asker.meet(end.overlay.record)
        view = asker.cost_view({})
        assert view.coordinate_of(END.node_id) == end.overlay.record.coordinate
        for number in range(MAX_MET):
            asker.meet(msgspec.structs.replace(end.overlay.record, node_id=f"{number:064x}"))
        assert asker.known(END.node_id) is None
        with pytest.raises(UnavailableError, match="not in the overlay"):
            asker.record(END.node_id)


async def test_round_trips_that_cannot_be_or_were_not_asked_for_are_not_taken() -> None:
    network = FakeNetwork()
    asker, liar = network.add("asker"), network.add("liar")
    told = {"a": math.nan, "b": math.inf, "c": -1.0, "d": 5.0, "e": 0.0, "not asked for": 5.0}

    async def answer(message: MeasureLatency, sender: str) -> Latencies:
        return Latencies(told)

    liar.handle(MeasureLatency, answer)
    pairs = [("liar", target) for target in "abcde"]
    assert await asker.measure(pairs) == {("liar", "d"): 5.0, ("liar", "e"): 0.0}


async def test_paths_are_measured_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """However many there are, and whoever asks: the addresses are what others say."""
    network = FakeNetwork()
    peers = network.add("asked")
    connecting, most = 0, 0

    async def connect_ms(node: NodeRecord) -> float:
        nonlocal connecting, most
        connecting += 1
        most = max(most, connecting)
        await trio.sleep(0.001)
        connecting -= 1
        return 1.0

    monkeypatch.setattr(network.nodes["asked"], "connect_ms", connect_ms, raising=False)
    ids = tuple(f"{number:064x}" for number in range(200))
    message = MeasureLatency(ids, tuple(msgspec.structs.replace(record(END), node_id=each) for each in ids), True)
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(peers.ask, "asked", message, Latencies)
    assert most == MAX_PINGED


# --- asking


async def test_who_asks_nobody_is_told() -> None:
    peers = FakeNetwork().add("asker")
    with pytest.raises(UnavailableError, match="nobody to ask"):
        await peers.ask_any((), MeasureLatency(()), Latencies)


async def test_a_bug_in_a_handler_is_told_to_oneself_as_to_others() -> None:
    peers = FakeNetwork().add("asker")

    async def broken(message: MeasureLatency, sender: str) -> Latencies:
        raise OSError("a disk is full")

    peers.handle(MeasureLatency, broken)
    with pytest.raises(SbonError, match="see that node's log"):
        await peers.ask("asker", MeasureLatency(()), Latencies)
    assert (await peers.gather(MeasureLatency(()), Latencies, ["asker"])).silent == ("asker",)


async def test_who_answered_last_is_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "MAX_ANSWERED", 3)
    network = FakeNetwork()
    peers = network.add("asker")
    for number in range(10):
        network.add(f"n{number}")
        await peers.ask_any((f"n{number}",), MeasureLatency(()), Latencies)
    assert list(peers._answered_last) == [("n7",), ("n8",), ("n9",)]
