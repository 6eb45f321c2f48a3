from __future__ import annotations

import errno
import itertools
import threading
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from sbon.errors import RemoteProtocolError
from sbon.fragment import Start
from spark_bridge.durable import write_when_there_is_room
from spark_bridge.link_log import LinkLog, LogFaultError
from spark_bridge.segment import body_table, decode_segment, encode_segment
from spark_bridge.stopped_error import StoppedError

NEVER = threading.Event()


def table(*times_ms: int) -> pa.Table:
    times = pa.array([time * 1000 for time in times_ms], pa.int64()).cast(pa.timestamp("us", "UTC"))
    return pa.table({"ts": times, "value": [float(time) for time in times_ms]})


def append(log: LinkLog, batch_id: int, *times_ms: int, watermark_ms: int | None = None) -> None:
    log.append(1, batch_id, table(*times_ms), event_time="ts", watermark_ms=watermark_ms, end_of_stream=False)


def open_log(folder: Path, *consumers: str, max_bytes: int = 1 << 20) -> LinkLog:
    return LinkLog(folder, "f", consumers, max_bytes)


def test_a_segment_round_trips_and_damage_is_noticed() -> None:
    header, data = encode_segment("f", 3, 7, table(5, 9), event_time="ts", watermark_ms=4, end_of_stream=False)
    decoded, body = decode_segment(data)
    assert decoded == header
    assert (header.rows, header.min_event_time_ms, header.max_event_time_ms) == (2, 5, 9)
    rows = body_table(body)
    assert rows is not None
    assert rows.equals(table(5, 9))
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x40
        try:
            assert decode_segment(bytes(damaged)) != (header, body)
        except RemoteProtocolError:
            continue


def test_a_segment_without_rows_still_carries_the_watermark() -> None:
    header, data = encode_segment("f", 1, 0, table(), event_time="ts", watermark_ms=99, end_of_stream=True)
    decoded, body = decode_segment(data)
    assert (decoded.watermark_ms, decoded.end_of_stream, body) == (99, True, b"")
    assert header.min_event_time_ms is None


def test_segments_are_kept_until_every_consumer_has_them(tmp_path: Path) -> None:
    log = open_log(tmp_path, "a", "b")
    for batch_id in range(6):
        append(log, batch_id, batch_id)
    log.acknowledge("a", 4)
    assert len(list(log.segments_from(0, 0, NEVER))) == 6
    log.acknowledge("b", 1)
    assert list(log.segments_from(0, 0, NEVER)) == []
    assert len(list(log.segments_from(2, 0, NEVER))) == 4
    reopened = open_log(tmp_path, "a", "b")
    assert reopened.last == log.last
    append(reopened, 6, 6)
    log.acknowledge("b", 0)  # an acknowledgement that comes late takes nothing back


def test_who_comes_later_begins_with_the_oldest_segment_and_after_all_rows_that_are_gone(tmp_path: Path) -> None:
    log = open_log(tmp_path, "a")
    assert log.set_readers(("a", "b")) == {"a": Start(0, None), "b": Start(0, None)}
    for batch_id, times_ms in enumerate([(30, 50), (40,), (60,), (45,)]):
        append(log, batch_id, *times_ms)
    log.acknowledge("a", 3)
    assert log.set_readers(("a", "c"))["c"] == Start(0, None)  # nothing was gone: "b" had read nothing
    log.acknowledge("c", 3)  # two segments stay in any case, for replays
    started = log.set_readers(("a", "c", "d"))
    assert started["d"] == Start(2, 51)
    assert log.set_readers(("a", "d"))["d"] == started["d"]
    append(log, 4, 70)
    append(log, 5, 71)
    log.acknowledge("a", 5)
    reopened = open_log(tmp_path, "a", "d")
    assert len(list(reopened.segments_from(2, 0, NEVER))) == 4
    reopened.acknowledge("c", 5)  # who reads no longer has no say
    assert len(list(reopened.segments_from(2, 0, NEVER))) == 4
    assert open_log(tmp_path, "a").set_readers(("a", "e"))["e"].from_ms == 51


def test_it_is_told_once_of_all_rows_that_leave(tmp_path: Path) -> None:
    left: list[int] = []
    served: list[bytes] = []
    log = LinkLog(tmp_path, "f", ("a", "b"), 1 << 20, lambda: left.append(len(served)))
    append(log, 0, 5)
    append(log, 1)
    append(log, 2, 7)
    for _consumer in ("a", "b"):
        served.extend(log.segments_from(0, 0.0, NEVER))
    assert left == [0, 2], "the second segment has no rows, and the other consumer gets nothing new"


