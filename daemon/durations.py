"""Durations and moments as people write them."""

from __future__ import annotations

import re
from datetime import datetime

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration_s(text: str) -> float:
    """Read "90s", "30m", "1h" or "7d". Raises ValueError with one line for the user."""
    match = re.fullmatch(r"(\d{1,9})([smhd])", text, re.ASCII)
    if match is None or int(match[1]) == 0:
        raise ValueError(f'"{text}" is not a duration: write a number with s, m, h or d, for example 1h')
    return int(match[1]) * _UNITS_S[match[2]]


def parse_moment_s(text: str, now_s: float) -> float:
    """Read a moment in ISO format with its time zone, or a duration from ``now_s`` on; in seconds since the epoch.

    Raises ValueError with one line for the user.
    """
    if re.fullmatch(r"\d+[a-z]", text, re.ASCII):
        return now_s + parse_duration_s(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError(f'"{text}" is not a time: write 2h for two hours from now, or 2026-12-01T18:00+01:00')
    return moment.timestamp()
