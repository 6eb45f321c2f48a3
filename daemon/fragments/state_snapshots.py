"""What of a checkpoint can follow later.

Spark writes with each batch what has changed in its state, and now and then all of it, as a *snapshot*: in a folder for
each store ``<version>.zip`` and the files of RocksDB that it names. A start takes a snapshot and the changes since. So
whoever has the one before, and all changes since then, needs no new one to go on, and nothing has to wait until it has
travelled: only the next start takes longer.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

_VERSION = re.compile(r"(checkpoint/state/.+)/\.?(\d+)\.(zip|changelog)(?:\.crc)?")
_PART = re.compile(r"(checkpoint/state/.+)/(?:SSTs|logs)/[^/]+")


def following(files: Mapping[str, str], known: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """What makes ``files`` (path -> digest) a state that can be started from without the snapshots that are not
    ``known`` where it is sent: those files, some perhaps only there, and what follows later."""
    stores: defaultdict[str, set[str]] = defaultdict(set)
    for name, digest in files.items():
        if known.get(name) != digest and (found := _snapshot_of(name)) is not None:
            stores[found].add(name)
    now, later = dict(files), dict[str, str]()
    for store, parts in stores.items():
        here = {name: digest for name, digest in files.items() if _store_of(name) == store}
        there = {name: digest for name, digest in known.items() if _store_of(name) == store}
        rest = there | {name: digest for name, digest in here.items() if name not in parts}
        if _is_whole(rest, _newest(here)):
            now = {name: digest for name, digest in now.items() if name not in parts} | rest
            later |= {name: here[name] for name in parts}
    return now, later


def _store_of(name: str) -> str | None:
    found = _PART.fullmatch(name) or _VERSION.fullmatch(name)
    return None if found is None else found[1]


def _snapshot_of(name: str) -> str | None:
    """The store of a file that belongs to snapshots only."""
    if part := _PART.fullmatch(name):
        return part[1]
    version = _VERSION.fullmatch(name)
    return version[1] if version is not None and version[3] == "zip" else None


def _versions(names: Iterable[str], kind: str) -> set[int]:
    found = (_VERSION.fullmatch(name) for name in names)
    return {int(version[2]) for version in found if version is not None and version[3] == kind}


def _newest(names: Iterable[str]) -> int:
    return max(_versions(names, "zip") | _versions(names, "changelog"), default=0)


def _is_whole(names: Iterable[str], newest: int) -> bool:
    """Whether version ``newest`` can be made of them; version 0 is an empty state."""
    names = tuple(names)
    changes = _versions(names, "changelog")
    return any(changes.issuperset(range(base + 1, newest + 1)) for base in {0} | _versions(names, "zip"))