def test_nothing_is_wanted_before_a_consumer_asks(tmp_path: Path) -> None:
    log = open_log(tmp_path / "asked", "a")
    assert not log.wanted.is_set()
    list(log.segments_from(0, 0, NEVER))
    assert log.wanted.is_set()
    append(log, 0, 1)
    assert open_log(tmp_path / "asked", "a").wanted.is_set(), "it was wanted before the restart"
    assert open_log(tmp_path / "sink").wanted.is_set(), "a sink is wanted by its user"


def test_a_replayed_batch_must_say_the_same(tmp_path: Path) -> None:
    log = open_log(tmp_path, "a")
    append(log, 0, 1, 2)
    append(log, 0, 2, 1)  # the order of rows carries no meaning
    with pytest.raises(LogFaultError, match="differs when replayed"):
        append(log, 0, 1, 3)
    (only,) = log.segments_from(0, 0, NEVER)
    assert body_table(decode_segment(only)[1]) == table(1, 2)


def test_what_consumers_were_promised_is_kept(tmp_path: Path) -> None:
    log = open_log(tmp_path, "a")
    append(log, 0, 10, watermark_ms=8)
    with pytest.raises(LogFaultError, match="older than the watermark"):
        append(log, 1, 7, watermark_ms=9)
    with pytest.raises(LogFaultError, match="went back"):
        append(log, 1, 9, watermark_ms=7)
    with pytest.raises(LogFaultError, match="where 1 was due"):
        append(log, 2, 9, watermark_ms=9)
    append(log, 1, 8, watermark_ms=9)


def test_a_slow_consumer_holds_the_producer_until_it_acknowledges(tmp_path: Path) -> None:
    log = open_log(tmp_path, "slow", max_bytes=1)
    append(log, 0, 1)
    stopping = threading.Event()
    waiter = threading.Thread(target=log.wait_for_room, args=(stopping,))
    waiter.start()
    waiter.join(0.1)
    assert waiter.is_alive()
    log.acknowledge("slow", 0)
    waiter.join(10)
    assert not waiter.is_alive()
    append(log, 1, 2)
    stopping.set()
    with pytest.raises(StoppedError):
        log.wait_for_room(stopping)


def test_it_is_told_who_alone_is_waited_for_and_has_read_nothing_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = itertools.count()
    monkeypatch.setattr("spark_bridge.link_log.time", SimpleNamespace(monotonic=lambda: float(next(seconds))))
    log = open_log(tmp_path, "a", "b", max_bytes=1)
    append(log, 0, 1)
    assert not log.waited_for_s(), "nobody waits for anybody: both have read nothing"
    log.acknowledge("a", 0)
    assert log.waited_for_s().keys() == {"b"}
    append(log, 1, 2)
    log.acknowledge("a", 1)
    first, later = log.waited_for_s()["b"], log.waited_for_s()["b"]
    assert later == first + 1.0
    log.acknowledge("b", 0)
    assert log.waited_for_s()["b"] == first, "it has read something"
    log.set_readers(("a",))
    assert not log.waited_for_s()
    append(log, 2, 3)
    assert not log.waited_for_s()


def test_a_segment_that_is_damaged_on_the_disk_is_not_served(tmp_path: Path) -> None:
    log = open_log(tmp_path, "c")
    for batch_id in range(3):
        append(log, batch_id, batch_id)
    path = tmp_path / "0000000001.segment"
    damaged = bytearray(path.read_bytes())
    damaged[-3] ^= 1
    path.write_bytes(damaged)
    segments = log.segments_from(0, 0, NEVER)
    assert next(segments)
    with pytest.raises(LogFaultError, match=r"0000000001\.segment is damaged on this host's disk"):
        next(segments)
    (tmp_path / "0000000002.segment").write_bytes(b"nothing")
    with pytest.raises(LogFaultError, match=r"0000000002\.segment is damaged"):
        open_log(tmp_path, "c")


def test_a_full_disk_leaves_nothing_behind_and_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path, "c")
    append(log, 0, 0)
    full = [OSError(errno.ENOSPC, "No space left on device", "there")] * 2

    def fsync(descriptor: int) -> None:
        if full:
            raise full.pop()

    monkeypatch.setattr("spark_bridge.durable.os.fsync", fsync)
    noted: list[str | None] = []

    def wait(_seconds: float) -> bool:
        assert sorted(path.name for path in tmp_path.iterdir()) == ["0000000000.segment"]
        return False

    write_when_there_is_room(lambda: append(log, 1, 1), noted.append, wait)
    assert len(list(log.segments_from(0, 0, NEVER))) == 2
    assert [why is None for why in noted] == [False, False, True]
    assert "no room on the disk of this host (there)" in (noted[0] or "")


def test_who_is_told_to_stop_does_not_wait_for_room() -> None:
    def write() -> int:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    assert write_when_there_is_room(write, lambda _: None, lambda _: True) is None
    with pytest.raises(PermissionError):
        write_when_there_is_room(deny, lambda _: None, lambda _: True)


def deny() -> int:
    raise PermissionError(errno.EACCES, "Permission denied")
