from __future__ import annotations

import itertools
import re
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daemon.control import server as control_module
from daemon.control.client import ControlClient
from daemon.control.messages import (
    CONTROL_VERSION,
    REPLIES,
    Answer,
    Cancel,
    Done,
    Event,
    Explain,
    Join,
    Nodes,
    NodesReply,
    Request,
    Status,
    Watch,
)
from daemon.control.server import Control, open_socket
from daemon.events import Events
from daemon.peering.frame_stream import FrameStream
from sbon.errors import QueryError, SbonError, UnavailableError
from sbon.frames import MAX_FRAME_BYTES, FrameReader
from tests.daemon.real_daemons import PATIENCE_S, until


async def answer_cancel(request: Cancel) -> Done:
    return Done(f"cancelled {request.query}")


async def refuse_explain(request: Explain) -> Done:
    raise QueryError(f"no query {request.query}: see `sbon queries`")


async def break_down(request: Nodes) -> NodesReply:
    raise KeyError("a bug")


@asynccontextmanager
async def serving(path: Path) -> AsyncIterator[Control]:
    control = Control(path)
    control.handle(Cancel, answer_cancel)
    control.handle(Explain, refuse_explain)
    control.handle(Nodes, break_down)
    async with trio.open_nursery() as nursery:
        await nursery.start(control.serve)
        yield control
        nursery.cancel_scope.cancel()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "control.sock"


async def raw_answer(frames: FrameStream) -> Answer:
    body = await frames.receive()
    assert body is not None
    return msgspec.msgpack.decode(body, type=Answer)


def call(request: Any, version: int = CONTROL_VERSION) -> bytes:
    return msgspec.msgpack.encode({"version": version, "id": 7, "request": request})


async def test_round_trip(path: Path) -> None:
    async with serving(path) as control, ControlClient.open(path) as client:
        for query in ("q1", "q2"):
            assert await client.request(Cancel(query)) == Done(f"cancelled {query}")
        assert control.counters["served"] == 2


async def test_errors_keep_their_class(path: Path) -> None:
    async with serving(path) as control, ControlClient.open(path) as client:
        with pytest.raises(QueryError, match="no query q1: see"):
            await client.request(Explain("q1"))
        assert control.counters["refused"] == 1


async def test_a_bug_in_a_handler_is_told_and_does_not_stop_the_daemon(path: Path) -> None:
    async with serving(path), ControlClient.open(path) as client:
        with pytest.raises(SbonError, match="see its log"):
            await client.request(Nodes())
        assert await client.request(Cancel("q1")) == Done("cancelled q1")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x91" * 5000,
        msgspec.msgpack.encode([1, 2]),
        msgspec.msgpack.encode({"version": 1, "id": 7}),
        call({"type": "nonsense"}),
        call({"type": "cancel"}),
        call({"type": "cancel", "query": 3}),
        call(None),
    ],
)
async def test_malformed_calls_are_counted_and_the_connection_goes_on(path: Path, body: bytes) -> None:
    async with serving(path) as control, await trio.open_unix_socket(bytes(path)) as stream:
        frames = FrameStream(stream)
        await frames.send(body)
        assert (await raw_answer(frames)).error_kind == "RemoteProtocolError"
        assert control.counters["dropped.malformed"] == 1
        await frames.send(call({"type": "cancel", "query": "q1", "a key of tomorrow": 1}))
        assert (await raw_answer(frames)).error is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
