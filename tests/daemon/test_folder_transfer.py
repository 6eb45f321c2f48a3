"""Folders on their way: what arrives is what was sent, and nothing reaches outside."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.peering import folder_transfer
from daemon.peering.folder_transfer import (
    CHUNK_BYTES,
    MAX_DEPTH,
    ReceivedFolder,
    Unpacking,
    chunks_of,
    new_digest,
    sizes_of,
)
from sbon.errors import RemoteProtocolError, SbonError


def unpack(folder: Path, sizes: dict[str, int], *pieces: bytes) -> ReceivedFolder:
    unpacking = Unpacking(folder, sizes)
    try:
        unpacking.begin()
        for piece in pieces:
            unpacking.take(piece)
        return unpacking.finish()
    finally:
        unpacking.close()


@given(
    sizes=st.dictionaries(
        st.text("ab/", min_size=1, max_size=5), st.sampled_from([0, 1, 7, CHUNK_BYTES, CHUNK_BYTES + 1]), max_size=5
    )
)
def test_what_arrives_is_what_was_sent_or_nothing_is_sent(
    tmp_path_factory: pytest.TempPathFactory, sizes: dict[str, int]
) -> None:
    folder = tmp_path_factory.mktemp("folder")
    sent = folder / "sent"
    sent.mkdir()
    for number, (name, size_bytes) in enumerate(sizes.items()):
        with suppress(OSError):
            (sent / name.strip("/")).parent.mkdir(parents=True, exist_ok=True)
            (sent / name.strip("/")).write_bytes(bytes([number]) * size_bytes)
    announced = sizes_of(sent)
    pieces = list(chunks_of(sent, announced))
    assert all(len(piece) == CHUNK_BYTES for piece in pieces[:-1])
    received = unpack(folder / "received", announced, *pieces)
    assert sizes_of(received.path) == announced
    for name in announced:
        data = (sent / name).read_bytes()
        assert (received.path / name).read_bytes() == data
        assert received.digests[name] == new_digest(data).hexdigest()


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../outside", "a/../../outside", "a/./b", "", ".", "a\0b", "a/", "x" * 256]
)
def test_paths_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RemoteProtocolError):
        unpack(tmp_path / "folder", {"first": 1, name: 1}, b"xy")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("names", [["/".join("a" * (MAX_DEPTH + 1))], ["a/b/c", "d"], ["a", "b", "c", "d", "e"]])
def test_what_is_too_deep_or_too_much_is_neither_taken_nor_sent(
    tmp_path: Path, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_transfer, "MAX_ENTRIES", MAX_DEPTH + 2 if len(names) == 1 else 3)
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(SbonError, match="cannot be moved to another host: it is a folder with"):
        sizes_of(tmp_path)
    with pytest.raises(RemoteProtocolError):
        Unpacking(tmp_path / "folder", dict.fromkeys(names, 1))
    Unpacking(tmp_path / "folder", {"a/b": 1, "a/c": 1})


@pytest.mark.parametrize("sizes", [{"a": 1, "a/b": 1}, {"a/b": 1, "a": 1}, {"a": 0, "a/b/c": 0}])
def test_what_is_a_file_and_a_folder_is_refused(tmp_path: Path, sizes: dict[str, int]) -> None:
    with pytest.raises(RemoteProtocolError, match="as a file and as a folder"):
        unpack(tmp_path / "folder", sizes, b"xy")


@pytest.mark.parametrize("sizes", [{"a": -1}, {"a": 1 << 62}, {"a": -5, "b": 10}])
def test_sizes_that_no_folder_has_are_refused(tmp_path: Path, sizes: dict[str, int]) -> None:
    with pytest.raises(RemoteProtocolError):
        Unpacking(tmp_path / "folder", sizes)


@given(
    sizes=st.dictionaries(st.text(max_size=6), st.integers(0, 20), max_size=5),
    pieces=st.lists(st.binary(min_size=1, max_size=30), max_size=4),
)
def test_anything_announced_and_sent_raises_protocol_errors_only(
    tmp_path_factory: pytest.TempPathFactory, sizes: dict[str, int], pieces: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("unpack")
    with suppress(RemoteProtocolError):
        unpacking = Unpacking(folder / "in", sizes)
        try:
            unpacking.begin()
            for piece in pieces:
                unpacking.take(piece)
        finally:
            unpacking.close()
        assert unpacking.lacking_bytes == sum(sizes.values()) - sum(map(len, pieces))
    assert [path.name for path in folder.iterdir()] in ([], ["in"])


def test_links_are_not_packed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(SbonError, match="neither a file nor a folder"):
        sizes_of(tmp_path)
