"""What a fragment reads and computes, as a stream of Spark's that has not been started yet.

To name the ports and to resolve the SQL takes a quarter of a second, and needs nothing of the fragment's state. So it
is done ahead where a fragment is about to arrive, as its rehearsal is; which inboxes are read, and from where on, is
told when it is there.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from sbon.fragment import FragmentSpec
from spark_bridge.arrivals import Arrivals
from spark_bridge.offset_log import newest_offset
from spark_bridge.port_inbox import PortInbox
from spark_bridge.port_reader import PortReader
from spark_bridge.port_source import port_view
from spark_bridge.small_batches import BatchSizes

# Views are named in0, in1, ... in every fragment's frozen SQL; the session is shared, so one fragment at a time may
# resolve its names. A resolved plan does not look at the views again.
names_in_use = threading.Lock()


class FragmentInput:
    """For one start of a fragment that has ports. ``port_schemas`` as in :class:`sbon.engine_messages.Instantiate`.

    Raises PySparkException if Spark refuses the SQL.
    """

    def __init__(self, spark: SparkSession, spec: FragmentSpec, port_schemas: Sequence[str]) -> None:
        self._made_for = _what_makes_it(spec, port_schemas)
        self._readers: dict[str, PortReader] = {}
        sizes = BatchSizes(spark)
        with names_in_use:
            for port, schema_json in zip(spec.ports, port_schemas, strict=True):
                described = json.loads(schema_json)
                rows = StructType.fromJson(described["schema"])
                reader = self._readers[port.name] = PortReader(port.name, rows, spec.watermark_steps)
                view = port_view(spark, reader, sizes, described["event_time"] if spec.stateful else None)
                view.createOrReplaceTempView(port.name)
            self.stream = spark.sql(spec.sql)

    def is_for(self, spec: FragmentSpec, port_schemas: Sequence[str]) -> bool:
        """Whether it would be made of the same."""
        return self._made_for == _what_makes_it(spec, port_schemas)

    def open(self, inboxes: Mapping[str, PortInbox], arrivals: Arrivals, checkpoint: Path) -> None:
        """Have it read from there when it is started, and go on where ``checkpoint`` has ended."""
        for name, reader in self._readers.items():
            segments, starts = newest_offset(checkpoint, name)
            reader.open(inboxes[name], arrivals, starts + 1, segments)


def _what_makes_it(spec: FragmentSpec, port_schemas: Sequence[str]) -> tuple[object, ...]:
    return spec.signature(), spec.stateful, spec.watermark_steps, tuple(port_schemas)
