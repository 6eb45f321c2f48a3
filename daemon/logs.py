"""Logs: one line each on stderr, in a form that journald and grep like: ``message key=value key="two words"``."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from typing import Any

#: Python's levels as syslog priorities (sd-daemon(3)).
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (logging.DEBUG, 7))


class LineFormatter(logging.Formatter):
    """One line per record, tracebacks too; ``extra={"fields": {...}}`` become key=value."""

    def __init__(self, journal: bool) -> None:
        super().__init__()
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = getattr(record, "fields", {})
        parts = [record.getMessage(), *(f"{key}={_value(value)}" for key, value in fields.items())]
        if record.exc_info:
            parts.append(f"traceback={_value(self.formatException(record.exc_info))}")
        line = " ".join(" ".join(parts).splitlines())
        if self._journal:  # which knows the time
            priority = next((priority for level, priority in _PRIORITIES if record.levelno >= level), 7)
            return f"<{priority}>{line}"
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        return f"{moment}.{int(record.msecs):03d}Z {record.levelname.lower():7} {line}"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    plain = text.isprintable() and text and not any(character in text for character in ' "=')
    return text if plain else json.dumps(text, ensure_ascii=False)


def set_up_logs(*, verbose: bool = False) -> None:
    """Send all of the daemon's logs to stderr; those of libraries only from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(_stderr_is_journal()))
    logging.basicConfig(handlers=[handler], force=True)
    logging.getLogger("sbon").setLevel(logging.DEBUG if verbose else logging.INFO)


def _stderr_is_journal() -> bool:
    """Whether $JOURNAL_STREAM names the file that stderr is (systemd.exec(5))."""
    try:
        status = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"
