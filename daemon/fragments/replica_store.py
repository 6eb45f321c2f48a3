"""Replicas that this host keeps of other hosts' fragments, each batch in force at once or not at all.

``<root>/<fragment>/files`` has contents, named by their digests and never changed; the record beside it, replaced with
each batch, says which of them are the state, and under which paths. So a batch costs what has changed, however many
files the state has. What no record needs any more is deleted after it. Files that come ahead of the state that has
them are forgotten when the daemon ends: the owner is told that they are missing, and sends them again.

These functions block; the daemon calls them in threads, one at a time for each fragment (:meth:`ReplicaStore.turn`).
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from weakref import WeakValueDictionary

import msgspec
import trio

from daemon.durable import on_disk, sync, sync_all, write_durably
from daemon.peering.folder_transfer import CHUNK_BYTES, ReceivedFolder, new_digest
from daemon.peering.keeper_messages import StoreReplica
from daemon.peering.move_messages import AcceptFragment
from daemon.peering.well_formed import check_fragment_id
from sbon.errors import SbonError, StaleGenerationError, UnavailableError

log = logging.getLogger("sbon.replicas")

_RECORD_FILE = "replica.msgpack"
_CONTENTS = "files"
#: Of a replica that a fragment has left behind: older than any that its new owner sends.
LEFT_BEHIND = -1
#: Files that are changed in place by whoever runs the fragment; all others are only ever replaced.
CHANGED_IN_PLACE = frozenset({".sqlite"})


@dataclass(frozen=True, slots=True)
class Replica:
    """What is kept of one fragment."""

    contents: Path
    record: StoreReplica

    @property
    def age(self) -> tuple[int, int]:
        """(generation, batch): the greater one is the newer one."""
        return self.record.assignment.generation, self.record.batch_id

    @property
    def is_left_behind(self) -> bool:
        """A fragment was here, and its new owner has sent nothing yet: nobody counts on it."""
        return self.record.batch_id == LEFT_BEHIND

    def state_bytes(self) -> int:
        """Of all its files. One that is being replaced may seem smaller."""
        total = 0
        for digest in self.record.files.values():
            with suppress(FileNotFoundError):
                total += (self.contents / digest).stat().st_size
        return total


class ReplicaStore:
    """All replicas on this host."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._replicas: dict[str, Replica] = {}
        #: Those that were looked through, and are as they were stored: their age.
        self._whole: dict[str, tuple[int, int]] = {}
        #: Files that have come ahead of their state: path -> digest.
        self._ahead: dict[str, dict[str, str]] = {}
        #: Of those who have one, or wait for it: anybody may ask about any fragment.
        self._turns: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()
        root.mkdir(parents=True, exist_ok=True)
        for folder in root.iterdir():
            self._load(folder)

    def _load(self, folder: Path) -> None:
        contents = folder / _CONTENTS
        # What cannot be read now, for want of file descriptors, say, is not lost for that.
        with on_disk(folder), suppress(FileNotFoundError, NotADirectoryError, msgspec.MsgspecError):
            record = msgspec.msgpack.decode((folder / _RECORD_FILE).read_bytes(), type=StoreReplica)
            if {path.name for path in contents.iterdir()}.issuperset(record.files.values()):
                self._replicas[folder.name] = Replica(contents, record)
                self._drop_unneeded(folder.name)
                return
        log.info("deleting %s: it was not complete", folder)
        shutil.rmtree(folder, ignore_errors=True)

    @property
    def replicas(self) -> list[Replica]:
        return list(self._replicas.values())

    def find(self, fragment_id: str) -> Replica | None:
        return self._replicas.get(fragment_id)

    def turn(self, fragment_id: str) -> trio.Lock:
        """Whoever has it is the only one who changes what is kept of that fragment."""
        return self._turns.setdefault(fragment_id, trio.Lock())

    def _folder(self, fragment_id: str) -> Path:
        """Raises SbonError for an id that is not one of ours: it comes from a peer, and becomes a path."""
        check_fragment_id(fragment_id)
        return self._root / fragment_id

    def _contents(self, fragment_id: str) -> Path:
        return self._folder(fragment_id) / _CONTENTS

    def store(self, record: StoreReplica, received: ReceivedFolder) -> None:
        """Make the state of ``record`` the replica; ``received`` has the files of it that were not here.

        Raises StaleGenerationError if a later owner's is here, SbonError if files are missing. An older state of the
        same owner (it comes late) is done with.
        """
        fragment_id, generation = record.assignment.fragment_id, record.assignment.generation
        known = self.find(fragment_id)
        if known is not None and known.age >= (generation, record.batch_id):
            if known.record.assignment.generation > generation:
                raise StaleGenerationError(f"the node has the state of {fragment_id} from a later owner")
            return
        self._put_in_force(record, self._take_in(fragment_id, record.files, received))

    def _put_in_force(self, record: StoreReplica, contents: Path) -> None:
        fragment_id = record.assignment.fragment_id
        is_new = fragment_id not in self._replicas
        try:
            write_durably(contents.parent / _RECORD_FILE, msgspec.msgpack.encode(record))
        except UnavailableError:  # the disk is full, say: what no record has is not to stay on it
            self._drop_unneeded(fragment_id)
            raise
        if is_new:
            sync(self._root)
        self._replicas[fragment_id] = Replica(contents, record)
        if self._ahead.get(fragment_id, {}).items() & record.files.items():
            del self._ahead[fragment_id]
        self._drop_unneeded(fragment_id)

    def take_over(self, record: StoreReplica, folder: Path) -> None:
        """What is in ``folder``, of a fragment that has left this host, becomes the replica, without a copy: then its
        new owner need not send all of it. Not if that has sent something already."""
        fragment_id = record.assignment.fragment_id
        known = self.find(fragment_id)
        if known is not None and known.age >= (record.assignment.generation, record.batch_id):
            return
        contents = self._contents(fragment_id)
        contents.mkdir(parents=True, exist_ok=True)
        here = {path.name for path in contents.iterdir()}
        new = {digest: name for name, digest in record.files.items() if digest not in here}
        for digest, name in new.items():
            os.link(folder / name, contents / digest)
        sync_all([*(contents / digest for digest in new), contents])
        self._put_in_force(record, contents)

    def store_ahead(self, fragment_id: str, files: dict[str, str], received: ReceivedFolder) -> None:
        """Keep these ``files`` until the state that has them comes: those received, and those that are here. Raises
        SbonError if some are missing, or not what was announced."""
        self._take_in(fragment_id, files, received)
        self._ahead[fragment_id] = files
        self._drop_unneeded(fragment_id)

    def _take_in(self, fragment_id: str, files: Mapping[str, str], received: ReceivedFolder) -> Path:
        """Put those of ``files`` that were received to those that are here, durably. Returns where."""
        contents = self._contents(fragment_id)
        new = _received(fragment_id, files, received, self._here(fragment_id))
        with on_disk(contents):
            contents.mkdir(parents=True, exist_ok=True)
            for digest, path in new.items():
                path.replace(contents / digest)
        if new:
            sync(contents)
        return contents

    def _here(self, fragment_id: str) -> set[str]:
        """Digests of what is kept."""
        replica = self.find(fragment_id)
        state = () if replica is None else replica.record.files.values()
        return {*state, *self._ahead.get(fragment_id, {}).values()}

    def _drop_unneeded(self, fragment_id: str) -> None:
        here = self._here(fragment_id)
        for path in self._contents(fragment_id).iterdir():
            if path.name not in here:
                path.unlink()

    def complete(self, message: AcceptFragment, received: ReceivedFolder) -> Path:
        """A folder with all files of the fragment that is handed over: those received, and those kept of it here."""
        fragment_id, whole = message.assignment.fragment_id, received.path.with_name("whole")
        new = _received(fragment_id, message.files, received, self._here(fragment_id))
        contents = self._contents(fragment_id)
        _build(whole, {name: new.get(digest, contents / digest) for name, digest in message.files.items()})
        return whole

    def copy_to(self, fragment_id: str, folder: Path) -> None:
        """Put the state into ``folder``, in place of what is there, for somebody who runs it. SbonError if there is
        none, UnavailableError if it has been replaced meanwhile or the disk is full."""
        replica = self.find(fragment_id)
        if replica is None:
            raise SbonError(f"the node has no replica of {fragment_id}")
        shutil.rmtree(folder, ignore_errors=True)
        _build(folder, {name: replica.contents / digest for name, digest in replica.record.files.items()})

    def find_damage(self, fragment_id: str) -> str | None:
        """One line about the first file of the replica that is not what was stored, None if there is none. Reads all
        of it, once."""
        replica = self.find(fragment_id)
        if replica is None or replica.age == self._whole.get(fragment_id):
            return None
        for name, digest in replica.record.files.items():
            path = replica.contents / digest
            try:
                if _digest(path) != digest:
                    return f"{name} is damaged on this host's disk: its digest is another one ({path})"
            except OSError as error:
                return f"{name} is damaged on this host's disk: {error.strerror} ({path})"
        self._whole[fragment_id] = replica.age
        return None

    def drop(self, fragment_id: str) -> None:
        """Delete what is here."""
        self._replicas.pop(fragment_id, None)
        self._ahead.pop(fragment_id, None)
        self._whole.pop(fragment_id, None)
        shutil.rmtree(self._folder(fragment_id), ignore_errors=True)


