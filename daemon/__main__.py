"""``python -m daemon`` is ``sbon``."""

from __future__ import annotations

import sys

from daemon.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