@given(bodies=st.lists(st.binary(max_size=200), max_size=5))
def test_no_bytes_stop_the_daemon(tmp_path_factory: pytest.TempPathFactory, bodies: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("socket") / "s"

    async def send() -> None:
        async with serving(path):
            async with await trio.open_unix_socket(bytes(path)) as stream:
                frames = FrameStream(stream)
                for body in bodies:
                    await frames.send(body)
                    await raw_answer(frames)
            async with ControlClient.open(path) as client:
                await client.request(Cancel("q1"))

    trio.run(send)


async def test_a_frame_that_is_too_long_is_told_and_ends_the_connection(path: Path) -> None:
    async with serving(path) as control, await trio.open_unix_socket(bytes(path)) as stream:
        await stream.send_all(b"\xff\xff\xff\xff")
        frames = FrameStream(stream)
        assert "over the limit" in ((await raw_answer(frames)).error or "")
        assert await frames.receive() is None
        assert control.counters["dropped.too_long"] == 1


async def test_another_version_is_reported(path: Path) -> None:
    async with serving(path), await trio.open_unix_socket(bytes(path)) as stream:
        frames = FrameStream(stream)
        await frames.send(call({"type": "status"}, version=99))
        answer = await raw_answer(frames)
        assert answer.id == 7
        assert "version 99" in (answer.error or "")


async def test_idle_clients_are_disconnected(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_module, "IDLE_TIMEOUT_S", 0.02)
    async with serving(path) as control, await trio.open_unix_socket(bytes(path)) as stream:
        await stream.send_all(b"\0\0")
        assert await stream.receive_some() == b""
        assert control.counters["dropped.slow"] == 1


async def test_clients_are_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_module, "MAX_CLIENTS", 1)
    async with serving(path) as control, ControlClient.open(path) as client:
        await client.request(Cancel("q1"))
        async with await trio.open_unix_socket(bytes(path)) as second:
            assert await second.receive_some() == b""
        assert control.counters["dropped.too_many"] == 1


# --- events


async def test_events_are_followed_until_the_client_goes(path: Path) -> None:
    events = Events("a")
    events.publish("before", peer="b")
    async with serving(path) as control:
        control.stream(Watch, lambda request: events.follow(from_start=True, forever=request.follow))
        async with ControlClient.open(path) as client, aclosing(client.watch(follow=True)) as told:
            first = await anext(told)
            assert (first.kind, first.fields) == ("before", {"peer": "b"})
            events.publish("after")
            assert (await anext(told)).kind == "after"
        await until(lambda: control.counters["served"] == 1)


