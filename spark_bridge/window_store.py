"""A state store that finds an aggregate's windows by their end, where Spark's looks through all of them in each batch.

Spark loads the class of a state store by its name, on whatever thread needs it. So ``WindowStore.java`` is compiled by
the compiler that Spark has for its plans, and becomes one of the classes that Spark itself comes from.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

#: As a setting of Spark's (``spark.sql.streaming.stateStore.providerClass``).
PROVIDER: Final = "sbon.WindowStore"
_SOURCE: Final = Path(__file__).with_name("WindowStore.java")


def define(spark: SparkSession, executors: Path | None = None) -> None:
    """Make the class known here, and, if a folder for its archive is given, to executors that are other processes."""
    jvm: Any = spark._jvm
    loader = jvm.org.apache.spark.SparkConf().getClass().getClassLoader()
    is_known = jvm.org.apache.spark.util.Utils.classIsLoadable(PROVIDER)
    if is_known and executors is None:
        return
    compiled = _compiled(jvm, loader)
    if not is_known:
        _define_here(spark, loader, compiled)
    if executors is not None:
        archive = executors / "window-store.jar"
        with zipfile.ZipFile(archive, "w") as jar:
            for name, code in compiled.items():
                jar.writestr(f"{name.replace('.', '/')}.class", code)
        spark._jsc.addJar(str(archive))


def _compiled(jvm: Any, loader: Any) -> dict[str, bytes]:
    """The classes, by their names."""
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.cook(_SOURCE.read_text())
    return {str(name): bytes(code) for name, code in compiler.getBytecodes().items()}


def _define_here(spark: SparkSession, loader: Any, compiled: dict[str, bytes]) -> None:
    """Only a loader itself may do that in Java, or whoever its package is opened to: Spark has it opened to all."""
    gateway: Any = spark._sc._gateway
    java: Any = gateway.jvm.java.lang
    number = java.Integer.TYPE
    kinds = _array(
        gateway, java.Class, java.Class.forName("java.lang.String"), java.Class.forName("[B"), number, number
    )
    define = java.Class.forName("java.lang.ClassLoader").getDeclaredMethod("defineClass", kinds)
    define.setAccessible(True)
    for name, code in compiled.items():
        define.invoke(loader, _array(gateway, java.Object, name, code, 0, len(code)))


def _array(gateway: Any, kind: Any, *items: object) -> Any:
    """Of Java's."""
    array = gateway.new_array(kind, len(items))
    for at, item in enumerate(items):
        array[at] = item
    return array
