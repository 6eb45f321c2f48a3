"""Push filters towards the streams: each conjunct to the lowest place where all its columns are there.

(Columns need no rule of their own: :mod:`sbon.sql.cut` asks each input for the columns that are used, and no others.)
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from sbon.sql.logical_plan import (
    Aggregate,
    Compute,
    Filter,
    Join,
    Plan,
    Reused,
    Scan,
    Union,
    attributes,
    conjunction,
    conjuncts,
    declared_types,
    substitute,
    used,
)


def push_filters(plan: Plan, conditions: Sequence[exp.Expr] = ()) -> Plan:
    """``plan`` filtered by ``conditions``, every filter as low as it can be, and joins with all their predicates."""
    match plan:
        case Filter():
            return push_filters(plan.input, [*conditions, *conjuncts(plan.condition)])
        case Compute():
            definitions = dict(plan.columns)
            return Compute(
                push_filters(plan.input, [substitute(part, definitions) for part in conditions]), plan.columns
            )
        case Join():
            return _into_join(plan, [*conditions, *plan.condition])
        case Union():
            return _into_union(plan, conditions)
        case Aggregate():
            return _into_aggregate(plan, conditions)
        case Scan() | Reused():
            return _filtered(plan, conditions)


def _into_join(join: Join, conditions: Sequence[exp.Expr]) -> Plan:
    left, right = set(attributes(join.left)), set(attributes(join.right))
    one_sided_left = [part for part in conditions if used(part) and used(part) <= left]
    one_sided_right = [part for part in conditions if used(part) and used(part) <= right]
    rest = tuple(part for part in conditions if part not in one_sided_left and part not in one_sided_right)
    return Join(push_filters(join.left, one_sided_left), push_filters(join.right, one_sided_right), rest, join.place)


def _into_union(union: Union, conditions: Sequence[exp.Expr]) -> Plan:
    # UNION ALL may widen a column (INT and DOUBLE): a condition below it would then see another value, as text say.
    same_type = declared_types(union)
    pushed = [part for part in conditions if used(part) and used(part) <= same_type.keys()]
    inputs = tuple(
        push_filters(branch, [substitute(part, dict(zip(union.columns, sources, strict=True))) for part in pushed])
        for branch, sources in zip(union.inputs, union.expressions, strict=True)
    )
    return _filtered(
        Union(inputs, union.columns, union.expressions), [part for part in conditions if part not in pushed]
    )


def _into_aggregate(aggregate: Aggregate, conditions: Sequence[exp.Expr]) -> Plan:
    keys = dict(aggregate.keys)
    pushed = [part for part in conditions if used(part) and used(part) <= keys.keys()]
    below = push_filters(aggregate.input, [substitute(part, keys) for part in pushed])
    above = [part for part in conditions if part not in pushed]
    return _filtered(Aggregate(below, aggregate.window, aggregate.keys, aggregate.measures), above)


def _filtered(plan: Plan, conditions: Sequence[exp.Expr]) -> Plan:
    return Filter(plan, conjunction(conditions)) if conditions else plan