async def test_a_follower_that_does_not_read_is_disconnected(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing comes after what is half written."""
    monkeypatch.setattr(control_module, "SEND_TIMEOUT_S", 0.05)

    async def endless(request: Watch) -> AsyncIterator[Event]:
        for number in itertools.count():
            yield Event(number, 0.0, "a", "x" * 100_000)

    async with serving(path) as control, await trio.open_unix_socket(bytes(path)) as stream:
        control.stream(Watch, endless)
        await FrameStream(stream).send(call({"type": "events", "follow": True}))
        await until(lambda: control.counters["dropped.slow"] == 1)
        told = b""
        while data := await stream.receive_some():
            told += data
        reader = FrameReader()
        assert all(not msgspec.msgpack.decode(body, type=Answer).last for body in reader.receive(told))
        assert reader.unfinished
    assert control.counters["served"] == 0
    assert not caplog.records


async def test_a_follower_that_asks_for_more_is_disconnected(path: Path) -> None:
    events = Events("a")
    async with serving(path) as control, await trio.open_unix_socket(bytes(path)) as stream:
        control.stream(Watch, lambda request: events.follow(from_start=True, forever=request.follow))
        frames = FrameStream(stream)
        await frames.send(call({"type": "events", "follow": True}))
        events.publish("one")
        assert not (await raw_answer(frames)).last
        await frames.send(call({"type": "cancel", "query": "q1"}))
        with trio.fail_after(PATIENCE_S):
            assert await frames.receive() is None


@pytest.mark.parametrize(
    ("failure", "kind"), [(QueryError("see there"), "QueryError"), (KeyError("a bug"), "InternalError")]
)
async def test_a_stream_that_fails_is_told_as_a_request_is(path: Path, failure: Exception, kind: str) -> None:
    async def failing(request: Watch) -> AsyncIterator[Event]:
        yield Event(0, 0.0, "a", "first")
        raise failure

    async with serving(path) as control, await trio.open_unix_socket(bytes(path)) as stream:
        control.stream(Watch, failing)
        frames = FrameStream(stream)
        await frames.send(call({"type": "events"}))
        assert [(await raw_answer(frames)).error_kind for _ in range(2)] == [None, kind]


async def test_an_answer_that_is_too_long_does_not_stop_the_daemon(path: Path) -> None:
    async def answer(request: Cancel) -> Done:
        return Done("x" * MAX_FRAME_BYTES if request.query == "all" else "")

    async with serving(path) as control:
        control.handle(Cancel, answer)
        async with ControlClient.open(path) as client:
            with pytest.raises(UnavailableError, match="ended meanwhile"):
                await client.request(Cancel("all"))
        async with ControlClient.open(path) as client:
            assert await client.request(Cancel("q1")) == Done("")
    assert control.counters["dropped.failed"] == 1


async def test_a_frame_that_ends_too_early_is_not_counted_as_too_long(path: Path) -> None:
    async with serving(path) as control, await trio.open_unix_socket(bytes(path)) as stream:
        await stream.send_all(b"\0\0\0")
        await stream.send_eof()
        await until(lambda: control.counters["dropped.malformed"] == 1)
    assert control.counters["dropped.too_long"] == 0


async def test_events_without_follow_end(path: Path) -> None:
    events = Events("a")
    events.publish("one")
    async with serving(path) as control:
        control.stream(Watch, lambda request: events.follow(from_start=True, forever=request.follow))
        async with ControlClient.open(path) as client, aclosing(client.watch()) as told:
            assert [event.kind async for event in told] == ["one"]
        async with ControlClient.open(path) as client:
            assert await client.request(Cancel("q1")) == Done("cancelled q1")


# --- the socket


async def test_the_socket_is_for_owner_and_group(path: Path) -> None:
    async with serving(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
    assert not path.exists()


async def test_a_socket_in_use_is_left_alone(path: Path) -> None:
    async with serving(path):
        with pytest.raises(SbonError, match="another daemon answers at"):
            open_socket(path)
        async with ControlClient.open(path) as client:
            await client.request(Cancel("q1"))


def test_a_stale_socket_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(bytes(path))
    open_socket(path).close()


def test_a_file_in_the_place_of_the_socket_is_left_alone(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(SbonError, match="is not a socket"):
        open_socket(path)
    assert path.read_text() == "precious"


async def test_no_daemon(path: Path) -> None:
    with pytest.raises(UnavailableError, match="no daemon listens"):
        async with ControlClient.open(path):
            pass
    open_socket(path).close()
    with pytest.raises(UnavailableError, match="does not run any more"):
        async with ControlClient.open(path):
            pass


async def test_a_daemon_that_ends_while_it_is_asked(path: Path) -> None:
    with open_socket(path) as server:

        async def accept_and_close() -> None:
            accepted, _ = await trio.socket.from_stdlib_socket(server).accept()
            accepted.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept_and_close)
            with pytest.raises(UnavailableError, match="ended meanwhile"):
                async with ControlClient.open(path) as client:
                    await client.request(Status())


def test_every_request_has_a_reply_type() -> None:
    assert REPLIES[Join] is Done
    assert REPLIES[Watch] is Event
    assert set(REPLIES) == set(Request.__args__)


# --- the documentation


async def test_the_example_of_the_documentation_works(path: Path, tmp_path: Path) -> None:
    """With a stand-in for the msgpack package, which is not a dependency of ours."""
    text = (Path(__file__).parents[2] / "docs" / "control-socket.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 1
    assert len([line for line in blocks[0].splitlines() if line]) <= 15
    (tmp_path / "msgpack.py").write_text("from msgspec.msgpack import encode as packb, decode as unpackb\n")
    (tmp_path / "example.py").write_text(blocks[0])
    async with serving(path) as control:
        asked: list[str] = []
        reply = {"coordinate": "here", "nodes": "these"}

        def note(kind: str) -> Callable[[Any], Any]:
            async def answer(request: Any) -> Any:
                asked.append(kind)
                return reply

            return answer

        for kind in REPLIES:
            if kind.__name__ in ("Status", "Nearest"):
                control.handle(kind, note(kind.__name__))
        done = await trio.run_process(
            [sys.executable, "example.py", str(path)], cwd=tmp_path, capture_stdout=True, stderr=subprocess.STDOUT
        )
    assert done.stdout.decode().split() == ["here", "these"]
    assert asked == ["Status", "Nearest"]
