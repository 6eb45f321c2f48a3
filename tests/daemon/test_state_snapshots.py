"""Which files of a checkpoint follow later, against a model of how Spark starts from one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.fragments.state_snapshots import following

STORE = "checkpoint/state/0/0"


def files(zips: dict[int, str], changes: list[int], store: str = STORE) -> dict[str, str]:
    """Snapshots by version, each with a file of its own, which is called so."""
    found = {"checkpoint/offsets/7": "o", "log/3.segment": "l", f"{store}/_metadata/schema": "s"}
    for version, part in zips.items():
        found |= {f"{store}/{version}.zip": f"z{version}", f"{store}/.{version}.zip.crc": f"c{version}"}
        found[f"{store}/SSTs/{part}.sst"] = part
    for version in changes:
        found |= {f"{store}/{version}.changelog": f"v{version}", f"{store}/.{version}.changelog.crc": f"w{version}"}
    return found


def test_a_new_snapshot_follows_later_where_the_one_before_is() -> None:
    known = files({10: "a"}, [11, 12])
    now, later = following(files({20: "b"}, list(range(13, 22))), known)
    assert later == {f"{STORE}/20.zip": "z20", f"{STORE}/.20.zip.crc": "c20", f"{STORE}/SSTs/b.sst": "b"}
    assert now == files({10: "a"}, list(range(11, 22))), "what Spark has deleted here is still needed there"


def test_with_it_what_was_before_is_needed_no_longer() -> None:
    known = files({10: "a", 20: "b"}, list(range(11, 23)))
    newer = files({20: "b"}, list(range(20, 24)))
    assert following(newer, known) == (newer, {})


def test_the_first_snapshot_follows_all_changes() -> None:
    known = files({}, [1, 2])
    now, later = following(files({3: "a"}, [1, 2, 3, 4]), known)
    assert set(later) == {f"{STORE}/3.zip", f"{STORE}/.3.zip.crc", f"{STORE}/SSTs/a.sst"}
    assert now == files({}, [1, 2, 3, 4])


@pytest.mark.parametrize(
    ("known", "newer"),
    [
        ({}, files({20: "b"}, [21])),  # nothing is there
        (files({10: "a"}, [11, 12]), files({20: "b"}, [21, 22])),  # changes 13 to 20 were never sent
        (files({}, [2, 3]), files({3: "b"}, [4])),  # of version 1 there is nothing
        (files({10: "a"}, []), files({11: "b"}, [])),  # a snapshot with each batch, and no changes
    ],
)
def test_what_the_state_is_not_whole_without_cannot_wait(known: dict[str, str], newer: dict[str, str]) -> None:
    assert following(newer, known) == (newer, {})


def test_each_store_for_itself() -> None:
    other = "checkpoint/state/0/0/left-keyToNumValues"
    known = files({10: "a"}, [11]) | files({10: "c"}, [], other)
    newer = files({12: "b"}, [11, 12]) | files({12: "d"}, [12], other)
    now, later = following(newer, known)
    assert {name for name in later if name.endswith(".sst")} == {f"{STORE}/SSTs/b.sst"}
    assert f"{other}/SSTs/d.sst" in now
    assert f"{STORE}/SSTs/a.sst" in now


@settings(deadline=None)
@given(st.data())
def test_at_any_time_the_state_there_is_whole(data: st.DataObject) -> None:
    """Spark goes on, takes snapshots and deletes what it no longer needs; all is sent after some of its batches, and
    what follows arrives some time, or never."""
    known: dict[str, str] = {}
    coming: dict[str, str] = {}
    zips: dict[int, str] = {}
    oldest = 1
    for version in range(1, data.draw(st.integers(2, 14)) + 1):
        if data.draw(st.booleans()):
            zips[version] = f"part{version}"
        if len(zips) > 1 and data.draw(st.booleans()):
            del zips[min(zips)]
            oldest = min(zips)
        if data.draw(st.booleans()):
            known |= coming
        state = files(zips, list(range(oldest, version + 1)))
        now, coming = following(state, known)
        assert all(known.get(name) == digest for name, digest in now.items() if name not in state)
        assert now.keys().isdisjoint(coming)
        assert {**now, **coming}.items() >= state.items()
        assert can_start(now, version)
        known = now


def can_start(state: dict[str, str], version: int) -> bool:
    """With a snapshot and its files, or from nothing, and the changes since."""
    bases = [0]
    for base in range(1, version + 1):
        if f"{STORE}/{base}.zip" in state:
            assert f"{STORE}/SSTs/part{base}.sst" in state
            bases.append(base)
    newest = max(bases)
    return all(f"{STORE}/{each}.changelog" in state for each in range(newest + 1, version + 1))
