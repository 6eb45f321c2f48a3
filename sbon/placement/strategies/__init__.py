"""The placement strategies, one in each module; each has a class ``Placer``, loaded when it is asked for."""

from __future__ import annotations

from importlib import import_module

from sbon.placement.questions import Strategy

#: As they are named in configurations; the default first.
NAMES = ("sbon", "relaxation", "optimal", "producer", "consumer", "random", "multicast")


def load(name: str) -> Strategy:
    """The strategy of that name. Raises ValueError for one that there is not."""
    if name not in NAMES:
        raise ValueError(f"{name!r} is no placement strategy: there are {', '.join(NAMES)}")
    strategy: Strategy = import_module(f"sbon.placement.strategies.{name}").Placer()
    return strategy
