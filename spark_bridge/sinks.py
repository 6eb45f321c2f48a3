"""Where results leave the overlay.

Our own file sink is exactly-once for any reader of the folder: one file per (query, batch), written under another name,
synced, renamed, and only then does Spark commit; a replayed batch replaces its own file. Every other sink is Spark's,
and is handed (query, sink, batch) as options to use as a key; one that does not use it is at-least-once.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Protocol

from pyarrow import parquet
from pyspark.sql import DataFrame

from sbon.errors import ConfigurationError, SbonError
from sbon.streams import SinkSpec
from spark_bridge.durable import write_durably


class SinkWriter(Protocol):
    """Writes the rows of one batch; called again with the same ``batch_id`` after a crash. Returns rows written."""

    def write(self, batch: DataFrame, batch_id: int) -> int: ...


def open_sink(spec: SinkSpec, query_id: str, *, is_new: bool) -> SinkWriter:
    """The writer for ``spec``; ConfigurationError if it cannot be written to.

    ``is_new``: the query has no checkpoint yet. SbonError if it has results all the same: its checkpoint was lost, and
    starting over would form other batches and mix their files with those that are there.
    """
    if spec.format == "parquet":
        return ParquetSink(spec, query_id, is_new=is_new)
    return SparkSink(spec, query_id)


class ParquetSink:
    """``<path>/<query>-batch=<id>.parquet``, none for a batch without rows."""

    def __init__(self, spec: SinkSpec, query_id: str, *, is_new: bool) -> None:
        if "path" not in spec.options:
            raise ConfigurationError(f'sink {spec.name}: a parquet sink needs options = {{path = "..."}}')
        self._query_id = query_id
        self._folder = Path(spec.options["path"])
        probe = self._folder / f".{query_id}.probe"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise ConfigurationError(f"sink {spec.name} cannot be written: {error.strerror}: {self._folder}") from None
        if is_new and next(self._folder.glob(f"{query_id}-batch=*.parquet"), None) is not None:
            raise SbonError(
                f"sink {spec.name} has results of query {query_id}, whose checkpoint is lost: it does not start over; "
                f"restore the checkpoint, or cancel the query, move {self._folder}/{query_id}-* away and submit it anew"
            )

    def write(self, batch: DataFrame, batch_id: int) -> int:
        rows = batch.toArrow()
        if rows.num_rows:
            content = io.BytesIO()
            parquet.write_table(rows, content)
            write_durably(self._folder / f"{self._query_id}-batch={batch_id:08}.parquet", content.getvalue())
        return int(rows.num_rows)


class SparkSink:
    """Any batch format of Spark's; appends."""

    def __init__(self, spec: SinkSpec, query_id: str) -> None:
        self._spec = spec
        self._query_id = query_id

    def write(self, batch: DataFrame, batch_id: int) -> int:
        rows = batch.count()
        if rows:
            key = {"sbon.query": self._query_id, "sbon.sink": self._spec.name, "sbon.batch": str(batch_id)}
            batch.write.format(self._spec.format).options(**key, **self._spec.options).mode("append").save()
        return rows
