from __future__ import annotations

import trio
import trio.testing

from daemon.events import MISSED, Events


def make_events(history: int = 100) -> Events:
    return Events("a", clock=lambda: 12.5, history=history)


async def test_followers_see_what_comes(autojump_clock: trio.testing.MockClock) -> None:
    events = make_events()
    events.publish("before")
    seen: list[str] = []

    async def follow() -> None:
        async for event in events.follow():
            seen.append(event.kind)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        await trio.testing.wait_all_tasks_blocked()
        events.publish("first", peer="b")
        events.publish("second")
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert seen == ["first", "second"]


async def test_history_first_then_the_end() -> None:
    events = make_events()
    for kind in ("one", "two"):
        events.publish(kind, size_bytes=3)
    told = [event async for event in events.follow(from_start=True, forever=False)]
    assert [(event.sequence, event.kind, event.node, event.time_s) for event in told] == [
        (0, "one", "a", 12.5),
        (1, "two", "a", 12.5),
    ]
    assert told[0].fields == {"size_bytes": 3}


async def test_an_empty_history_ends_at_once() -> None:
    assert [event async for event in make_events().follow(from_start=True, forever=False)] == []


async def test_a_slow_follower_is_told_what_it_missed() -> None:
    events = make_events(history=3)
    follower = events.follow()
    for number in range(10):
        events.publish(f"e{number}")
    missed = await anext(follower)
    assert (missed.kind, missed.fields) == (MISSED, {"count": 7})
    assert [(await anext(follower)).kind for _ in range(3)] == ["e7", "e8", "e9"]
