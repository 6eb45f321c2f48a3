from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.trust.identity_file import MAX_KEPT_MEMBERS, MAX_PLACE_AGE_MS, StateFolder
from sbon.coordinate import Coordinate
from sbon.errors import SbonError


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateFolder]:
    folder = StateFolder(tmp_path / "state")
    yield folder
    folder.close()


def test_the_key_is_made_once_and_only_the_owner_can_read_it(state: StateFolder, tmp_path: Path) -> None:
    assert state.identity().node_id == state.identity().node_id
    assert stat.S_IMODE((tmp_path / "state" / "identity.key").stat().st_mode) == 0o600


def test_boot_ids_grow_even_if_the_clock_goes_back(state: StateFolder, tmp_path: Path) -> None:
    assert [state.next_boot_id(now_ms) for now_ms in (1000, 2000, 500, 500, 3000)] == [1000, 2000, 2001, 2002, 3000]
    (tmp_path / "state" / "boot").write_text("nonsense")
    assert state.next_boot_id(4000) == 4000


def test_members_are_kept(state: StateFolder, tmp_path: Path) -> None:
    assert state.kept_members() == []
    state.keep_members([("10.0.0.1", 7400), ("::1", 7401)])
    assert state.kept_members() == [("10.0.0.1", 7400), ("::1", 7401)]
    state.keep_members([("10.0.0.1", port) for port in range(1, 200)])
    assert len(state.kept_members()) == MAX_KEPT_MEMBERS
    (tmp_path / "state" / "members.json").write_text("{nonsense")
    assert state.kept_members() == []


def test_the_last_place_is_kept_for_a_day(state: StateFolder, tmp_path: Path) -> None:
    place = Coordinate((1.0, -2.5), 3.0, 0.05, (0.5, -0.25, 1.0))
    assert state.kept_place(5_000) is None
    state.keep_place(place, 5_000)
    assert state.kept_place(5_000 + MAX_PLACE_AGE_MS) == place
    assert state.kept_place(5_001 + MAX_PLACE_AGE_MS) is None, "too old"
    assert state.kept_place(4_999) is None, "the clock went back: nobody knows how old it is"
    (tmp_path / "state" / "place.json").write_text("{nonsense")
    assert state.kept_place(5_000) is None


def test_one_daemon_at_a_time(tmp_path: Path) -> None:
    first = StateFolder(tmp_path)
    with pytest.raises(SbonError, match="another daemon uses"):
        StateFolder(tmp_path)
    first.close()
    StateFolder(tmp_path).close()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SbonError, match=r"set node\.state_dir"):
        StateFolder(tmp_path / "file" / "state")
