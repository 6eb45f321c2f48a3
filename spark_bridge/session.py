"""The engine's Spark session: small, here unless told otherwise, and with the settings that fragments rely on."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from py4j.java_gateway import java_import
from pyspark.sql import SparkSession

from sbon.errors import ConfigurationError
from spark_bridge import window_store
from spark_bridge.class_archive import reading_options
from spark_bridge.executors import check_executors, is_local
from spark_bridge.hadoop_settings import make_settings_light
from spark_bridge.java_runtime import prepare_java

#: Settings that the meaning of results depends on; the reference job that checks results uses them too.
SEMANTICS = {
    "spark.sql.session.timeZone": "UTC",
    # A window closes only when every port of the fragment is past it (DESIGN: Engine and links).
    "spark.sql.streaming.multipleWatermarkPolicy": "min",
}

#: Says which store keeps the state of a streaming query.
STATE_STORE_PROVIDER = "spark.sql.streaming.stateStore.providerClass"

#: Settings that keep an engine small: it shares its host with what it observes.
_FRUGALITY = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.pollingDelay": "100ms",
    "spark.sql.streaming.numRecentProgressUpdates": "4",
    "spark.sql.streaming.minBatchesToRetain": "4",
    "spark.sql.adaptive.enabled": "false",
    # Nobody looks for parts of a plan that could be computed once: what is shared is a fragment of its own.
    "spark.sql.exchange.reuse": "false",
    # A busy host may take long to start a Python worker; giving up would fail the whole query.
    "spark.python.authenticate.socketTimeout": "120s",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
}

#: Whether a batch writes down what has changed in RocksDB, and not, as a snapshot, all that there is.
CHANGELOGS = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"

#: Whether the rows of a state are counted.
ROW_COUNTS = "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows"

#: State outside the heap, in files that never change, so that a start does not read it (docs/decisions/state-store.md).
#: Who chooses another store leaves all of this out.
_STATE_STORE = {
    STATE_STORE_PROVIDER: window_store.PROVIDER,
    "spark.sql.streaming.join.stateFormatVersion": "4",  # one store for a join instead of four
    CHANGELOGS: "true",
    # A start replays what has changed since the last snapshot, and most of a snapshot is new: one in half a minute.
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "50",
    "spark.sql.streaming.stateStore.maintenanceInterval": "5s",
    # Counting the rows means to look each key up before it is written, also when a start replays what has changed.
    ROW_COUNTS: "false",
    # A single row is read with all of its block. Whoever looks through all rows does so in half of the time with larger
    # blocks than RocksDB's.
    "spark.sql.streaming.stateStore.rocksdb.blockSizeKB": "16",
    "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
    "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB": "64",
}

# The serial collector needs the least memory, and is there in every Java that we start. Spark's query threads recurse
# over plans and match long patterns against them: the default stack of 1 MiB overflowed when a query was stopped.
# Spark runs a great deal of code a little, in each small batch. Java's optimising compiler took so much of the
# processor in an engine's first minutes that all was slow for as long: what it gets must have run ten times as often.
# Who leaves it out altogether (-XX:TieredStopAtLevel=1) would get room for a fifth of the code, and Java ends when that
# is full: after many queries.
# Without memory single threads end, and the others wait for them for ever: a Java that has ended is started anew.
_JAVA_OPTIONS = (
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:+UseSerialGC",
    "-Xss4m",
    "-XX:ReservedCodeCacheSize=240m",
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)

#: The Java machine's own options.
EXTRA_JAVA_OPTIONS = "spark.driver.extraJavaOptions"

_ASKED_FOR = (
    "org.apache.spark.api.python.PythonUtils",
    "org.apache.spark.sql.api.python.PythonSQLUtils",
    "org.apache.spark.sql.functions",
)


def start_session(
    name: str,
    scratch: Path,
    *,
    master: str = "local[2]",
    bind_host: str = "127.0.0.1",
    memory_mb: int = 512,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark in this process with its files under ``scratch``.

    With a ``master`` beyond this process its executors reach us at ``bind_host``, and are checked to share ``scratch``.
    ``settings`` are the user's and come last (Java options are added to ours), but cannot change what results mean:
    ConfigurationError. UnavailableError when there is no usable Java, or the cluster gives no executors.
    """
    chosen = dict(settings or {})
    if fixed := sorted(SEMANTICS.keys() & chosen.keys()):
        raise ConfigurationError(f"{fixed[0]} is fixed to {SEMANTICS[fixed[0]]!r}: results depend on it; leave it out")
    scratch.mkdir(parents=True, exist_ok=True)
    java = prepare_java(scratch)
    # Python workers must be this Python: the one on the path may lack pyarrow, or be another version.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    host = "127.0.0.1" if is_local(master) else bind_host
    os.environ.setdefault("SPARK_LOCAL_IP", host)
    builder = SparkSession.builder.appName(f"sbon-{name}").master(master)
    own_options = (*_JAVA_OPTIONS, f"-Djava.io.tmpdir={scratch}", *reading_options(java))
    # Spark's launcher takes them apart as a shell would; in the user's there are quotes already, where they are needed.
    java_options = f"{shlex.join(own_options)} {chosen.pop(EXTRA_JAVA_OPTIONS, '')}".rstrip()
    for key, value in {
        **SEMANTICS,
        **_FRUGALITY,
        **({} if STATE_STORE_PROVIDER in chosen else _STATE_STORE),
        "spark.driver.bindAddress": host,
        "spark.driver.host": host,
        "spark.driver.memory": f"{memory_mb}m",
        EXTRA_JAVA_OPTIONS: java_options,
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        **chosen,
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    _import_by_name(spark)
    make_settings_light(spark)
    if not is_local(master):
        check_executors(spark, master, scratch)
    # A fragment keeps the store that it has begun with elsewhere, whatever is chosen here.
    window_store.define(spark, None if is_local(master) else scratch)
    return spark


def _import_by_name(spark: SparkSession) -> None:
    """PySpark asks for these several times in each batch, by their last names. Java would look for each in one package
    after the other, and for every wrong one in all of its jars."""
    for name in _ASKED_FOR:
        java_import(spark._jvm, name)
