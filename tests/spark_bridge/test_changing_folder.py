from __future__ import annotations

from pathlib import Path

import pytest

from spark_bridge import changing_folder
from spark_bridge.changing_folder import FolderSize, files_under, folder_bytes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, size in (("a", 10), ("deep/b", 200), ("deep/deeper/c", 3000)):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(size))
    return tmp_path


def test_all_files_count(folder: Path) -> None:
    assert folder_bytes(folder) == 3210


def test_folders_and_files_may_vanish_meanwhile(folder: Path) -> None:
    files = files_under(folder)
    assert next(files) == folder / "a"
    folder.rename(folder.with_name("elsewhere"))
    assert list(files) == []


def test_a_file_that_vanishes_has_no_size(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changing_folder, "files_under", lambda _: iter([folder / "a", folder / "gone"]))
    assert folder_bytes(folder) == 10


def test_a_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert folder_bytes(tmp_path / "gone") == 0


def test_a_folder_is_looked_at_after_another_batch_and_not_too_often(folder: Path) -> None:
    size = FolderSize(lambda: folder_bytes(folder))
    assert size.after(0, 100.0) == 3210
    (folder / "d").write_bytes(bytes(5))
    assert size.after(0, 110.0) == 3210, "the same batch"
    assert size.after(1, 104.0) == 3210, "too soon"
    assert size.after(1, 110.0) == 3215
