"""Where the state of a fragment says that it is, after it came from another host.

Spark writes nearly all paths in a checkpoint relative to it. The exception is where the schemas of an operator's state
are: with their full paths (its "operator metadata", version 2). A moved query would look for them on the host where it
was, and make folders for them on this one, under names of that one: where it may not, it would not start.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from sbon.errors import SbonError
from spark_bridge.durable import write_durably

_PATHS = "stateSchemaFilePaths"
#: In a checkpoint, for each operator.
_METADATA = "state/[0-9]*/_metadata/v2/[0-9]*"


def own_its_paths(checkpoint: Path) -> None:
    """Have all full paths in ``checkpoint`` lead into it. Nothing to do where they do already.

    Raises SbonError for metadata that is none.
    """
    for file in checkpoint.glob(_METADATA):
        try:
            header, newline, text = file.read_text().partition("\n")
            metadata = json.loads(text)
            moved = False
            for store in metadata["stateStoreInfo"]:
                paths = [_own(path, checkpoint) for path in store.get(_PATHS, ())]
                moved = moved or paths != store.get(_PATHS, [])
                store[_PATHS] = paths
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SbonError(f"{file} is damaged: {error}") from None
        if moved:
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)  # of what was there; there need be none
            write_durably(file, f"{header}{newline}{json.dumps(metadata)}".encode())


def become_another_query(checkpoint: Path) -> None:
    """Of two queries with one id Spark stops the one that runs when the other starts: a copy gets an id of its own."""
    file = checkpoint / "metadata"
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    write_durably(file, json.dumps({"id": str(uuid.uuid4())}).encode())


def _own(path: str, checkpoint: Path) -> str:
    """From ``state/`` on it is the same everywhere."""
    _, _, within = path.rpartition("/state/")
    return f"file:{checkpoint.absolute()}/state/{within}"
