"""Snapshots of a fragment, and what may be let out with and without them; the checkpoint is written by hand."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

from sbon.engine_messages import Bounds
from spark_bridge.link_log import LinkLog
from spark_bridge.outlet import Outlet
from spark_bridge.port_inbox import PassedError, PortInbox, Segment
from spark_bridge.snapshots import Snapshot, newest_commit, take

PATIENCE_S = 30.0


class Folder:
    """A fragment's folder as Spark and the engine would leave it, batch by batch; each batch reads two segments."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint = path / "checkpoint"
        for name in ("offsets", "commits", "state/0/0", "state/0/_metadata", "log"):
            (self.checkpoint / name if name != "log" else path / name).mkdir(parents=True)
        (path / "signature").write_text("s")
        (self.checkpoint / "metadata").write_text("m")
        (self.checkpoint / "state/0/_metadata/schema").write_text("schema")
        (self.checkpoint / "state/0/0/9.delta.tmp").write_text("half")
        self.inbox = PortInbox(path / "ports" / "in0.sqlite", ("f", "g"))
        self.log = LinkLog(path / "log", "x", ("c",), 1 << 20)

    def begin(self, batch_id: int) -> None:
        for producer in ("f", "g"):
            self.inbox.append(Segment(producer, 1, batch_id, 1, batch_id * 1000, b"rows"))
        if batch_id:
            self.inbox.forget(2 * batch_id)  # Spark says so when it plans the next batch
        offset = json.dumps({"port": "in0", "segments": 2 * batch_id + 2})
        (self.checkpoint / "offsets" / str(batch_id)).write_text(f'v1\n{{"batchWatermarkMs": 0}}\n{offset}\n')
        (self.checkpoint / "state/0/0" / f"{batch_id + 1}.delta").write_text(f"state {batch_id}")
        self.log.append(
            1, batch_id, pa.table({"n": [batch_id]}), event_time=None, watermark_ms=None, end_of_stream=False
        )

    def commit(self, batch_id: int) -> None:
        (self.checkpoint / "commits" / str(batch_id)).write_text("v1")

    def run(self, batch_id: int) -> None:
        self.begin(batch_id)
        self.commit(batch_id)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "fragment")


def test_a_snapshot_has_what_belongs_to_its_batch_and_nothing_later(folder: Folder, tmp_path: Path) -> None:
    folder.run(0)
    folder.run(1)
    (folder.path / "ended").write_text("2")
    folder.begin(2)
    assert newest_commit(folder.checkpoint) == 1
    with pytest.raises(PassedError):
        take(folder.path, 0, tmp_path / "snapshots", {"in0": folder.inbox})
    snapshot = take(folder.path, 1, tmp_path / "snapshots", {"in0": folder.inbox})
    names = {path.relative_to(snapshot.folder).as_posix() for path in snapshot.folder.rglob("*") if path.is_file()}
    assert names == {
        *("signature", "ports/in0.sqlite", "log/0000000000.segment", "log/0000000001.segment"),
        *("checkpoint/metadata", "checkpoint/offsets/0", "checkpoint/offsets/1"),
        *("checkpoint/commits/0", "checkpoint/commits/1", "checkpoint/state/0/_metadata/schema"),
        *("checkpoint/state/0/0/1.delta", "checkpoint/state/0/0/2.delta"),
    }
    assert snapshot.reads == {"in0": {"f": 1, "g": 1}}


def test_an_exported_inbox_goes_on_with_the_first_segment_that_was_not_read(folder: Folder, tmp_path: Path) -> None:
    for batch_id in range(3):
        folder.run(batch_id)
    folder.begin(3)
    snapshot = take(folder.path, 2, tmp_path / "snapshots", {"in0": folder.inbox})
    copy = PortInbox(snapshot.folder / "ports" / "in0.sqlite", ("f", "g"))
    assert folder.inbox.end() == 8
    assert (copy.end(), copy.next_batch("f"), copy.next_batch("g")) == (6, 3, 3)
    assert copy.read_for_good() == {"f": 2, "g": 2}
    assert copy.watermark_ms(6) == 2000
    assert copy.unread_bytes() == 0
    assert copy.append(Segment("g", 2, 3, 1, 3000, b"rows"))
    assert copy.end() == 7


