"""Folders as tar files: packed and unpacked so that nothing a peer sends can reach outside of its folder.

These functions block; the daemon calls them in threads.
"""

from __future__ import annotations

import hashlib
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from daemon.durable import sync_all
from sbon.errors import RemoteProtocolError, SbonError

CHUNK_BYTES = 1024 * 1024
MAX_MEMBERS = 200_000


def pack(folder: Path, archive: IO[bytes]) -> tuple[int, str]:
    """Write ``folder``'s content to ``archive`` and go back to its start; returns its bytes and digest.

    Raises SbonError if there is anything but files and folders in it: a link would not mean the same elsewhere.
    """
    # Two names of one file (state stores have such) are packed as two files: hence "dereference".
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT, dereference=True) as tar:
        for path in _walk(folder):
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise SbonError(
                    f"{path} is neither a file nor a folder, and cannot be moved to another host: remove it"
                )
            tar.add(path, arcname=path.relative_to(folder).as_posix(), recursive=False)
    total_bytes = archive.tell()
    archive.seek(0)
    digest = new_digest()
    while chunk := archive.read(CHUNK_BYTES):
        digest.update(chunk)
    archive.seek(0)
    return total_bytes, digest.hexdigest()


def _walk(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path)


def unpack(archive: IO[bytes], folder: Path) -> None:
    """Unpack into the new ``folder`` and sync every file of it to disk.

    Raises RemoteProtocolError for an archive that is broken, or that holds links, devices, absolute paths or "..".
    """
    folder.mkdir()
    try:
        with tarfile.open(fileobj=archive, mode="r:") as tar:
            for count, member in enumerate(tar):
                if count >= MAX_MEMBERS:
                    raise RemoteProtocolError(f"a folder of more than {MAX_MEMBERS} files")
                _unpack_member(tar, member, folder / _safe_name(member.name))
    except (tarfile.TarError, UnicodeError, ValueError, FileExistsError, NotADirectoryError) as error:
        raise RemoteProtocolError(f"not a folder's archive: {error}") from error
    sync_all([folder.parent, folder, *_walk(folder)])


def _safe_name(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
        raise RemoteProtocolError(f"a folder's archive with the path {name!r} in it")
    return path


def _unpack_member(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    if not member.isreg() or member.issparse():
        raise RemoteProtocolError(f"a folder's archive in which {member.name!r} is not a plain file")
    source = tar.extractfile(member)
    assert source is not None
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as file:
        shutil.copyfileobj(source, file, CHUNK_BYTES)


def new_digest(data: bytes = b"") -> hashlib.blake2b:
    """The digest that travels with an archive."""
    return hashlib.blake2b(data, digest_size=32)
