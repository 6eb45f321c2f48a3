"""Replicas on disk: in force at once or not at all, and never an older one over a newer one."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import msgspec
import pytest

from daemon.durable import remove_at_once
from daemon.fragments import replica_store
from daemon.fragments.replica_store import LEFT_BEHIND, Digests, ReplicaStore
from daemon.peering.folder_transfer import ReceivedFolder, new_digest
from daemon.peering.keeper_messages import StoreReplica
from daemon.peering.query_messages import Assignment
from sbon.errors import SbonError, StaleGenerationError, UnavailableError
from sbon.fragment import FragmentKind, FragmentSpec
from tests.daemon.full_disk import full_disk

SPEC = FragmentSpec("q1-join1", "q1", FragmentKind.JOIN, "SELECT 1")


def record(generation: int, batch_id: int, files: dict[str, str]) -> StoreReplica:
    """``files``: path -> content."""
    digests = {name: new_digest(content.encode()).hexdigest() for name, content in files.items()}
    return StoreReplica(Assignment(SPEC, generation, ("k",)), batch_id, digests)


def fill(folder: Path, **contents: str) -> Path:
    for name, content in contents.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    folder.mkdir(exist_ok=True)
    return folder


def received(folder: Path) -> ReceivedFolder:
    return ReceivedFolder(folder, Digests().of(folder))


def parcel(folder: Path, **contents: str) -> ReceivedFolder:
    return received(fill(folder, **contents))


def test_a_replica_is_what_was_sent_last_with_what_was_there_already(tmp_path: Path) -> None:
    store = ReplicaStore(tmp_path / "replicas")
    store.store(record(1, 4, {"a": "A", "b/c": "C", "d": "D"}), parcel(tmp_path / "p1", a="A", b__c="C", d="D"))
    store.store(record(1, 5, {"a": "A", "b/c": "C2"}), parcel(tmp_path / "p2", b__c="C2"))
    again = ReplicaStore(tmp_path / "replicas")
    for each in (store, again):
        target = tmp_path / f"copy{id(each)}"
        each.copy_to("q1-join1", target)
        files = {path.relative_to(target).as_posix(): path.read_text() for path in target.rglob("*") if path.is_file()}
        assert files == {"a": "A", "b/c": "C2"}
    assert len(list((tmp_path / "replicas").iterdir())) == 1


def test_what_is_missing_or_comes_late_changes_nothing(tmp_path: Path) -> None:
    store = ReplicaStore(tmp_path / "replicas")
    store.store(record(2, 4, {"a": "A"}), parcel(tmp_path / "p1", a="A"))
    with pytest.raises(SbonError, match="is missing"):
        store.store(record(2, 5, {"a": "A", "b": "B"}), parcel(tmp_path / "p2"))
    with pytest.raises(StaleGenerationError, match="from a later owner"):
        store.store(record(1, 9, {"a": "Z"}), parcel(tmp_path / "p3", a="Z"))
    store.store(record(2, 3, {"a": "Z"}), parcel(tmp_path / "p4", a="Z"))
    with pytest.raises(SbonError, match="a of q1-join1 is not what was announced"):
        store.store(record(2, 6, {"a": "B"}), parcel(tmp_path / "p6", a="C"))
    with pytest.raises(SbonError, match="with the path"):
        store.store(record(2, 6, {"../a": "1"}), parcel(tmp_path / "p5"))
    replica = ReplicaStore(tmp_path / "replicas").find("q1-join1")
    assert replica is not None
    assert replica.age == (2, 4)


def test_what_a_fragment_leaves_behind_is_there_for_its_new_owner(tmp_path: Path) -> None:
    store = ReplicaStore(tmp_path / "replicas")
    store.store(record(1, 9, {"old": "O", "a": "A"}), parcel(tmp_path / "p1", old="O", a="A"))
    folder = fill(tmp_path / "fragment", a="A", b__c="C", d="C")
    left = record(2, LEFT_BEHIND, {"a": "A", "b/c": "C", "d": "C"})
    store.take_over(left, folder)
    shutil.rmtree(folder)
    store = ReplicaStore(tmp_path / "replicas")
    replica = store.find("q1-join1")
    assert replica is not None
    assert replica.is_left_behind
    assert store.find_damage("q1-join1") is None
    store.store(record(3, 0, {"a": "A", "b/c": "C", "new": "N"}), parcel(tmp_path / "p2", new="N"))
    replica = store.find("q1-join1")
    assert replica is not None
    assert not replica.is_left_behind
    store.take_over(left, fill(tmp_path / "late", a="A", b__c="C", d="C"))
    assert store.find("q1-join1") == replica, "its new owner was faster"
    store.copy_to("q1-join1", tmp_path / "copy")
    assert {path.name for path in (tmp_path / "copy").rglob("*")} == {"a", "b", "c", "new"}


def test_an_interrupted_replica_is_not_one(tmp_path: Path) -> None:
    store = ReplicaStore(tmp_path / "replicas")
    store.store(record(1, 1, {"a": "A"}), parcel(tmp_path / "p1", a="A"))
    half = fill(tmp_path / "replicas" / "q2-join1" / "files", a="half")
    rest = fill(tmp_path / "replicas" / "q1-join1" / "files", a="of the next batch")
    again = ReplicaStore(tmp_path / "replicas")
    assert [replica.age for replica in again.replicas] == [(1, 1)]
    assert not half.parent.exists()
    assert [path.name for path in rest.iterdir()] == list(record(1, 1, {"a": "A"}).files.values())
    again.drop("q1-join1")
    assert list((tmp_path / "replicas").iterdir()) == []
    with pytest.raises(SbonError, match="no replica"):
        again.copy_to("q1-join1", tmp_path / "copy")


def test_one_without_a_file_of_its_state_is_none(tmp_path: Path) -> None:
    store = ReplicaStore(tmp_path / "replicas")
    store.store(record(1, 1, {"a": "A", "b": "B"}), parcel(tmp_path / "p1", a="A", b="B"))
    next((tmp_path / "replicas" / "q1-join1" / "files").iterdir()).unlink()
    assert ReplicaStore(tmp_path / "replicas").replicas == []
    assert list((tmp_path / "replicas").iterdir()) == []


def test_a_batch_costs_what_has_changed(tmp_path: Path) -> None:
    """Whatever else the state has stays where it is, and what no state has is deleted."""
    store = ReplicaStore(tmp_path / "replicas")
    store.store(record(1, 1, {"a": "A", "b": "B"}), parcel(tmp_path / "p1", a="A", b="B"))
    contents = tmp_path / "replicas" / "q1-join1" / "files"
    before = {path.name: path.stat().st_ino for path in contents.iterdir()}
    later = record(1, 2, {"a": "A", "moved/b": "B", "c": "C"})
    store.store(later, parcel(tmp_path / "p2", c="C"))
    after = {path.name: path.stat().st_ino for path in contents.iterdir()}
    assert before.items() <= after.items()
    assert after.keys() == set(later.files.values())
    store.store(record(1, 3, {"c": "C"}), parcel(tmp_path / "p3"))
    assert [path.read_text() for path in contents.iterdir()] == ["C"]


def test_what_could_not_be_recorded_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ReplicaStore(tmp_path / "replicas")
    store.store(record(1, 1, {"a": "A"}), parcel(tmp_path / "p1", a="A"))

    def is_full(path: Path, data: bytes) -> None:
        raise UnavailableError(f"{path}: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(replica_store, "write_durably", is_full)
        received = parcel(tmp_path / "p2", b="B")
        with pytest.raises(UnavailableError, match="No space left"):
            store.store(record(1, 2, {"a": "A", "b": "B"}), received)
    contents = tmp_path / "replicas" / "q1-join1" / "files"
    assert [path.read_text() for path in contents.iterdir()] == ["A"]
    store.store(record(1, 3, {"a": "A", "c": "C"}), parcel(tmp_path / "p3", c="C"))
    assert [replica.age for replica in ReplicaStore(tmp_path / "replicas").replicas] == [(1, 3)]


def test_what_cannot_be_read_or_copied_now_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ReplicaStore(tmp_path / "replicas")
    store.store(record(1, 1, {"a": "A"}), parcel(tmp_path / "p1", a="A"))
    with full_disk(monkeypatch), pytest.raises(UnavailableError, match="see its disk"):
        store.copy_to("q1-join1", tmp_path / "copy")
    kept = tmp_path / "replicas" / "q1-join1" / "replica.msgpack"
    kept.rename(tmp_path / "kept")
    kept.mkdir()  # as good as any other reason why it cannot be read
    with pytest.raises(UnavailableError, match="see its disk"):
        ReplicaStore(tmp_path / "replicas")
    kept.rmdir()
    (tmp_path / "kept").rename(kept)
    assert ReplicaStore(tmp_path / "replicas").find("q1-join1") is not None


def test_nobody_names_a_file_that_is_not_a_digest_of_one(tmp_path: Path) -> None:
    """A digest is taken for a name only where it was computed here."""
    (tmp_path / "secret").write_text("S")
    store = ReplicaStore(tmp_path / "replicas")
    lie = StoreReplica(Assignment(SPEC, 1, ("k",)), 1, {"a": "../../../secret"})
    with pytest.raises(SbonError, match="is missing"):
        store.store(lie, parcel(tmp_path / "p1"))
    with pytest.raises(SbonError, match="not what was announced"):
        store.store(lie, parcel(tmp_path / "p2", a="A"))


def test_whoever_runs_a_copy_does_not_change_the_replica(tmp_path: Path) -> None:
    store = ReplicaStore(tmp_path / "replicas")
    folder = fill(tmp_path / "p1", checkpoint="c")
    with sqlite3.connect(folder / "in0.sqlite") as database:
        database.execute("CREATE TABLE t (n INTEGER)")
    database.close()
    files = Digests().of(folder)
    store.store(msgspec.structs.replace(record(1, 1, {}), files=files), received(folder))
    store.copy_to("q1-join1", tmp_path / "one")
    with sqlite3.connect(tmp_path / "one" / "in0.sqlite") as database:
        database.execute("INSERT INTO t VALUES (1)")
    store.copy_to("q1-join1", tmp_path / "other")
    with sqlite3.connect(tmp_path / "other" / "in0.sqlite") as database:
        assert database.execute("SELECT count(*) FROM t").fetchone() == (0,)
    database.close()


def test_a_replica_that_is_damaged_is_found(tmp_path: Path) -> None:
    store = ReplicaStore(tmp_path / "replicas")
    store.store(record(1, 1, {"a": "A", "b/c": "C"}), parcel(tmp_path / "p1", a="A", b__c="C"))
    kept = tmp_path / "replicas" / "q1-join1" / "files" / new_digest(b"C").hexdigest()
    assert store.find_damage("q1-join1") is None
    kept.write_text("X")
    assert store.find_damage("q1-join1") is None  # once looked through, it is trusted while this process lives
    again = ReplicaStore(tmp_path / "replicas")
    assert again.find_damage("q1-join1") == f"b/c is damaged on this host's disk: its digest is another one ({kept})"
    kept.unlink()
    assert again.find_damage("q1-join1") == f"b/c is damaged on this host's disk: No such file or directory ({kept})"
    assert again.find_damage("q2-join1") is None


def test_what_is_left_of_a_deleted_state_is_not_taken_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replica would be without the rest, and whole by its own account."""
    snapshot = tmp_path / "7"
    (snapshot / "state").mkdir(parents=True)
    for name in ("a", "b"):
        (snapshot / "state" / name).write_text(name)
    remove_tree = shutil.rmtree
    digests: list[dict[str, str]] = []

    def look_when_half_is_gone(folder: Path, ignore_errors: bool) -> None:
        if folder.exists():
            (folder / "state" / "a").unlink()
            with pytest.raises(FileNotFoundError):
                digests.append(Digests().of(snapshot))
        remove_tree(folder, ignore_errors=ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", look_when_half_is_gone)
    remove_at_once(snapshot)
    assert list(tmp_path.iterdir()) == []
    assert digests == []
    remove_at_once(snapshot)  # there is none


def test_a_digest_tells_contents_apart(tmp_path: Path) -> None:
    digests = Digests()
    folder = fill(tmp_path / "f", a="1", b__c="1")
    first = digests.of(folder)
    assert first["a"] == first["b/c"]
    (folder / "new").write_text("2")
    (folder / "new").replace(folder / "a")
    second = digests.of(folder)
    assert second["a"] != first["a"]
    assert second["b/c"] == first["b/c"]


def test_a_content_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def digest(path: Path) -> str:
        read.append(path.name)
        return path.read_text()

    monkeypatch.setattr(replica_store, "_digest", digest)
    digests = Digests()
    folder = fill(tmp_path / "f", a="1", b__c="2")
    (folder / "d").hardlink_to(folder / "a")
    assert digests.of(folder) == {"a": "1", "b/c": "2", "d": "1"}
    (folder / "e").hardlink_to(folder / "b" / "c")
    assert digests.of(folder) == {"a": "1", "b/c": "2", "d": "1", "e": "2"}
    assert read == ["a", "c"]


@pytest.mark.parametrize(
    "name", ["../victim", "/victim", "", ".", "..", "q1-join1/../../victim", "q1-join1\0", "a" * 101]
)
def test_no_id_of_a_fragment_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    """Whoever checks ids where they come in may be wrong."""
    victim = fill(tmp_path / "victim", a="A")
    store = ReplicaStore(tmp_path / "replicas")
    parts = parcel(tmp_path / "p", b="B")
    with pytest.raises(SbonError, match="is not the id of a fragment"):
        store.store_ahead(name, dict(parts.digests), parts)
    with pytest.raises(SbonError, match="is not the id of a fragment"):
        store.drop(name)
    assert [path.name for path in victim.iterdir()] == ["a"]
    assert list((tmp_path / "replicas").iterdir()) == []


def test_a_name_that_no_file_has_is_refused_before_anybody_copies_the_replica(tmp_path: Path) -> None:
    store = ReplicaStore(tmp_path / "replicas")
    store.store(record(1, 1, {"a": "A"}), parcel(tmp_path / "p1", a="A"))
    with pytest.raises(SbonError, match="with the path"):
        store.store(record(1, 2, {"a": "A", "b\0": "A"}), parcel(tmp_path / "p2"))


async def test_turns_are_known_as_long_as_somebody_has_one_or_waits(tmp_path: Path) -> None:
    store = ReplicaStore(tmp_path / "replicas")
    for number in range(100):
        async with store.turn(f"q{number}"):
            assert store.turn(f"q{number}").locked()
    assert len(store._turns) == 0
