"""Readers that pull through another one, over real links without Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from sbon.engine_messages import FlightAddress
from spark_bridge import flight_links, puller
from spark_bridge.flight_links import LinkServer
from spark_bridge.link_log import LinkLog
from spark_bridge.link_service import LinkService, Served
from spark_bridge.port_inbox import PortInbox
from spark_bridge.puller import Puller, Target
from spark_bridge.relay import NotHereError, Relay

PATIENCE_S = 30.0


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Producer:
    """A fragment that grows; ``sent`` counts the segments that have left it."""

    def __init__(self, folder: Path) -> None:
        self.log = LinkLog(folder, "f", ("near:in0", "far:in0"), 1 << 20)
        self.stopping = threading.Event()
        self.size = self.sent = 0

    def grow(self) -> None:
        rows = pa.table({"value": [float(self.size)] * 10})
        self.log.append(1, self.size, rows, event_time=None, watermark_ms=None, end_of_stream=False)
        self.size += 1

    def served(self, fragment_id: str) -> Served | None:
        producer = self

        class Counted:
            def segments_from(self, batch_id: int, wait_s: float, stopping: threading.Event) -> Iterator[bytes]:
                for data in producer.log.segments_from(batch_id, wait_s, stopping):
                    producer.sent += 1
                    yield data

            acknowledge = staticmethod(self.log.acknowledge)

        return Served(Counted(), 1, self.stopping)  # type: ignore[arg-type]

    def relayed(self, fragment_id: str) -> Relay | None:
        return None


class Reader:
    """One that pulls the producer, and an engine beside it that serves what it relays."""

    def __init__(self, folder: Path, name: str) -> None:
        self.inbox = PortInbox(folder / f"{name}.sqlite", ("f",))
        wanted = threading.Event()
        wanted.set()
        self.lost: list[str] = []
        read_for_good = self.inbox.end
        self.puller = Puller(self.inbox, "f", f"{name}:in0", wanted, self.lost.append, lambda: read_for_good() - 1)
        self.server = LinkServer("127.0.0.1", LinkService(self))

    def served(self, fragment_id: str) -> Served | None:
        return None

    def relayed(self, fragment_id: str) -> Relay | None:
        return self.puller.relay if fragment_id == "f" else None

    def has(self, count: int) -> bool:
        return self.inbox.next_batch("f") == count


@pytest.fixture
def producer(tmp_path: Path) -> Producer:
    made = Producer(tmp_path / "log")
    for _ in range(3):
        made.grow()
    return made


@contextmanager
def readers(producer: Producer, folder: Path) -> Iterator[tuple[FlightAddress, Reader, Reader]]:
    near, far = Reader(folder, "near"), Reader(folder, "far")
    with LinkServer("127.0.0.1", LinkService(producer)) as server, near.server, far.server:
        try:
            yield server.address, near, far
        finally:
            near.puller.stop()
            far.puller.stop()
            producer.stopping.set()
            producer.log.wake()


def grow_until(producer: Producer, all_have: Callable[[int], bool], is_so: Callable[[int], bool]) -> None:
    """Segment by segment; ``is_so(how many left the producer for the latest one)``, three times in a row."""
    deadline, in_a_row = time.monotonic() + PATIENCE_S, 0
    while in_a_row < 3:
        assert time.monotonic() < deadline
        before = producer.sent
        producer.grow()
        wait_for(lambda: all_have(producer.size))
        in_a_row = in_a_row + 1 if is_so(producer.sent - before) else 0


def test_what_two_read_leaves_the_producer_once_and_a_relay_that_ends_costs_nothing(
    producer: Producer, tmp_path: Path
) -> None:
    with readers(producer, tmp_path) as (address, near, far):
        near.puller.point_at(Target(address, 1))
        far.puller.point_at(Target(address, 1, near.server.address))
        wait_for(lambda: far.has(3))
        grow_until(producer, lambda size: near.has(size) and far.has(size), lambda sent: sent == 1)
        wait_for(lambda: producer.log._cursors["far:in0"] >= producer.size - 2)  # it acknowledges where the log is

        near.puller.stop()
        grow_until(producer, far.has, lambda sent: sent == 1)
        assert far.lost == []
        bodies = far.inbox.bodies(0, producer.size)
        assert [pa.ipc.open_stream(body).read_all()["value"][0].as_py() for body in bodies] == [*range(producer.size)]


def test_readers_that_are_to_pull_through_each_other_pull_the_producer(producer: Producer, tmp_path: Path) -> None:
    with readers(producer, tmp_path) as (address, near, far):
        near.puller.point_at(Target(address, 1, far.server.address))
        far.puller.point_at(Target(address, 1, near.server.address))
        grow_until(producer, lambda size: near.has(size) and far.has(size), lambda sent: sent == 2)


def test_a_relay_that_is_not_there_or_does_not_know_the_reader_is_passed_by(producer: Producer, tmp_path: Path) -> None:
    with readers(producer, tmp_path) as (address, near, far):
        near.puller.point_at(Target(address, 1))
        far.puller.point_at(Target(address, 1, near.server.address._replace(secret=b"another")))
        wait_for(lambda: far.has(3))
        for wrong in ({"port": 1}, {"certificate": b"nonsense"}):
            far.puller.point_at(Target(address, 1, near.server.address._replace(**wrong)))
            producer.grow()
            wait_for(lambda: far.has(producer.size))
        assert far.lost == []


def test_a_relay_that_hangs_is_given_up(producer: Producer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_links, "_RELAY_CALL_S", 0.2)
    ending = threading.Event()

    def hang(_: str) -> None:
        ending.wait()

    with readers(producer, tmp_path) as (address, near, far):
        monkeypatch.setattr(near, "relayed", hang)
        far.puller.point_at(Target(address, 1, near.server.address))
        wait_for(lambda: far.has(3))
        ending.set()


def test_who_hears_nothing_from_a_relay_asks_the_producer(
    producer: Producer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(puller, "_RELAY_SILENCE_S", 0.0)
    with readers(producer, tmp_path) as (address, near, far):
        near.puller.point_at(Target(address._replace(port=1), 1))
        far.puller.point_at(Target(address, 1, near.server.address))
        wait_for(lambda: far.has(3))
        assert near.has(0)


def test_a_relay_keeps_the_newest_segments_while_somebody_asks() -> None:
    relay = Relay(max_bytes=20)
    relay.keep(7, bytes(10))
    assert not relay._segments, "nobody has asked yet"
    with pytest.raises(NotHereError):
        list(relay.segments_from(7, 0.0))
    assert list(relay.segments_from(8, 0.0)) == []
    for batch_id in (8, 9, 10):
        relay.keep(batch_id, bytes([batch_id]) * 10)
    assert [data[0] for data in relay.segments_from(9, 0.0)] == [9, 10]
    with pytest.raises(NotHereError):
        list(relay.segments_from(8, 0.0))
    relay.close()
    with pytest.raises(NotHereError):
        list(relay.segments_from(11, 0.0))