def test_a_snapshot_does_not_change_with_the_fragment(folder: Folder, tmp_path: Path) -> None:
    folder.run(0)
    snapshot = take(folder.path, 0, tmp_path / "snapshots", {"in0": folder.inbox})
    before = {path: path.read_bytes() for path in snapshot.folder.rglob("*") if path.is_file()}
    folder.log.acknowledge("c", 0)
    for batch_id in range(1, 5):
        folder.run(batch_id)
        folder.log.acknowledge("c", batch_id)
    assert {path: path.read_bytes() for path in snapshot.folder.rglob("*") if path.is_file()} == before


class Listener:
    def __init__(self) -> None:
        self.taken: list[Snapshot] = []
        self._changed = threading.Condition()

    def __call__(self, snapshot: Snapshot) -> None:
        with self._changed:
            self.taken.append(snapshot)
            self._changed.notify_all()

    def wait_for(self, batch_id: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: batch_id in [s.batch_id for s in self.taken], PATIENCE_S)


def test_nothing_is_let_out_before_it_is_safe(folder: Folder, tmp_path: Path) -> None:
    listener = Listener()
    outlet = Outlet(folder.path, folder.log, {"in0": folder.inbox}, listener)
    never = threading.Event()
    try:
        folder.run(0)
        folder.begin(1)
        assert outlet.read_for_good("in0", "f") == 0  # nobody has to be waited for
        assert len(list(folder.log.segments_from(0, 0.0, never))) == 2
        bounds = Bounds(safe_batch=-1, snapshots=str(tmp_path / "snapshots"))
        outlet.bound(bounds)
        assert list(folder.log.segments_from(0, 0.0, never)) == []
        assert outlet.read_for_good("in0", "f") == -1
        listener.wait_for(0)  # what was committed before is shipped without waiting for a batch
        outlet.bound(Bounds(safe_batch=0, snapshots=bounds.snapshots))
        assert len(list(folder.log.segments_from(0, 0.0, never))) == 1
        assert outlet.read_for_good("in0", "g") == 0
        outlet.batch_ended(1)
        folder.commit(1)
        listener.wait_for(1)
        assert outlet.read_for_good("in0", "f") == 0
        outlet.bound(Bounds(safe_batch=1, snapshots=bounds.snapshots))
        assert outlet.read_for_good("in0", "f") == 1
        assert len(list(folder.log.segments_from(0, 0.0, never))) == 2
    finally:
        outlet.stop()


def test_after_a_snapshot_that_found_no_room_the_next_batch_gives_another_chance(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one nothing more would ever be let out. SQLite has its own word for a disk that is full."""
    tried = threading.Event()
    export = PortInbox.export

    def find_no_room(inbox: PortInbox, target: Path, end: int) -> dict[str, int]:
        if not tried.is_set():
            tried.set()
            raise sqlite3.OperationalError("database or disk is full")
        return export(inbox, target, end)

    monkeypatch.setattr(PortInbox, "export", find_no_room)
    listener = Listener()
    outlet = Outlet(folder.path, folder.log, {"in0": folder.inbox}, listener)
    try:
        folder.run(0)
        outlet.bound(Bounds(safe_batch=-1, snapshots=str(tmp_path / "snapshots")))
        assert tried.wait(PATIENCE_S)
        folder.begin(1)
        outlet.batch_ended(1)
        folder.commit(1)
        listener.wait_for(1)
    finally:
        outlet.stop()


def test_a_lease_that_is_over_closes_the_outlet(folder: Folder) -> None:
    outlet = Outlet(folder.path, folder.log, {"in0": folder.inbox}, Listener())
    folder.run(0)
    folder.begin(1)
    outlet.bound(Bounds(until_s=time.monotonic() + 1000.0))
    assert outlet.is_open()
    assert outlet.read_for_good("in0", "f") == 0
    outlet.bound(Bounds(until_s=time.monotonic() - 0.001))
    assert not outlet.is_open()
    assert outlet.read_for_good("in0", "f") == -1
    outlet.stop()
