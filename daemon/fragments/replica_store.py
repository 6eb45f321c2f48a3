"""Replicas that this host keeps of other hosts' fragments: whole folders, each in force at once or not at all.

``<root>/<fragment>.<generation>.<batch>`` is complete as soon as it has that name. A newer one shares, by hard links,
the files that are the same; so none is ever changed. Files that come ahead of the state that has them lie beside it,
and are forgotten when the daemon ends: the owner is told that they are missing, and sends them again.

These functions block; the daemon calls them in threads, one at a time for each fragment.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec

from daemon.durable import sync, sync_all, write_durably
from daemon.peering.folder_transfer import CHUNK_BYTES, new_digest
from daemon.peering.keeper_messages import StoreReplica
from daemon.peering.move_messages import AcceptFragment
from sbon.errors import SbonError, StaleGenerationError

log = logging.getLogger("sbon.replicas")

_RECORD_FILE = "replica.msgpack"
_STATE = "state"
#: Files that are changed in place by whoever runs the fragment; all others are only ever replaced.
CHANGED_IN_PLACE = frozenset({".sqlite"})


@dataclass(frozen=True, slots=True)
class _Files:
    """Below ``folder``: path -> digest."""

    folder: Path
    digests: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Replica:
    """What is kept of one fragment."""

    folder: Path
    record: StoreReplica

    @property
    def age(self) -> tuple[int, int]:
        """(generation, batch): the greater one is the newer one."""
        return self.record.assignment.generation, self.record.batch_id

    @property
    def state(self) -> _Files:
        return _Files(self.folder / _STATE, self.record.files)

    def state_bytes(self) -> int:
        """Of all its files. One that is being replaced may seem smaller."""
        total = 0
        for name in self.record.files:
            with suppress(FileNotFoundError):
                total += (self.folder / _STATE / name).stat().st_size
        return total


class ReplicaStore:
    """All replicas on this host."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._replicas: dict[str, Replica] = {}
        #: Those that were looked through, and are as they were stored.
        self._whole: dict[str, Path] = {}
        #: Files that have come ahead of their state.
        self._ahead: dict[str, _Files] = {}
        root.mkdir(parents=True, exist_ok=True)
        for folder in root.iterdir():
            self._load(folder)

    def _load(self, folder: Path) -> None:
        try:
            record = msgspec.msgpack.decode((folder / _RECORD_FILE).read_bytes(), type=StoreReplica)
        except (OSError, msgspec.MsgspecError):
            log.info("deleting %s: it was not complete", folder)
            shutil.rmtree(folder, ignore_errors=True)
            return
        replica = Replica(folder, record)
        known = self.find(record.assignment.fragment_id)
        older = replica if known is not None and known.age > replica.age else known
        if known is None or older is known:
            self._replicas[record.assignment.fragment_id] = replica
        if older is not None:
            shutil.rmtree(older.folder, ignore_errors=True)

    @property
    def replicas(self) -> list[Replica]:
        return list(self._replicas.values())

    def find(self, fragment_id: str) -> Replica | None:
        return self._replicas.get(fragment_id)

    def store(self, record: StoreReplica, received: Path) -> None:
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
        building = self._root / f".{fragment_id}.new"
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir()
        try:
            _gather(fragment_id, record.files, received, self._sources(fragment_id), building / _STATE)
            write_durably(building / _RECORD_FILE, msgspec.msgpack.encode(record))
            final = self._root / f"{fragment_id}.{generation}.{record.batch_id}"
            shutil.rmtree(final, ignore_errors=True)
            building.rename(final)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise
        sync(self._root)
        self._replicas[fragment_id] = Replica(final, record)
        if known is not None and known.folder != final:
            shutil.rmtree(known.folder, ignore_errors=True)
        ahead = self._ahead.get(fragment_id)
        if ahead is not None and ahead.digests.items() & record.files.items():
            self._drop_ahead(fragment_id)

    def _sources(self, fragment_id: str) -> list[_Files]:
        replica, ahead = self.find(fragment_id), self._ahead.get(fragment_id)
        return [*([] if replica is None else [replica.state]), *([] if ahead is None else [ahead])]

    def store_ahead(self, fragment_id: str, files: dict[str, str], received: Path) -> None:
        """Keep these ``files`` until the state that has them comes: those received, and those that came ahead before.
        Raises SbonError if some are missing, or not what was announced."""
        before = self._ahead.get(fragment_id)
        building, folder = (self._root / f".{fragment_id}.{name}" for name in ("coming", "ahead"))
        shutil.rmtree(building, ignore_errors=True)
        _gather(fragment_id, files, received, () if before is None else (before,), building)
        self._drop_ahead(fragment_id)
        building.rename(folder)
        self._ahead[fragment_id] = _Files(folder, files)

    def _drop_ahead(self, fragment_id: str) -> None:
        self._ahead.pop(fragment_id, None)
        shutil.rmtree(self._root / f".{fragment_id}.ahead", ignore_errors=True)

    def complete(self, message: AcceptFragment, received: Path) -> Path:
        """A folder with all files of the fragment that is handed over: those received, and those kept of it here."""
        fragment_id, whole = message.assignment.fragment_id, received.with_name("whole")
        _gather(fragment_id, message.files, received, self._sources(fragment_id), whole)
        return whole

    def copy_to(self, fragment_id: str, folder: Path) -> None:
        """Put the state into ``folder``, in place of what is there, for somebody who runs it. SbonError if there is
        none."""
        replica = self.find(fragment_id)
        if replica is None:
            raise SbonError(f"the node has no replica of {fragment_id}")
        shutil.rmtree(folder, ignore_errors=True)
        clone(replica.folder / _STATE, folder)

    def find_damage(self, fragment_id: str) -> str | None:
        """One line about the first file of the replica that is not what was stored, None if there is none. Reads all
        of it, once."""
        replica = self.find(fragment_id)
        if replica is None or replica.folder == self._whole.get(fragment_id):
            return None
        for name, digest in replica.record.files.items():
            path = replica.folder / _STATE / name
            try:
                if _digest(path) != digest:
                    return f"{path} is damaged on this host's disk: its digest is another one"
            except OSError as error:
                return f"{path} is damaged on this host's disk: {error.strerror}"
        self._whole[fragment_id] = replica.folder
        return None

    def drop(self, fragment_id: str) -> None:
        """Delete what is here."""
        self._drop_ahead(fragment_id)
        replica = self._replicas.pop(fragment_id, None)
        if replica is not None:
            shutil.rmtree(replica.folder, ignore_errors=True)


