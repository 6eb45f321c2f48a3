"""Whose turn it is to be planned anew: running queries, one at a time, within a budget of moves."""

from __future__ import annotations

from collections.abc import Generator, Sequence

#: Rounds over all queries; the second finds little, the third hardly anything.
MOST_ROUNDS = 3


def turns(queries: Sequence[str], moves: int, rounds: int = MOST_ROUNDS) -> Generator[str, int, int]:
    """Yields the name of the query whose turn it is, and is sent how much was moved for it; how much was moved in all.

    It goes round until all of ``moves`` are made, or a whole round has moved nothing, or ``rounds`` times.
    """
    moved = 0
    for _ in range(rounds):
        before = moved
        for query in queries:
            if moved >= moves:
                return moved
            moved += yield query
        if moved == before:
            break
    return moved
