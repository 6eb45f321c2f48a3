"""``python -m spark_bridge``: the engine process, started by a daemon with the first operator it is given."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from sbon.errors import SbonError
from spark_bridge.engine import Engine, EngineSettings
from spark_bridge.fragment_runner import RunnerSettings


def main() -> int:
    """Run an engine; 0 when told to end, 2 with one line on stderr when it cannot start."""
    defaults = RunnerSettings()
    parser = argparse.ArgumentParser(prog="spark_bridge", description="The Spark engine beside one sbon daemon.")
    parser.add_argument("--socket", type=Path, required=True, help="the daemon's engine socket")
    parser.add_argument("--name", required=True, help="the node's name")
    parser.add_argument("--scratch", type=Path, required=True, help="folder for Spark's temporary files")
    parser.add_argument("--bind", default="127.0.0.1", help="address that other engines pull from")
    parser.add_argument("--master", default="local[2]", help="Spark master")
    parser.add_argument("--memory-mb", type=int, default=512, help="heap of the Java machine")
    parser.add_argument("--trigger-ms", type=int, default=defaults.trigger_ms, help="pause between micro-batches")
    parser.add_argument("--log-bytes", type=int, default=defaults.log_bytes, help="room for slow consumers, per link")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark's")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    settings = EngineSettings(
        name=arguments.name,
        socket=arguments.socket,
        scratch=arguments.scratch,
        bind_host=arguments.bind,
        master=arguments.master,
        memory_mb=arguments.memory_mb,
        spark=dict(setting.split("=", 1) for setting in arguments.conf),
        runner=RunnerSettings(arguments.trigger_ms, arguments.log_bytes),
    )
    try:
        Engine(settings).run()
    except (SbonError, OSError) as error:
        print(f"sbon engine {arguments.name}: {error}", file=sys.stderr, flush=True)
        return 2
    return 0


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    # Spark's and Flight's threads may be stuck in a batch or a pull; nothing is left to be saved. The Java machine ends
    # by itself when its standard input closes.
    os._exit(status)
