"""Letting go of a query's state stores while its folder is still ours.

Spark keeps a stopped query's stores loaded until its maintenance next comes round to them, and that first uploads the
snapshot that is due, and only then asks whether the query still runs. By then the fragment may be elsewhere: its folder
was deleted here, and came back with a snapshot in it that nobody would ever have deleted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

#: Of Spark's objects, the only instance; and what it calls the one store of most operators.
_INSTANCE = "MODULE$"
_DEFAULT_NAME = "default"


def unload_state_stores(spark: SparkSession, query: StreamingQuery, checkpoint: Path) -> None:
    """Close the stores that ``query``, which has its ``checkpoint`` there and runs no batch any more, has in this Java
    machine. To be called before it is stopped: from then on maintenance may be about to have them to itself.

    Stores on other hosts' executors stay; that is where several hosts share a file system.
    """
    jvm: Any = spark._jvm
    state = jvm.org.apache.spark.sql.execution.streaming.state
    stores = getattr(getattr(state, "StateStore$"), _INSTANCE)
    execution = query._jsq.streamingQuery()
    root = execution.checkpointFile("state")
    for partition in (checkpoint / "state").glob("[0-9]*/[0-9]*"):
        # <operator>/<partition> has the files of the default store, and a folder for each other one.
        for name in (_DEFAULT_NAME, *(path.name for path in partition.iterdir() if path.is_dir())):
            store = state.StateStoreId(root, int(partition.parent.name), int(partition.name), name)
            stores.removeFromLoadedProvidersAndClose(state.StateStoreProviderId(store, execution.runId()))
