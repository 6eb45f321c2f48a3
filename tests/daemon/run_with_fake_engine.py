"""A daemon as ``sbon run`` starts it, but with fake_engine.py: python -m tests.daemon.run_with_fake_engine FILE"""

from __future__ import annotations

import sys
from pathlib import Path

import trio

from daemon.config import load_config
from daemon.logs import set_up_logs
from daemon.process import run_until_signal

FAKE_ENGINE = (sys.executable, str(Path(__file__).with_name("fake_engine.py")))


if __name__ == "__main__":
    set_up_logs()
    trio.run(run_until_signal, load_config(Path(sys.argv[1])), FAKE_ENGINE)
