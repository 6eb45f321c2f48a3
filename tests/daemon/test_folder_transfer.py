"""Folders as archives: what arrives is what was sent, and nothing reaches outside."""

from __future__ import annotations

import io
import tarfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.peering.folder_transfer import pack, unpack
from sbon.errors import RemoteProtocolError, SbonError


def archive_of(*members: tuple[tarfile.TarInfo, bytes]) -> io.BytesIO:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for member, data in members:
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    archive.seek(0)
    return archive


def member_of(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize(
    "member",
    [
        member_of("/etc/passwd"),
        member_of("../outside"),
        member_of("a/../../outside"),
        member_of("link", tarfile.SYMTYPE, "/etc"),
        member_of("link", tarfile.LNKTYPE, "../outside"),
        member_of("pipe", tarfile.FIFOTYPE),
        member_of("device", tarfile.CHRTYPE),
    ],
    ids=lambda member: f"{member.name}-{member.type.decode()}",
)
def test_archives_that_reach_outside_are_refused(tmp_path: Path, member: tarfile.TarInfo) -> None:
    with pytest.raises(RemoteProtocolError):
        unpack(archive_of((member_of("first"), b"x"), (member, b"")), tmp_path / "folder")
    assert not (tmp_path / "outside").exists()


def test_an_archive_that_names_a_file_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RemoteProtocolError):
        unpack(archive_of((member_of("a"), b"x"), (member_of("a"), b"y")), tmp_path / "folder")


@given(data=st.binary(max_size=2000))
def test_any_bytes_as_an_archive_raise_protocol_errors_only(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    folder = tmp_path_factory.mktemp("unpack")
    with suppress(RemoteProtocolError):
        unpack(io.BytesIO(data), folder / "in")


def test_two_names_of_one_file_arrive_as_two_files(tmp_path: Path) -> None:
    """State stores have such."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "one").write_bytes(b"state")
    (tmp_path / "out" / "two").hardlink_to(tmp_path / "out" / "one")
    archive = io.BytesIO()
    pack(tmp_path / "out", archive)
    unpack(archive, tmp_path / "in")
    assert [(tmp_path / "in" / name).read_bytes() for name in ("one", "two")] == [b"state", b"state"]


def test_links_are_not_packed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(SbonError, match="neither a file nor a folder"):
        pack(tmp_path, io.BytesIO())
