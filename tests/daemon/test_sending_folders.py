"""Requests that bring a folder."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

import msgspec
import pytest

from daemon.peering import requests, room
from daemon.peering.envelopes import REQUEST_VERSION, FolderHeader, ReplyEnvelope, RequestEnvelope
from daemon.peering.folder_transfer import ReceivedFolder, chunks_of, new_digest, sizes_of
from daemon.peering.requests import PeerRequests
from overlay.records import Address
from sbon.errors import SbonError, StaleGenerationError, UnavailableError
from tests.daemon.request_peers import (
    CLIENT_ID,
    Answer,
    Question,
    content,
    make_folder,
    packed,
    raw_exchange,
    serving,
)


async def test_a_folder_arrives_whole(client: PeerRequests, server: PeerRequests, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "fragment")
    kept = tmp_path / "kept"

    digests: dict[str, str] = {}

    async def keep(message: Question, sender: str, received: ReceivedFolder) -> Answer:
        received.path.rename(kept)
        digests.update(received.digests)
        return Answer(message.text)

    server.handle_folder(Question, keep)
    async with serving(server) as address:
        assert await client.send_folder(address, Question("take it"), folder, Answer) == Answer("take it")
    assert content(kept) == content(folder)
    assert digests == {name: new_digest(data).hexdigest() for name, data in content(folder).items() if data is not None}
    assert list((tmp_path / "server").iterdir()) == []


async def test_what_the_handler_leaves_is_deleted(client: PeerRequests, server: PeerRequests, tmp_path: Path) -> None:
    async def refuse(message: Question, sender: str, received: ReceivedFolder) -> Answer:
        raise StaleGenerationError("a newer owner has it: nothing to do")

    server.handle_folder(Question, refuse)
    async with serving(server) as address:
        with pytest.raises(StaleGenerationError):
            await client.send_folder(address, Question(""), make_folder(tmp_path / "fragment"), Answer)
    assert list((tmp_path / "server").iterdir()) == []


async def test_a_refusal_arrives_although_a_large_folder_is_on_its_way(
    client: PeerRequests, server: PeerRequests, tmp_path: Path
) -> None:
    async with serving(server) as address:
        with pytest.raises(SbonError, match="does not know"):
            await client.send_folder(address, Question(""), make_folder(tmp_path / "fragment"), Answer)


async def send_raw_folder(address: Address, contents: bytes, sizes: dict[str, int]) -> ReplyEnvelope | None:
    header = {"folder": packed(FolderHeader(sizes))}
    envelope = RequestEnvelope(REQUEST_VERSION, CLIENT_ID, 1, "", "Question", packed(Question("")), header)
    return await raw_exchange(address, msgspec.msgpack.encode(envelope), contents)


async def test_a_folder_that_changes_or_goes_while_it_is_sent_is_not_taken_for_all(
    client: PeerRequests, server: PeerRequests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.handle_folder(Question, must_not_be_called)
    folder = make_folder(tmp_path / "fragment")
    monkeypatch.setattr(requests, "sizes_of", lambda folder: {**sizes_of(folder), "offsets": 2})
    async with serving(server) as address:
        with pytest.raises(SbonError, match="offsets has changed while it was sent"):
            await client.send_folder(address, Question(""), folder, Answer)
        monkeypatch.setattr(requests, "sizes_of", lambda folder: {**sizes_of(folder), "gone": 1})
        with pytest.raises(UnavailableError, match=r"cannot be used \(No such file"):
            await client.send_folder(address, Question(""), folder, Answer)
    assert list((tmp_path / "server").iterdir()) == []


async def test_a_folder_for_which_there_is_no_room_is_refused_before_it_comes(
    client: PeerRequests, server: PeerRequests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "free_bytes", lambda folder: room.RESERVE_BYTES)
    server.handle_folder(Question, must_not_be_called)
    async with serving(server) as address:
        with pytest.raises(SbonError, match=r"no room for a folder of 3\.0 MB: .* has 67\.1 MB left"):
            await client.send_folder(address, Question(""), make_folder(tmp_path / "fragment"), Answer)
    assert list((tmp_path / "server").iterdir()) == []


@pytest.mark.parametrize("more", [b"x", b""], ids=["longer", "shorter"])
async def test_a_folder_that_is_not_as_long_as_announced_is_dropped(
    server: PeerRequests, tmp_path: Path, more: bytes
) -> None:
    server.handle_folder(Question, must_not_be_called)
    folder = make_folder(tmp_path / "fragment")
    sizes = sizes_of(folder)
    contents = b"".join(chunks_of(folder, sizes))
    async with serving(server) as address:
        reply = await send_raw_folder(address, contents + more if more else contents[:-1], sizes)
    assert reply is None
    assert server.counters["dropped.malformed"] == 1
    assert list((tmp_path / "server").iterdir()) == []


async def test_a_folder_that_reaches_outside_is_dropped(server: PeerRequests, tmp_path: Path) -> None:
    server.handle_folder(Question, must_not_be_called)
    async with serving(server) as address:
        assert await send_raw_folder(address, b"x", {"../outside": 1}) is None
    assert server.counters["dropped.malformed"] == 1
    assert not (tmp_path / "server" / "outside").exists()


async def test_a_folder_that_is_too_deep_is_dropped(client: PeerRequests, server: PeerRequests, tmp_path: Path) -> None:
    server.handle_folder(Question, must_not_be_called)
    server.handle(Answer, tell_again)
    async with serving(server) as address:
        assert await send_raw_folder(address, b"x", {"/".join("a" * 1500): 1}) is None
        assert await client.request(address, Answer("still here"), Answer) == Answer("still here")
    assert server.counters["dropped.malformed"] == 1
    assert list((tmp_path / "server").iterdir()) == []


async def test_a_disk_that_is_full_is_told(
    client: PeerRequests, server: PeerRequests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**where: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    server.handle_folder(Question, must_not_be_called)
    async with serving(server) as address:
        monkeypatch.setattr(tempfile, "mkdtemp", fail)
        with pytest.raises(UnavailableError, match="cannot store the folder: No space left"):
            await client.send_folder(address, Question(""), make_folder(tmp_path / "fragment"), Answer)


async def tell_again(message: Answer, sender: str) -> Answer:
    return message


async def must_not_be_called(message: Question, sender: str, received: ReceivedFolder) -> Answer:
    raise AssertionError("a folder that is not whole was handed over")
