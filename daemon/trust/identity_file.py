"""What a node keeps of itself over restarts: key, certificate, last boot id, whom it knew, and its place."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from daemon.durable import write_durably
from overlay.identity import Identity, NodeId
from overlay.records import Address
from sbon.coordinate import Coordinate
from sbon.errors import SbonError

KEY_FILE = "identity.key"
BOOT_FILE = "boot"
MEMBERS_FILE = "members.json"
MEMBERSHIP_FILE = "membership.json"
REVOCATIONS_FILE = "revocations"
PLACE_FILE = "place.json"
LOCK_FILE = "lock"
MAX_KEPT_MEMBERS = 64
#: A place older than this is not even a hint: all places together have wandered.
MAX_PLACE_AGE_MS = 24 * 3600 * 1000


class Membership(msgspec.Struct, frozen=True):
    """What a host has brought back from its join. ``authority_*``: where certificates are renewed; all empty on the
    host of the authority itself."""

    authority_key: bytes
    certificate: bytes
    authority_id: NodeId = ""
    authority_host: str = ""
    authority_port: int = 0


class KeptPlace(msgspec.Struct, frozen=True):
    """Where a node was. ``at_ms``: when, in ms since 1970."""

    coordinate: Coordinate
    at_ms: int


class StateFolder:
    """A node's state directory, locked against a second daemon for as long as this object lives."""

    def __init__(self, folder: Path) -> None:
        """Raises SbonError if the folder cannot be used or another daemon uses it."""
        self._folder = folder
        try:
            folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SbonError(f"cannot use the state directory {folder}: {error.strerror}: set node.state_dir") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise SbonError(
                f"another daemon uses the state directory {folder}: stop it, or set node.state_dir to another folder"
            ) from None

    def close(self) -> None:
        os.close(self._lock)

    @property
    def path(self) -> Path:
        return self._folder

    def identity(self) -> Identity:
        """The node's key pair, made at the first start. Raises SbonError if the file is damaged."""
        file = self._folder / KEY_FILE
        try:
            return Identity.from_private_bytes(file.read_bytes())
        except FileNotFoundError:
            identity = Identity.generate()
            write_durably(file, identity.private_bytes(), mode=0o600)
            return identity
        except ValueError as error:
            raise SbonError(f"{file} is not a key ({error}): restore it, or delete it to become a new node") from error

    def keep_membership(self, membership: Membership) -> None:
        write_durably(self._folder / MEMBERSHIP_FILE, msgspec.json.encode(membership))

    def membership(self) -> Membership | None:
        """None if this host has never joined a cluster. Raises SbonError if the file is damaged."""
        file = self._folder / MEMBERSHIP_FILE
        try:
            return msgspec.json.decode(file.read_bytes(), type=Membership)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise SbonError(f"{file} is damaged ({error}): delete it, and join again with a new token") from error

    def keep_revocations(self, encoded: bytes) -> None:
        write_durably(self._folder / REVOCATIONS_FILE, encoded)

    def revocations(self) -> bytes | None:
        try:
            return (self._folder / REVOCATIONS_FILE).read_bytes()
        except FileNotFoundError:
            return None

    def next_boot_id(self, now_ms: int) -> int:
        """``now_ms``, but more than ever before, even if the clock went back."""
        file = self._folder / BOOT_FILE
        try:
            last = int(file.read_text())
        except (FileNotFoundError, ValueError):
            last = 0
        boot_id = max(now_ms, last + 1)
        write_durably(file, str(boot_id).encode())
        return boot_id

    def keep_members(self, addresses: Iterable[Address]) -> None:
        """Remember whom to join at the next start; nobody after a leave."""
        write_durably(self._folder / MEMBERS_FILE, msgspec.json.encode(list(addresses)[:MAX_KEPT_MEMBERS]))

    def kept_members(self) -> list[Address]:
        try:
            return msgspec.json.decode((self._folder / MEMBERS_FILE).read_bytes(), type=list[tuple[str, int]])
        except (FileNotFoundError, msgspec.MsgspecError):
            return []

    def keep_place(self, coordinate: Coordinate, now_ms: int) -> None:
        write_durably(self._folder / PLACE_FILE, msgspec.json.encode(KeptPlace(coordinate, now_ms)))

    def kept_place(self, now_ms: int) -> Coordinate | None:
        """The last place that was kept; None if there is none, or it is too old or from the future. Not checked."""
        try:
            kept = msgspec.json.decode((self._folder / PLACE_FILE).read_bytes(), type=KeptPlace)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
        return kept.coordinate if 0 <= now_ms - kept.at_ms <= MAX_PLACE_AGE_MS else None
