"""What Spark has planned for a batch, read from its checkpoint.

Spark writes ``offsets/N`` before it runs batch N and replays exactly that after a crash; so what is derived from it
(the watermark that a segment carries, the end of the stream) is the same in every replay.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """``watermark_ms``: no later row is older, None before the first. ``offsets``: where each source will end."""

    watermark_ms: int | None
    offsets: tuple[dict[str, Any], ...]

    def port_ends(self) -> dict[str, int]:
        """End of this batch in each port, in segments."""
        return {offset["port"]: int(offset["segments"]) for offset in self.offsets if "port" in offset}

    def sources_ended(self) -> bool:
        """True if every source says that this batch reads its last row."""
        return bool(self.offsets) and all(offset.get("end_of_stream") is True for offset in self.offsets)


def planned_batch(checkpoint: Path, batch_id: int) -> BatchPlan:
    """Read ``offsets/<batch_id>``: a version line, a line of metadata, a line per source."""
    _version, metadata, *sources = (checkpoint / "offsets" / str(batch_id)).read_text().splitlines()
    watermark_ms = int(json.loads(metadata)["batchWatermarkMs"])
    offsets = [json.loads(line) for line in sources if line != "-"]
    return BatchPlan(
        # Spark's watermark excludes itself, ours does not (see port_reader).
        watermark_ms=watermark_ms + 1 if watermark_ms > 0 else None,
        offsets=tuple(offset for offset in offsets if isinstance(offset, dict)),
    )


def newest_offset(checkpoint: Path, port: str) -> tuple[int, int]:
    """Of ``port``, up to which segment batches were planned, and how often the query has begun to read it (see
    port_reader)."""
    batch_id = max((int(path.name) for path in (checkpoint / "offsets").glob("[0-9]*")), default=None)
    offsets = () if batch_id is None else planned_batch(checkpoint, batch_id).offsets
    found = next((offset for offset in offsets if offset.get("port") == port), {"segments": 0, "starts": 0})
    return int(found["segments"]), int(found["starts"])


def is_committed(checkpoint: Path, batch_id: int) -> bool:
    """True once Spark will never run ``batch_id`` again."""
    return (checkpoint / "commits" / str(batch_id)).exists()
