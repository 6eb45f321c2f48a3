"""Interval arithmetic over event times: how far apart those of one row can be, and what that does to watermarks.

A set of bounds ``x - y >= d`` over columns is a system of difference constraints; its strongest consequences are
shortest paths (Dechter, Meiri, Pearl: Temporal constraint networks, 1991). A stream-stream join is only possible with
bounded state if such bounds hold in both directions between an event time of the one side and one of the other, and
they say how late the rows can be that come out of it:

Let the later rows of both inputs have event times ``l >= W`` and ``r >= W``, and let a match imply ``c >= l + p`` and
``c >= r + q`` for a column ``c`` of the output. A later match has at least one new row, so ``c >= W + min(p, q)``: its
lag is ``max(0, -p, -q)``. For ``l BETWEEN r - a AND r + b`` this gives the lag ``a`` for ``l`` and ``b`` for ``r``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from sbon.sql.dialect import column
from sbon.sql.intervals import interval_literal, interval_us
from sbon.sql.logical_plan import bare

#: Least ``x - y`` in microseconds, by (x, y).
Bounds = Mapping[tuple[str, str], int]


def conjunct_bounds(conjunct: exp.Expr) -> dict[tuple[str, str], int]:
    """What a comparison says about the difference of two columns; nothing if it is of another kind.

    Strict comparisons are taken as their closed forms, which is never wrong.
    """
    found: dict[tuple[str, str], int] = {}
    for lower, upper in _at_most(conjunct):
        greater, smaller = _linear(upper), _linear(lower)
        if greater is None or smaller is None:
            continue
        # upper - lower >= 0, as a sum of columns and a constant
        weights = {name: greater[0].get(name, 0) - smaller[0].get(name, 0) for name in {*greater[0], *smaller[0]}}
        plus = [name for name, weight in weights.items() if weight == 1]
        minus = [name for name, weight in weights.items() if weight == -1]
        others = [weight for weight in weights.values() if weight not in (-1, 0, 1)]
        if len(plus) == len(minus) == 1 and not others:
            found[plus[0], minus[0]] = smaller[1] - greater[1]
    return found


def closure(*systems: Bounds) -> dict[tuple[str, str], int]:
    """The strongest bounds that follow from all of ``systems`` together (Floyd-Warshall over longest paths)."""
    tight: dict[tuple[str, str], int] = {}
    for system in systems:
        for pair, least in system.items():
            tight[pair] = max(least, tight.get(pair, least))
    names = sorted({name for pair in tight for name in pair})
    for middle in names:
        for first in names:
            for last in names:
                if first != last and (first, middle) in tight and (middle, last) in tight:
                    least = tight[first, middle] + tight[middle, last]
                    tight[first, last] = max(least, tight.get((first, last), least))
    return tight


@dataclass(frozen=True, slots=True)
class JoinTimes:
    """The event times that a join runs on, and what follows for its output.

    ``lags_us``: by each column that may be the event time of the output, left ones first, how far it can be behind the
    watermark of the inputs. ``condition``: the join's predicates in a form from which Spark bounds its state, rightly.
    """

    left: str
    right: str
    lags_us: Mapping[str, int]
    condition: tuple[exp.Expr, ...]
    bounds: Bounds


def join_times(
    left: Sequence[str], right: Sequence[str], known: Iterable[Bounds], condition: Iterable[exp.Expr]
) -> JoinTimes | None:
    """Pick the pair of event times (one of ``left``, one of ``right``) that ``condition`` holds closest together.

    ``known`` are the bounds that hold within the inputs. None if no pair is bounded in both directions.
    """
    parts, within = list(condition), list(known)
    candidates = {*left, *right}
    times = candidates.union(*(pair for system in within for pair in system))
    stated = [conjunct_bounds(part) for part in parts]
    relevant = [{pair: least for pair, least in system.items() if times.issuperset(pair)} for system in stated]
    bounds = closure(*within, *relevant)
    pairs = [(one, other) for one in left for other in right if (one, other) in bounds and (other, one) in bounds]
    if not pairs:
        return None
    one, other = min(pairs, key=lambda pair: -bounds[pair] - bounds[pair[1], pair[0]])
    itself = {(name, name): 0 for name in candidates}
    ahead = itself | bounds
    lags = {
        name: max(0, -ahead[name, one], -ahead[name, other])
        for name in (*left, *right)
        if (name, one) in ahead and (name, other) in ahead
    }
    safe = [whole for part in parts for whole in _without_false_key(part, {one, other})]
    plain = {pair for part in safe if _plain(part) for pair in conjunct_bounds(part)}
    implied = [
        at_least(greater, smaller, bounds[greater, smaller])
        for greater, smaller in ((one, other), (other, one))
        if (greater, smaller) not in plain
    ]
    return JoinTimes(one, other, lags, (*safe, *implied), bounds)


def _without_false_key(conjunct: exp.Expr, times: set[str]) -> list[exp.Expr]:
    """An equality of one side's event time with anything but the other's, as two inequalities.

    Spark takes an equality for a key, and if one side of it has a watermark, drops all state with a key below the
    watermark, on both sides. With ``l.ts = r.ts - INTERVAL 1 HOUR`` that loses rows: later ``r`` match older ``l``.
    """
    names = {bare(conjunct.this), bare(conjunct.expression)} if isinstance(conjunct, exp.EQ) else set()
    if not names & times or names == times:
        return [conjunct]
    left, right = conjunct.this, conjunct.expression
    return [kind(this=left.copy(), expression=right.copy()) for kind in (exp.GTE, exp.LTE)]


def _at_most(conjunct: exp.Expr) -> list[tuple[exp.Expr, exp.Expr]]:
    """The comparison as pairs (lower, upper) that say lower <= upper."""
    match conjunct:
        case exp.Between() if not conjunct.args.get("symmetric"):
            return [(conjunct.args["low"], conjunct.this), (conjunct.this, conjunct.args["high"])]
        case exp.GT() | exp.GTE():
            return [(conjunct.expression, conjunct.this)]
        case exp.LT() | exp.LTE():
            return [(conjunct.this, conjunct.expression)]
        case exp.EQ():
            return [(conjunct.this, conjunct.expression), (conjunct.expression, conjunct.this)]
    return []


def _linear(node: exp.Expr) -> tuple[dict[str, int], int] | None:
    """Weights of columns, and a constant in microseconds, as in ``w.ts + INTERVAL 5 MINUTES``; None if it is not so."""
    name = bare(node)
    if name is not None:
        return {name: 1}, 0
    length = interval_us(node)
    if length is not None:
        return {}, length
    if isinstance(node, exp.Paren):
        return _linear(node.this)
    if isinstance(node, (exp.Add, exp.Sub)):
        one, other = _linear(node.this), _linear(node.expression)
        if one is not None and other is not None:
            sign = 1 if isinstance(node, exp.Add) else -1
            weights = dict(one[0])
            for column_name, weight in other[0].items():
                weights[column_name] = weights.get(column_name, 0) + sign * weight
            return weights, one[1] + sign * other[1]
    return None


def _plain(conjunct: exp.Expr) -> bool:
    """Whether Spark itself sees the bound: a bare column is compared with a column plus or minus interval literals.

    An equality counts only between bare columns: it is then a key that carries the watermark.
    """
    sides = [side for pair in _at_most(conjunct) for side in pair]
    bare_sides = [side for side in sides if bare(side) is not None]
    if isinstance(conjunct, exp.EQ):
        return len(bare_sides) == len(sides)
    return bool(bare_sides) if not isinstance(conjunct, exp.Between) else bare(conjunct.this) is not None


def at_least(greater: str, smaller: str, least_us: int) -> exp.Expr:
    right = column(smaller)
    if least_us > 0:
        return exp.GTE(this=column(greater), expression=exp.Add(this=right, expression=interval_literal(least_us)))
    if least_us < 0:
        return exp.GTE(this=column(greater), expression=exp.Sub(this=right, expression=interval_literal(-least_us)))
    return exp.GTE(this=column(greater), expression=right)
