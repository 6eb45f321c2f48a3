"""The connections over which Java calls Python: one for each thread of Java that ever did.

A streaming query has such a thread. Py4J keeps the thread's connection for its next call, for good, and with it a
socket on either side and a thread here: an engine that rehearses and moves fragments for weeks would have thousands.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.sql import SparkSession

#: What Py4J calls its own end in Java.
_SERVER = "GATEWAY_SERVER"


def close_idle(spark: SparkSession) -> None:
    """Close every connection that Java began and does not use now: to be called when a query has ended.

    A thread that lives makes itself another one with its next call. Only forgotten, not closed, they would be waited
    for when Python ends. Raises Py4JError if Java is gone.
    """
    client: Any = JavaObject(_SERVER, spark.sparkContext._gateway._gateway_client).getCallbackClient()  # type: ignore[union-attr]
    fields = client.getClass().getSuperclass()
    lock, idle = (_value(fields, name, client) for name in ("lock", "connections"))
    lock.lock()  # a thread takes its connection out under it, and looks then whether it is open
    try:
        for connection in idle.toArray():
            if connection.isInitiatedFromClient():
                idle.remove(connection)
                connection.shutdown()
    finally:
        lock.unlock()


def _value(fields: Any, name: str, of: Any) -> Any:
    field = fields.getDeclaredField(name)
    field.setAccessible(True)
    return field.get(of)
