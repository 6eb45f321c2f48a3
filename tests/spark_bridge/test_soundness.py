"""Damage on the disk is found, in each kind of file that a fragment has."""

from __future__ import annotations

import shutil
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spark_bridge import soundness
from spark_bridge.link_log import LinkLog
from spark_bridge.port_inbox import PortInbox, Segment
from spark_bridge.soundness import find_damage


def write_checked(path: Path, data: bytes, chunk_bytes: int = 512) -> None:
    """As Hadoop's local file system does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    sums = (zlib.crc32(data[at : at + chunk_bytes]) for at in range(0, len(data), chunk_bytes))
    path.with_name(f".{path.name}.crc").write_bytes(
        b"crc\0" + struct.pack(">i", chunk_bytes) + b"".join(struct.pack(">I", each) for each in sums)
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_checked(tmp_path / "checkpoint" / "state" / "0" / "0" / "1.delta", bytes(range(256)) * 5)
    write_checked(tmp_path / "checkpoint" / "commits" / "0", b"v1\n{}")
    log = LinkLog(tmp_path / "log", "f", ("c",), 1 << 20)
    rows = pa.table({"value": [1.0] * 100})
    log.append(1, 0, rows, event_time=None, watermark_ms=None, end_of_stream=False)
    inbox = PortInbox(tmp_path / "ports" / "in0.sqlite", ("f",))
    inbox.append(Segment("f", 1, 0, 1, None, bytes(20_000)))
    inbox.close()
    (tmp_path / "signature").write_text("of nothing in particular")
    return tmp_path


def test_what_is_as_it_was_written_is_sound(folder: Path) -> None:
    assert find_damage(folder) is None


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("checkpoint/state/0/0/1.delta", 700),
        ("checkpoint/commits/0", 2),
        ("log/0000000000.segment", -3),
        ("ports/in0.sqlite", 3),
    ],
)
def test_a_byte_that_is_another_one_is_found(folder: Path, name: str, at: int) -> None:
    path = folder / name
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)
    assert (find_damage(folder) or "").startswith(f"{path} is damaged on this host's disk: ")


def test_a_file_that_was_cut_off_is_found(folder: Path) -> None:
    path = folder / "checkpoint" / "state" / "0" / "0" / "1.delta"
    path.write_bytes(path.read_bytes()[:600])
    assert find_damage(folder) == f"{path} is damaged on this host's disk: its checksum is another one"


@pytest.mark.parametrize("chunk_bytes", [0, -1])
def test_checksums_of_nothing_are_damage(folder: Path, chunk_bytes: int) -> None:
    path = folder / "checkpoint" / "commits" / "0"
    path.with_name(".0.crc").write_bytes(b"crc\0" + struct.pack(">i", chunk_bytes) + bytes(4))
    assert (find_damage(folder) or "").startswith(f"{path} is damaged on this host's disk: ")


def test_checksums_that_are_no_checksums_are_not_looked_at(folder: Path) -> None:
    """Nor does Hadoop."""
    (folder / "checkpoint" / "commits" / ".0.crc").write_bytes(b"?")
    assert find_damage(folder) is None


def test_a_folder_that_vanishes_meanwhile_is_no_damage(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def listing(_: Path) -> Iterator[Path]:
        yield folder / "checkpoint" / "state" / "0" / "0" / "1.delta"
        shutil.rmtree(folder / "log")
        yield folder / "log" / "1.segment"

    monkeypatch.setattr(soundness, "files_under", listing)
    assert find_damage(folder) is None