def _gather(fragment_id: str, files: Mapping[str, str], received: Path, known: Sequence[_Files], target: Path) -> None:
    """Put ``files`` into the new ``target``, durably: from what was received, or else from what is known.

    Raises SbonError for a path that leads elsewhere, or if a file is in none of them, or is not what was announced.
    """
    target.mkdir()
    new = {target}
    for name, digest in files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise SbonError(f"a folder with the path {name!r} in it")
        if (received / path).is_file():
            source = received / path
            if _digest(source) != digest:
                raise SbonError(f"{name} of {fragment_id} is not what was announced: it is damaged at its host")
        elif (folder := next((each.folder for each in known if each.digests.get(name) == digest), None)) is not None:
            source = folder / path
        else:
            raise SbonError(f"{name} of {fragment_id} is missing: send it, too")
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        new |= {target / parent for parent in path.parents}
        if _take(source, target / path):
            new.add(target / path)
    sync_all(new)


def _take(source: Path, target: Path) -> bool:
    """A hard link, or a copy of what is changed in place: True, it is not durable yet."""
    if source.suffix not in CHANGED_IN_PLACE:
        os.link(source, target)
        return False
    shutil.copyfile(source, target)
    return True


def clone(folder: Path, target: Path) -> None:
    """The files of ``folder`` under the new ``target``, by hard links, those that are changed in place as copies."""
    target.mkdir(parents=True)
    new = [target]
    for path in sorted(folder.rglob("*")):
        copy = target / path.relative_to(folder)
        if path.is_dir():
            copy.mkdir(exist_ok=True)
            new.append(copy)
        elif _take(path, copy):
            new.append(copy)
    sync_all(new)


class Digests:
    """Digests of files, computed once for each content: a replaced file has another inode or time."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, int, int], str]] = {}

    def bytes_of(self, names: Iterable[str]) -> int:
        """Of files that were there when they were last looked at."""
        return sum(self._known[name][0][2] for name in names)

    def of(self, folder: Path, without: Container[str] = ()) -> dict[str, str]:
        """Path within ``folder`` -> digest, of all files in it but those. FileNotFoundError if it is deleted meanwhile
        (:func:`daemon.durable.remove_at_once`): what was seen of it may be a part."""
        found: dict[str, tuple[tuple[int, int, int], str]] = {}
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if path.is_file() and name not in without:
                status = path.stat()
                version = (status.st_ino, status.st_mtime_ns, status.st_size)
                known = self._known.get(name)
                found[name] = known if known is not None and known[0] == version else (version, _digest(path))
        folder.stat()
        self._known = found
        return {name: digest for name, (_, digest) in found.items()}


def _digest(path: Path) -> str:
    digest = new_digest()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
