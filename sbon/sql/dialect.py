"""Spark SQL in and out: the dialect as the planner reads and writes it, and places in the user's text."""

from __future__ import annotations

import re
from typing import ClassVar

from sqlglot import Token, TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ErrorLevel, SqlglotError
from sqlglot.parsers.spark import SparkParser

from sbon.errors import QueryError
from sbon.sql.stream_windows import note_windows, take_brackets

#: Longer texts are refused: the parser recurses, and nobody types this much.
MAX_QUERY_CHARACTERS = 65_536


class StreamingSpark(Spark):
    """Spark SQL with ``GROUP BY window(ts, '1 hour')`` and an optional ``STREAM`` before the name of a stream.

    sqlglot takes WINDOW for the keyword of a named window clause, which streams do not have; as an ordinary word it is
    a function and a column name, as in Spark.
    """

    class Tokenizer(Spark.Tokenizer):
        KEYWORDS: ClassVar = {word: kind for word, kind in Spark.Tokenizer.KEYWORDS.items() if word != "WINDOW"}

    class Parser(SparkParser):
        def _parse_table(self, *args: object, **kwargs: object) -> exp.Expr | None:
            word, name = self._curr, self._next
            names = (TokenType.VAR, TokenType.IDENTIFIER)
            if word and name and word.text.upper() == "STREAM" and name.token_type in names:
                self._advance()
            return super()._parse_table(*args, **kwargs)  # type: ignore[arg-type]


_DIALECT = StreamingSpark()
_SIMPLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse(text: str) -> list[exp.Expr]:
    """The statements in ``text``. Raises QueryError where it is not SQL."""
    if len(text) > MAX_QUERY_CHARACTERS:
        raise QueryError(f"the query has {len(text)} characters, at most {MAX_QUERY_CHARACTERS} are read; shorten it")
    try:
        tokens, brackets = take_brackets(_DIALECT.tokenize(text), text)
        statements = [statement for statement in _DIALECT.parser().parse(tokens, text) if statement is not None]
    except RecursionError:
        raise QueryError("the query is nested too deeply; flatten it") from None
    except SqlglotError as error:
        details = getattr(error, "errors", None)
        if not details:
            raise QueryError("not valid Spark SQL: a quote or comment is not closed; close it") from None
        first = details[0]
        near = f" near '{first['highlight']}'" if first.get("highlight") else ""
        # The parser counts the last character of a token as its column; people count the first.
        column = (first.get("col") or 1) - max(len(first.get("highlight") or "") - 1, 0)
        what = _one_line(str(first["description"])).split(" but got <")[0].rstrip(".").lower()
        raise QueryError(f"not valid Spark SQL: {what}{near} at line {first['line']}, column {column}") from None
    note_windows(statements, brackets)
    return statements


def tokenize(text: str) -> list[Token]:
    """The words of ``text``. Raises QueryError where a quote or comment is not closed."""
    try:
        return _DIALECT.tokenize(text)
    except SqlglotError:
        raise QueryError("not valid Spark SQL: a quote or comment is not closed; close it") from None


def render(expression: exp.Expr) -> str:
    """Spark SQL text of ``expression``. Raises QueryError for what Spark cannot write."""
    try:
        return _DIALECT.generate(expression, unsupported_level=ErrorLevel.RAISE, comments=False)
    except RecursionError:
        raise QueryError("the query is nested too deeply; flatten it") from None
    except SqlglotError as error:
        raise QueryError(f"cannot be written in Spark SQL: {_one_line(str(error))}; use another form") from None


def names_in(text: str) -> list[str]:
    """All that ``text`` names as a table: streams, its sink, and queries of its own; nothing if it is not SQL."""
    try:
        statements = parse(text)
    except QueryError:
        return []
    found = (table for statement in statements for table in statement.find_all(exp.Table))
    return sorted({".".join(part.name for part in table.parts) for table in found})


def parse_columns(ddl: str) -> dict[str, str]:
    """Column names of a Spark DDL string (``"ts TIMESTAMP, origin STRING"``) and their types as text.

    Raises QueryError if it is not one.
    """
    remedy = "write it as 'name TYPE, name TYPE, ...'"
    try:
        table = _DIALECT.parse(f"CREATE TABLE t ({ddl})")[0]
    except (SqlglotError, RecursionError):
        raise QueryError(f"the schema '{_one_line(ddl)}' cannot be read; {remedy}") from None
    columns: dict[str, str] = {}
    whole = table is not None and isinstance(table.this, exp.Schema) and table.args.get("expression") is None
    definitions = table.this.expressions if table is not None and whole else []
    for definition in definitions:
        if not isinstance(definition, exp.ColumnDef) or definition.args.get("kind") is None:
            raise QueryError(f"the schema '{_one_line(ddl)}' has no type for '{render(definition)}'; {remedy}")
        columns[definition.name] = render(definition.args["kind"])
    if not columns:
        raise QueryError(f"the schema '{_one_line(ddl)}' has no columns; {remedy}")
    return columns


def column(name: str) -> exp.Column:
    """A reference to the column ``name``, in backquotes if Spark needs them."""
    return exp.Column(this=identifier(name))


def identifier(name: str) -> exp.Identifier:
    quoted = not _SIMPLE_NAME.fullmatch(name) or name.upper() in StreamingSpark.Tokenizer.KEYWORDS
    return exp.Identifier(this=name, quoted=quoted)


def place(node: exp.Expr) -> str:
    """`` at line 1, column 8`` of the first token of ``node`` in the user's text, or nothing when it is not known."""
    found = [inner.meta for inner in node.walk() if "start" in inner.meta]
    if not found:
        return ""
    first = min(found, key=lambda meta: int(meta["start"]))
    return f" at line {first['line']}, column {first['col'] - (first['end'] - first['start'])}"


def _one_line(text: str) -> str:
    return " ".join(text.split())