def _received(
    fragment_id: str, files: Mapping[str, str], received: ReceivedFolder, here: Container[str]
) -> dict[str, Path]:
    """Which contents of ``files`` (path -> digest) were received (digest -> where); all others are ``here``.

    Raises SbonError for a path that leads elsewhere, or if a content is in none of them, or is not what was announced.
    """
    found = {}
    for name, digest in files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
            raise SbonError(f"a folder with the path {name!r} in it")
        if name in received.digests:
            if received.digests[name] != digest:
                raise SbonError(f"{name} of {fragment_id} is not what was announced: it is damaged at its host")
            found[digest] = received.path / name
    for name, digest in files.items():
        if digest not in found and digest not in here:
            raise SbonError(f"{name} of {fragment_id} is missing: send it, too")
    return found


def _build(target: Path, sources: Mapping[str, Path]) -> None:
    """Make the new folder ``target``, durably, of ``sources`` by their paths in it."""
    new = {target}
    with on_disk(target):
        target.mkdir(parents=True)
        for name, source in sources.items():
            path = target / name
            if path.parent not in new:
                path.parent.mkdir(parents=True, exist_ok=True)
                new |= {target / parent for parent in PurePosixPath(name).parents}
            if _take(source, path):
                new.add(path)
    sync_all(new)


def _take(source: Path, target: Path) -> bool:
    """A hard link, or a copy of what is changed in place: True, it is not durable yet."""
    if target.suffix not in CHANGED_IN_PLACE:
        os.link(source, target)
        return False
    shutil.copyfile(source, target)
    return True


class Digests:
    """Digests of files, computed once for each content: a replaced file has another inode or time, and one that has a
    second name, as a link, is the same."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], str] = {}

    def of(self, folder: Path, without: Container[str] = ()) -> dict[str, str]:
        """Path within ``folder`` -> digest, of all files in it but those. FileNotFoundError if it is deleted meanwhile
        (:func:`daemon.durable.remove_at_once`): what was seen of it may be a part."""
        found, known = dict[str, str](), dict[tuple[int, int, int], str]()
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if path.is_file() and name not in without:
                status = path.stat()
                version = (status.st_ino, status.st_mtime_ns, status.st_size)
                digest = self._known.get(version) or known.get(version) or _digest(path)
                found[name] = known[version] = digest
        folder.stat()
        self._known = known
        return found


def _digest(path: Path) -> str:
    digest = new_digest()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
