"""What is on its way is what the other host does not have, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from daemon.fragments.replica_store import Digests
from daemon.peering.folder_transfer import sizes_of
from daemon.peering.parcels import Parcels
from daemon.peering.requests import Done
from sbon.errors import UnavailableError


class FakePeers:
    """One host, to which folders are sent."""

    def __init__(self) -> None:
        self.sent: list[dict[str, int]] = []
        self.is_up = True

    async def send_folder(
        self, _host: str, _message: msgspec.Struct, folder: Path, _reply: type[Done], _timeout_s: float
    ) -> Done:
        if not self.is_up:
            raise UnavailableError("it is down")
        self.sent.append(sizes_of(folder))
        return Done()


async def test_a_content_travels_once_under_whatever_names_it_is_known(tmp_path: Path) -> None:
    peers = FakePeers()
    parcels = Parcels(cast(Any, peers), tmp_path / "parcels")
    folder = tmp_path / "folder"
    (folder / "state").mkdir(parents=True)
    (folder / "state" / "one").write_bytes(b"state")
    (folder / "state" / "two").hardlink_to(folder / "state" / "one")
    (folder / "offsets").write_bytes(b"12")
    files = Digests().of(folder)
    assert await parcels.send("there", Done(), folder, files, {}, 1.0) == 7
    assert sorted(peers.sent[0].values()) == [2, 5]
    assert await parcels.send("there", Done(), folder, files, {"state/zero": files["state/one"]}, 1.0) == 2
    assert peers.sent[1] == {"offsets": 2}
    assert await parcels.send("there", Done(), folder, files, files, 1.0) == 0
    peers.is_up = False
    with pytest.raises(UnavailableError):
        await parcels.send("there", Done(), folder, files, {}, 1.0)
    assert list((tmp_path / "parcels").iterdir()) == []
    assert Digests().of(folder) == files
