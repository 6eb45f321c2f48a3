"""Windows in brackets behind a stream, as CQL writes them: ``FROM flights f [RANGE 5 MINUTES SLIDE 1 MINUTE]``.

After A. Arasu, S. Babu, J. Widom, "The CQL continuous query language", VLDB Journal 2006: at time t, a stream with
``[RANGE r]`` is a table of its rows whose event times are in [t - r, t]. So a set of rows, one from each stream,
joins if at the time of the latest of them all the others are still in their windows: ``ts_i >= ts_j - r_i`` for all
pairs (i, j). Once such a set has joined it is a row of the result; ``SLIDE`` says how often results are put out.

The brackets are taken out of the text before it is parsed, and put back as notes on the sources that they stand behind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlglot import Token, TokenType, exp

from sbon.errors import QueryError
from sbon.sql.durations import parse_duration_us

_META = "stream_window"
_OPENERS = ("RANGE", "ROWS", "SLIDE", "NOW", "PARTITION BY", "UNBOUNDED")
_CLAUSE = re.compile(r"RANGE\s+(?P<range>.+?)(?:\s*,)?(?:\s+SLIDE\s+(?P<slide>.+))?", re.IGNORECASE | re.DOTALL)
#: Units as papers shorten them.
_LONG = {"SEC": "SECONDS", "MIN": "MINUTES", "HR": "HOURS"}
_SHORT = re.compile(r"(?<![A-Z])(SEC|MIN|HR)S?\b", re.IGNORECASE)
_USAGE = "write it as [RANGE 5 MINUTES] or [RANGE 5 MINUTES SLIDE 1 MINUTE]"


@dataclass(frozen=True, slots=True)
class StreamWindow:
    """Rows stay for ``range_us``; results are wanted each ``slide_us``, None if nothing is said."""

    range_us: int
    slide_us: int | None
    place: str


@dataclass(frozen=True, slots=True)
class Bracket:
    """``after``: where the last character of the word before it stands in the text."""

    after: int
    window: StreamWindow


def take_brackets(tokens: Sequence[Token], text: str) -> tuple[list[Token], list[Bracket]]:
    """The tokens without windows in brackets, and these. Raises QueryError for one that cannot be read."""
    kept: list[Token] = []
    found: list[Bracket] = []
    position = 0
    while position < len(tokens):
        token = tokens[position]
        following = tokens[position + 1].text.upper() if position + 1 < len(tokens) else ""
        if token.token_type is not TokenType.L_BRACKET or following not in _OPENERS or not kept:
            kept.append(token)
            position += 1
            continue
        end = position
        while end < len(tokens) and tokens[end].token_type is not TokenType.R_BRACKET:
            end += 1
        where = f" at line {token.line}, column {token.col}"
        if end == len(tokens):
            raise QueryError(f"the window{where} has no closing bracket; {_USAGE}")
        inside = text[token.end + 1 : tokens[end].start].strip()
        found.append(Bracket(kept[-1].end, _window(inside, where)))
        position = end + 1
    return kept, found


def note_windows(statements: Sequence[exp.Expr], brackets: Sequence[Bracket]) -> None:
    """Put the windows on the FROM items that they stand behind. Raises QueryError for one that stands elsewhere."""
    sources = {_last_character(source): source for statement in statements for source in _sources(statement)}
    for bracket in brackets:
        source = sources.get(bracket.after)
        if source is None:
            where = bracket.window.place
            raise QueryError(f"the window{where} does not stand behind a stream in FROM, and its alias; put it there")
        if stream_window(source) is not None:
            raise QueryError(f"the window{bracket.window.place} is the second of its stream; write one")
        source.meta[_META] = bracket.window


def stream_window(source: exp.Expr) -> StreamWindow | None:
    """The window of a FROM item, None if it has none."""
    window = source.meta.get(_META)
    assert window is None or isinstance(window, StreamWindow)
    return window


def _sources(statement: exp.Expr) -> Iterator[exp.Expr]:
    for select in statement.find_all(exp.Select):
        clause = select.args.get("from_")
        if clause is not None:
            yield clause.this
        for join in select.args.get("joins") or ():
            yield join.this


def _last_character(source: exp.Expr) -> int:
    """Of its alias or else of its name; -1 where it has neither."""
    alias = source.args.get("alias")
    name = alias.this if alias is not None else source.this if isinstance(source, exp.Table) else None
    return int(name.meta.get("end", -1)) if isinstance(name, exp.Expr) else -1


def _window(inside: str, where: str) -> StreamWindow:
    match = _CLAUSE.fullmatch(inside)
    if match is None:
        what = inside.split()[0].upper()
        if what == "RANGE":
            raise QueryError(f"the window{where} has no length; {_USAGE}")
        raise QueryError(f"{what} in the window{where} is not supported, only ranges of event time are; {_USAGE}")
    slide = match["slide"]
    return StreamWindow(
        _length_us(match["range"], "RANGE", where), None if slide is None else _length_us(slide, "SLIDE", where), where
    )


def _length_us(written: str, word: str, where: str) -> int:
    text = _SHORT.sub(lambda match: _LONG[match[1].upper()], written.strip().strip("'\""))
    if text.upper() == "UNBOUNDED":
        raise QueryError(f"{word} UNBOUNDED in the window{where} would keep all rows for ever; {_USAGE}")
    length_us = parse_duration_us(text)
    if length_us is None or length_us <= 0:
        units = "use a number of weeks, days, hours, minutes or seconds"
        raise QueryError(f"{word} {' '.join(text.split())} in the window{where} is not a length of time; {units}")
    return length_us
