"""Hadoop's settings, made light: Spark sends all of them to the tasks several times in each batch that has a state.

There are a thousand of them. Hadoop keeps of each which file it is from, and packs each of these names on its own: a
quarter of the time that a join's batches took. Nobody asks for them. Half of the settings are those of YARN, which
reads them itself where it is used.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

_UNUSED = r"^yarn\."


def make_settings_light(spark: SparkSession) -> None:
    """From now on tasks of ``spark`` are sent no more than they can use."""
    jvm: Any = spark._jvm
    context: Any = spark._jsc
    settings = context.hadoopConfiguration()
    # These bring defaults of their own with them, and have all be read anew when they are first needed.
    jvm.java.lang.Class.forName("org.apache.hadoop.mapred.JobConf")
    jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass("file", settings)
    unused = settings.getValByRegex(_UNUSED).keySet()
    _field(jvm, "properties").get(settings).keySet().removeAll(unused)
    _field(jvm, "updatingResource").get(settings).clear()


def _field(jvm: Any, name: str) -> Any:
    field = jvm.java.lang.Class.forName("org.apache.hadoop.conf.Configuration").getDeclaredField(name)
    field.setAccessible(True)
    return field
