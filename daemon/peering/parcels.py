"""State on its way to another host: only the files that it does not have."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec
import trio

from daemon.peering.peers import Peers
from daemon.peering.requests import Done


class Parcels:
    """Sends folders. What is on its way lies under ``scratch``, which is on the file system of the state."""

    def __init__(self, peers: Peers, scratch: Path) -> None:
        self._peers = peers
        self._scratch = scratch
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)

    async def send(
        self,
        host: str,
        message: msgspec.Struct,
        folder: Path,
        files: Mapping[str, str],
        known: Mapping[str, str],
        timeout_s: float,
    ) -> int:
        """Send ``message`` with those of ``files`` in ``folder`` (path -> digest) whose content is not ``known`` at
        ``host``, each content once: a state store has some under two names.

        Returns their bytes. Raises SbonError as :meth:`daemon.peering.peers.Peers.send_folder` does.
        """
        there = set(known.values())
        lacking = list({digest: name for name, digest in files.items() if digest not in there}.values())
        with tempfile.TemporaryDirectory(dir=self._scratch) as parcel:
            size_bytes = await trio.to_thread.run_sync(_link, folder, lacking, Path(parcel))
            await self._peers.send_folder(host, message, Path(parcel), Done, timeout_s)
        return size_bytes


def _link(folder: Path, names: list[str], parcel: Path) -> int:
    size_bytes = 0
    for name in names:
        target = parcel / name
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(folder / name, target)
        size_bytes += target.stat().st_size
    return size_bytes
