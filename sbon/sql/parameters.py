"""Values for the parameters of a query, put into its text before it is planned: ``?`` in order, ``:name`` by name.

The text with the values in it is what is planned, shown and kept, so that nothing later has to know of parameters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from sqlglot import TokenType

from sbon.errors import QueryError
from sbon.sql.dialect import tokenize

_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")
_KEYWORDS = ("true", "false", "null")


def bind(text: str, values: Sequence[str], named: Mapping[str, str]) -> str:
    """``text`` with all parameters replaced: numbers, true, false and null as they are, anything else as a string.

    Raises QueryError if there are more or fewer values than parameters.
    """
    tokens = tokenize(text)
    parts: list[str] = []
    done, used, count = 0, set(), 0
    for position, token in enumerate(tokens):
        if token.token_type is TokenType.PLACEHOLDER:
            if count == len(values):
                where = f" at line {token.line}, column {token.col}"
                raise QueryError(f"the parameter ?{where} has no value; give it with --param VALUE, one for each ?")
            parts += [text[done : token.start], literal(values[count])]
            done, count = token.end + 1, count + 1
        elif token.token_type is TokenType.COLON and position + 1 < len(tokens):
            name, before = tokens[position + 1], tokens[position - 1]
            follows_a_name = position > 0 and before.end + 1 == token.start and before.text.isidentifier()
            if name.start != token.end + 1 or not name.text.isidentifier() or follows_a_name:
                continue  # a path into JSON, say
            if name.text not in named:
                where = f" at line {token.line}, column {token.col}"
                raise QueryError(f"the parameter :{name.text}{where} has no value; give --param {name.text}=VALUE")
            parts += [text[done : token.start], literal(named[name.text])]
            done = name.end + 1
            used.add(name.text)
    if count < len(values):
        raise QueryError(f"{len(values)} values for {count} parameters; the query has a ? for each --param VALUE")
    unknown = sorted(named.keys() - used)
    if unknown:
        raise QueryError(f"the query has no parameter :{unknown[0]}; correct --param {unknown[0]}=...")
    return "".join([*parts, text[done:]])


def literal(value: str) -> str:
    """``value`` as SQL writes it."""
    if _NUMBER.fullmatch(value) or value.lower() in _KEYWORDS:
        return value
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
