from __future__ import annotations

from pathlib import Path

import pytest

from daemon.durable import read_if_there, remove_durably, sync_all, write_durably
from sbon.errors import UnavailableError
from tests.daemon.full_disk import full_disk


def test_what_a_full_disk_refuses_leaves_nothing_and_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    write_durably(file, b"old")
    with full_disk(monkeypatch):
        with pytest.raises(UnavailableError, match=r"file cannot be used \(No space left on device\): see its disk"):
            write_durably(file, b"new")
        with pytest.raises(UnavailableError):
            sync_all([file])
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert file.read_bytes() == b"old"
    write_durably(file, b"new")
    assert read_if_there(file) == b"new"
    remove_durably(file)
    assert read_if_there(file) is None


def test_what_cannot_be_read_is_not_taken_for_missing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    assert read_if_there(tmp_path / "file" / "below") is None
    with pytest.raises(UnavailableError, match="see its disk"):
        read_if_there(tmp_path / "folder")
