from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from daemon.fragments.hosted_fragment import RECORD_FILE, FragmentStore, HostedFragment, HostingRecord, Phase
from daemon.peering.query_messages import Assignment, Location
from sbon.engine_messages import FlightAddress
from sbon.errors import SbonError, UnavailableError
from sbon.fragment import FragmentKind, FragmentSpec, PortSpec
from tests.daemon.full_disk import full_disk

SPEC = FragmentSpec("q1-union1", "q1", FragmentKind.UNION, "SELECT * FROM in0", (PortSpec("in0", ("q1-source1",)),))


def assigned(generation: int = 1, producers: tuple[Location, ...] = ()) -> Assignment:
    return Assignment(SPEC, generation, keepers=("k",), producers=producers)


def test_what_is_accepted_is_there_after_a_restart(tmp_path: Path) -> None:
    store = FragmentStore(tmp_path / "fragments", "me")
    fragment = store.create(assigned())
    store.write(fragment, Phase.RUNNING, assigned(3))
    store.write(fragment, Phase.STOPPING)
    (found,) = FragmentStore(tmp_path / "fragments", "me").load()
    assert found.record == HostingRecord("me", assigned(3), Phase.STOPPING)
    assert not found.confirmed


def test_a_received_folder_is_adopted_with_our_own_record(tmp_path: Path) -> None:
    store = FragmentStore(tmp_path / "fragments", "me")
    received = tmp_path / "received"
    received.mkdir()
    (received / "state").write_text("42")
    sent = HostingRecord("you", assigned(1), Phase.STOPPING)
    (received / RECORD_FILE).write_bytes(msgspec.msgpack.encode(sent))
    fragment = store.adopt(assigned(2), received)
    assert (fragment.folder / "state").read_text() == "42"
    assert not received.exists()
    (found,) = store.load()
    assert found.record == HostingRecord("me", assigned(2), Phase.ACCEPTED)


def test_folders_without_a_record_were_never_accepted_and_are_deleted(tmp_path: Path) -> None:
    store = FragmentStore(tmp_path / "fragments", "me")
    for name, content in (("empty", None), ("broken", b"\xff\xff")):
        (tmp_path / "fragments" / name).mkdir()
        if content is not None:
            (tmp_path / "fragments" / name / RECORD_FILE).write_bytes(content)
    assert list(store.load()) == []
    assert list((tmp_path / "fragments").iterdir()) == []


def test_what_cannot_be_read_now_is_not_deleted(tmp_path: Path) -> None:
    store = FragmentStore(tmp_path / "fragments", "me")
    folder = store.create(assigned()).folder
    (folder / "state").write_text("42")
    (folder / RECORD_FILE).unlink()
    (folder / RECORD_FILE).mkdir()  # as good as any other reason
    with pytest.raises(UnavailableError, match="see its disk"):
        list(store.load())
    assert (folder / "state").read_text() == "42"


def test_what_a_full_disk_refuses_leaves_the_fragment_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FragmentStore(tmp_path / "fragments", "me")
    fragment = store.create(assigned())
    with full_disk(monkeypatch):
        with pytest.raises(UnavailableError):
            store.write(fragment, Phase.RUNNING)
        with pytest.raises(UnavailableError):
            store.create(msgspec.structs.replace(assigned(), spec=msgspec.structs.replace(SPEC, fragment_id="q1-b")))
    assert fragment.record.phase is Phase.ACCEPTED
    (tmp_path / "damaged").touch()  # no folder can be made there
    with pytest.raises(UnavailableError, match="see its disk"):
        store.put_aside(fragment)
    (found, *_) = store.load()
    assert found.record == fragment.record


@pytest.mark.parametrize("name", ["../other", "", "a/b", ".hidden", "a" * 101, "q1-union1\n"])
def test_ids_that_would_be_other_paths_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SbonError, match="is not the id of a fragment"):
        FragmentStore(tmp_path, "me").folder(name)


def test_nobody_runs_what_was_handed_over() -> None:
    record = HostingRecord("me", assigned(), Phase.RUNNING).to(Phase.HANDED_OVER)
    with pytest.raises(AssertionError):
        record.to(Phase.RUNNING)
    with pytest.raises(AssertionError):
        HostingRecord("me", assigned()).to(Phase.STOPPING)


def test_only_newer_words_on_a_producer_count(tmp_path: Path) -> None:
    def at(generation: int, port: int | None) -> Location:
        return Location("q1-source1", generation, "n", None if port is None else FlightAddress("127.0.0.1", port))

    fragment = HostedFragment(HostingRecord("me", assigned(1, (at(2, 10),))), tmp_path)
    assert not fragment.is_news(at(1, 11))
    assert not fragment.is_news(at(2, 10))
    assert not fragment.is_news(at(2, None))
    assert fragment.is_news(at(2, 11))  # its engine was started again
    assert fragment.is_news(at(3, None))
