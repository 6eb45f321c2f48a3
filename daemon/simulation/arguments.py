"""Lists as arguments of ``sbon simulate``: words with commas between."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from typing import TypeVar

T = TypeVar("T")


def names_among(known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """A type of argument: some of the ``known`` names."""

    def parse(words: str) -> tuple[str, ...]:
        names = tuple(word.strip() for word in words.split(","))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return names

    return parse


def several(parse: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """A type of argument: one or more of what ``parse`` reads."""
    return lambda words: tuple(parse(word.strip()) for word in words.split(","))
