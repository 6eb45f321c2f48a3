"""How nodes are named to each other in few bytes: records with their ages, and ends of ids.

Requests say which nodes need not be named, by the ends of their ids; replies have records, each with the time since its
node surely was alive (:mod:`overlay.messages`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from overlay.identity import NodeId
from overlay.messages import Packed

#: So many bytes at the end of an id tell the neighbours of one node apart, very nearly always.
ID_END_BYTES: Final = 3
#: The age of a record takes one byte.
MAX_AGE_S: Final = 254
NOT_KNOWN: Final = 255
#: What a reply has beside its records, at most.
REPLY_FRAME_BYTES: Final = 32


def fitting(known: Iterable[tuple[Packed, float]], room: int) -> tuple[tuple[Packed, ...], bytes]:
    """Of records and their ages in seconds, the first that fit ``room`` bytes, as they stand in a reply."""
    records: list[Packed] = []
    ages = bytearray()
    for packed, age_s in known:
        room -= len(packed) + 4
        if room < 0:
            break
        records.append(packed)
        ages.append(age_byte(age_s))
    return tuple(records), bytes(ages)


def age_byte(age_s: float) -> int:
    return max(0, min(MAX_AGE_S, int(age_s)))


def is_newer(incarnation: int, than: int) -> bool:
    """Whether an incarnation is newer than one of which only the last byte is known."""
    return 0 < (incarnation - than) % 256 < 128


def with_ages(records: Iterable[Packed], ages: bytes) -> Iterator[tuple[Packed, float]]:
    """The records of a reply with their ages in seconds."""
    for index, packed in enumerate(records):
        yield packed, float(ages[index]) if index < len(ages) else 0.0


def id_end(node_id: NodeId) -> bytes:
    """The end of an id, as it stands in an exchange."""
    return bytes.fromhex(node_id[-2 * ID_END_BYTES :])


def id_ends(packed: bytes) -> list[bytes]:
    return [packed[at : at + ID_END_BYTES] for at in range(0, len(packed), ID_END_BYTES)]
