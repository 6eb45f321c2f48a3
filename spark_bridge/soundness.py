"""Is what a fragment has on this disk what was once written there? Asked when it has failed: most failures pass, this
one does not, and another host may have a copy.

Spark's files carry checksums beside them (Hadoop writes `.name.crc`: a header of 8 bytes, then the CRC-32 of each 512
bytes or so), our segments inside, and SQLite checks its own pages.
"""

from __future__ import annotations

import sqlite3
import struct
import zlib
from contextlib import closing
from pathlib import Path

from sbon.errors import RemoteProtocolError
from spark_bridge.changing_folder import files_under
from spark_bridge.segment import decode_segment

_MAGIC = b"crc\0"


def find_damage(folder: Path) -> str | None:
    """One line about the first damaged file of the fragment in ``folder``, None if there is none. Reads everything."""
    for path in files_under(folder):
        try:
            reason = _damage_of(path)
        except FileNotFoundError:  # Spark tidies up, perhaps
            continue
        except OSError as error:
            reason = error.strerror
        if reason is not None:
            return f"{path} is damaged on this host's disk: {reason}"
    return None


def _damage_of(path: Path) -> str | None:
    checksums = path.with_name(f".{path.name}.crc")
    if path.suffix == ".segment":
        return _damage_of_segment(path)
    if path.suffix == ".sqlite":
        return _damage_of_database(path)
    if path.suffix != ".crc" and checksums.exists():
        return _damage_of_checked(path, checksums.read_bytes())
    return None


def _damage_of_segment(path: Path) -> str | None:
    try:
        decode_segment(path.read_bytes())
    except RemoteProtocolError as error:
        return str(error)
    return None


def _damage_of_database(path: Path) -> str | None:
    try:
        with closing(sqlite3.connect(path, timeout=30)) as database:
            (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError:  # somebody writes there: it can be read then
        return None
    except sqlite3.DatabaseError as error:
        return str(error)
    return None if found == "ok" else str(found)


def _damage_of_checked(path: Path, checksums: bytes) -> str | None:
    if len(checksums) < 8 or checksums[:4] != _MAGIC:
        return None  # Hadoop does not look at it either
    (chunk_bytes,) = struct.unpack(">i", checksums[4:8])
    if chunk_bytes <= 0:
        return f"its checksums are of {chunk_bytes} bytes each"
    data = path.read_bytes()
    found = b"".join(
        struct.pack(">I", zlib.crc32(data[at : at + chunk_bytes])) for at in range(0, len(data), chunk_bytes)
    )
    return None if found == checksums[8:] else "its checksum is another one"
