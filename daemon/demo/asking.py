"""Short questions to one of the demo's daemons, each over a connection of its own."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from typing import TypeVar

import msgspec

from daemon.control.client import ControlClient
from daemon.control.messages import Event, RequestFor

R = TypeVar("R", bound=msgspec.Struct)


async def ask(path: Path, request: RequestFor[R], reply_type: type[R]) -> R:
    """The answer to ``request`` by the daemon whose control socket is ``path``. Raises what ControlClient raises."""
    async with ControlClient.open(path) as client:
        reply = await client.request(request)
    assert isinstance(reply, reply_type)
    return reply


async def events_after(path: Path, sequence: int) -> list[Event]:
    """The events of a daemon that come after the one numbered ``sequence``, as far as it remembers them."""
    async with ControlClient.open(path) as client, aclosing(client.watch()) as events:
        return [event async for event in events if event.sequence > sequence]
