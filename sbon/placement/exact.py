"""Exact minimisation of a cost that is a sum of terms over one or two operators' hosts.

Operators are eliminated one by one: the terms around one are added to a table over its neighbours' hosts, of which only
the minimum over its own remains (U. Bertele and F. Brioschi, "Nonserial Dynamic Programming", 1972). On a tree this is
the dynamic programme from the leaves to the root, k^2 per link; operators with several consumers only make tables
larger, and the result stays exact.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
Costs = NDArray[np.float64]

#: Entries in the largest table that is built (8 MB).
MAX_TABLE = 1_000_000


@dataclass(frozen=True, slots=True)
class Term:
    """A cost for each choice of hosts of the operators in ``scope``: one axis of ``costs`` for each."""

    scope: tuple[str, ...]
    costs: Costs


def minimise(terms: Sequence[Term], sizes: Mapping[str, int]) -> tuple[dict[str, int], float]:
    """The choice (operator -> index) of least total cost, and that cost. Of equals the lower index wins."""
    remaining = list(terms)
    decided: list[tuple[str, tuple[str, ...], NDArray[np.intp]]] = []
    for operator in elimination_order(terms, sizes)[0]:
        table = _joined([term for term in remaining if operator in term.scope], (operator,), sizes)
        remaining = [term for term in remaining if operator not in term.scope]
        axis = table.scope.index(operator)
        scope = table.scope[:axis] + table.scope[axis + 1 :]
        decided.append((operator, scope, np.argmin(table.costs, axis=axis)))
        remaining.append(Term(scope, np.min(table.costs, axis=axis)))
    choice: dict[str, int] = {}
    for operator, scope, best in reversed(decided):
        choice[operator] = int(best[tuple(choice[other] for other in scope)])
    return choice, float(sum(float(term.costs) for term in remaining))


def minimum_with(operator: str, terms: Sequence[Term], sizes: Mapping[str, int]) -> Costs:
    """For each host of ``operator`` the least total cost with it there and all others at their best."""
    remaining = list(terms)
    for other in elimination_order(terms, sizes, operator)[0][:-1]:
        table = _joined([term for term in remaining if other in term.scope], (other,), sizes)
        remaining = [term for term in remaining if other not in term.scope]
        axis = table.scope.index(other)
        remaining.append(Term(table.scope[:axis] + table.scope[axis + 1 :], np.min(table.costs, axis=axis)))
    return _joined(remaining, (operator,), sizes).costs


def elimination_order(
    terms: Sequence[Term], sizes: Mapping[str, int], last: str | None = None
) -> tuple[list[str], int]:
    """An order in which tables stay small (smallest next table first), and the entries of the largest one.

    With one operator to come ``last`` a plan that is a tree needs no larger tables; another may need one more axis.
    """
    neighbours: dict[str, set[str]] = {operator: set() for operator in sizes}
    for term in terms:
        for operator in term.scope:
            neighbours[operator] |= set(term.scope) - {operator}
    order: list[str] = []
    largest = 1

    def entries(operator: str) -> int:
        return sizes[operator] * math.prod(sizes[other] for other in neighbours[operator])

    while neighbours:
        operator = min(neighbours, key=lambda one: (one == last, entries(one)))
        largest = max(largest, entries(operator))
        around = neighbours.pop(operator)
        for other in around:
            neighbours[other] |= around - {other}
            neighbours[other].discard(operator)
        order.append(operator)
    return order, largest


def bounded(domains: Mapping[str, Sequence[T]], scopes: Sequence[tuple[str, ...]]) -> dict[str, list[T]]:
    """The domains as far as they can be searched exactly; what comes last in the longest ones is left out."""
    terms = [Term(scope, np.empty(0)) for scope in scopes]

    def is_too_much(length: int) -> bool:
        sizes = {operator: min(length, len(values)) for operator, values in domains.items()}
        # One operator that comes last may add one axis to the largest table.
        return elimination_order(terms, sizes)[1] * max(sizes.values(), default=0) > MAX_TABLE

    longest = max(map(len, domains.values()), default=0)
    length = bisect.bisect_left(range(1, longest + 1), True, key=is_too_much)
    return {operator: list(values[:length]) for operator, values in domains.items()}


def _joined(terms: Sequence[Term], at_least: tuple[str, ...], sizes: Mapping[str, int]) -> Term:
    """The sum of the terms over the union of their scopes and ``at_least``."""
    scope = tuple(dict.fromkeys((*at_least, *(operator for term in terms for operator in term.scope))))
    total: Costs = np.zeros([sizes[operator] for operator in scope])
    for term in terms:
        by_scope = sorted(range(len(term.scope)), key=lambda axis: scope.index(term.scope[axis]))
        index: tuple[Any, ...] = tuple(slice(None) if operator in term.scope else None for operator in scope)
        total += np.transpose(term.costs, by_scope)[index]
    return Term(scope, total)
