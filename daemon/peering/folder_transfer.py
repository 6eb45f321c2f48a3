"""Folders on their way: the content of one file after the other, as announced, and nothing else.

It is read once and written once, straight to where it is to lie; nothing a peer sends can reach outside of its folder.
These functions block; the daemon calls them in threads.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from daemon.durable import on_disk, sync_all
from sbon.errors import RemoteProtocolError, SbonError

CHUNK_BYTES = 1024 * 1024
MAX_FOLDER_BYTES = 64 * 1024**3
#: Files and folders in it. A fragment whose reader is away keeps a file for each second or so: this is a day's.
MAX_ENTRIES = 100_000
MAX_DEPTH = 32
#: Files of that size are made durable one by one: the sender does not wait for all of them after the last byte.
_LARGE_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ReceivedFolder:
    """Complete and durable at ``path``. ``digests``: path within -> digest of what has come."""

    path: Path
    digests: Mapping[str, str]


def sizes_of(folder: Path) -> dict[str, int]:
    """Path within ``folder`` -> bytes, of all files in it; folders without any are left out.

    Raises SbonError if there is anything but files and folders in it, since a link would not mean the same elsewhere,
    or more than anybody takes; UnavailableError if it cannot be read.
    """
    found = {}
    with on_disk(folder):
        for path in _walk(folder):
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise SbonError(
                    f"{path} is neither a file nor a folder, and cannot be moved to another host: remove it"
                )
            if path.is_file():
                found[path.relative_to(folder).as_posix()] = path.stat().st_size
    try:
        _check_names(found)
    except RemoteProtocolError as error:
        raise SbonError(f"{folder} cannot be moved to another host: it is {error}") from error
    return found


def _walk(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path)


def chunks_of(folder: Path, sizes: Mapping[str, int]) -> Iterator[bytes]:
    """The contents of the files of ``folder``, one after the other, in pieces of CHUNK_BYTES, the last one less.

    Raises SbonError if one of them has not the size (path -> bytes) that it had; UnavailableError if it cannot be read.
    """
    piece = bytearray()
    for name, size_bytes in sizes.items():
        with on_disk(folder), (folder / name).open("rb") as file:
            while chunk := file.read(CHUNK_BYTES - len(piece)):
                piece += chunk
                if len(piece) == CHUNK_BYTES:
                    yield bytes(piece)
                    piece.clear()
            if file.tell() != size_bytes:
                raise SbonError(f"{folder / name} has changed while it was sent: try again")
    if piece:
        yield bytes(piece)


class Unpacking:
    """Puts what comes of a folder into the new ``folder``."""

    def __init__(self, folder: Path, sizes: Mapping[str, int]) -> None:
        """``sizes`` (path -> bytes) as the sender has announced them. Raises RemoteProtocolError for a path that leads
        elsewhere, for too many of them, or for a size that no folder has."""
        _check_names(sizes)
        for size_bytes in sizes.values():
            if size_bytes < 0:
                raise RemoteProtocolError(f"a folder with a file of {size_bytes} bytes")
        self.total_bytes = sum(sizes.values())
        if self.total_bytes > MAX_FOLDER_BYTES:
            raise RemoteProtocolError(f"a folder of {self.total_bytes} bytes")
        self.lacking_bytes = self.total_bytes
        self._folder = folder
        self._announced = iter(sizes.items())
        self._digests: dict[str, str] = {}
        self._file: IO[bytes] | None = None
        self._name = ""
        self._digest = new_digest()
        self._file_lacks = 0

    def begin(self) -> None:
        """Raises RemoteProtocolError if a file is announced as a folder, too."""
        self._folder.mkdir()
        self._next_file()

    def take(self, data: bytes) -> None:
        """Some of it has come. Raises RemoteProtocolError if that is more than was announced."""
        if len(data) > self.lacking_bytes:
            raise RemoteProtocolError("a folder that is longer than announced")
        self.lacking_bytes -= len(data)
        rest = memoryview(data)
        while rest:
            assert self._file is not None
            part, rest = rest[: self._file_lacks], rest[self._file_lacks :]
            self._file.write(part)
            self._digest.update(part)
            self._file_lacks -= len(part)
            if not self._file_lacks:
                self._next_file()

    def _next_file(self) -> None:
        """The one before is complete. Empty ones are, too, at once."""
        self._complete()
        while not self._file_lacks and (announced := next(self._announced, None)) is not None:
            self._name, self._file_lacks = announced
            path = self._folder / self._name
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = path.open("xb")
            except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
                raise RemoteProtocolError(f"a folder with {self._name!r} as a file and as a folder") from error
            if not self._file_lacks:
                self._complete()

    def _complete(self) -> None:
        if self._file is None:
            return
        if self._file.tell() >= _LARGE_BYTES:
            self._file.flush()
            os.fsync(self._file.fileno())
        self.close()
        self._digests[self._name] = self._digest.hexdigest()
        self._digest = new_digest()

    def close(self) -> None:
        """The file that is being written, if any: nothing more comes."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def finish(self) -> ReceivedFolder:
        """All of it has come: make it durable."""
        assert not self.lacking_bytes
        sync_all([self._folder.parent, self._folder, *_walk(self._folder)])
        return ReceivedFolder(self._folder, self._digests)


def _check_names(names: Collection[str]) -> None:
    folders: set[str] = set()
    for name in names:
        _check_name(name)
        folder = name.rpartition("/")[0]
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
        if len(names) + len(folders) > MAX_ENTRIES:
            raise RemoteProtocolError(f"a folder with more than {MAX_ENTRIES} files and folders in it")


def _check_name(name: str) -> None:
    parts = name.split("/")
    if not {"", ".", ".."}.isdisjoint(parts) or "\0" in name:
        raise RemoteProtocolError(f"a folder with the path {name!r} in it")
    if len(parts) > MAX_DEPTH:
        raise RemoteProtocolError(f"a folder with a path of {len(parts)} names in it")
    if any(len(os.fsencode(part)) > 255 for part in parts):
        raise RemoteProtocolError("a folder with a name that is too long in it")


def new_digest(data: bytes = b"") -> hashlib.blake2b:
    """By which the contents of files are known."""
    return hashlib.blake2b(data, digest_size=32)
