from __future__ import annotations

from sbon.planning.turns import turns


def taken(moves: int, wins: dict[str, int], rounds: int = 3) -> tuple[list[str], int]:
    """Whose turn it was, and how much was moved; each query has something to move as often as ``wins`` says."""
    course, answer = turns(list(wins), moves, rounds), None
    order: list[str] = []
    while True:
        try:
            name = next(course) if answer is None else course.send(answer)
        except StopIteration as end:
            return order, int(end.value)
        order.append(name)
        answer = int(wins[name] > 0)
        wins[name] -= answer


def test_it_goes_round_until_nothing_moves() -> None:
    assert taken(10, {"a": 0, "b": 1, "c": 0}) == (["a", "b", "c", "a", "b", "c"], 1)
    assert taken(10, {"a": 9}) == (["a"] * 3, 3)
    assert taken(10, {}) == ([], 0)


def test_the_budget_is_kept() -> None:
    assert taken(2, {"a": 5, "b": 5, "c": 5}) == (["a", "b"], 2)
    assert taken(0, {"a": 5}) == ([], 0)
