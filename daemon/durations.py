"""Durations as people write them."""

from __future__ import annotations

import re

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration_s(text: str) -> float:
    """Read "90s", "30m", "1h" or "7d". Raises ValueError with one line for the user."""
    match = re.fullmatch(r"(\d{1,9})([smhd])", text, re.ASCII)
    if match is None or int(match[1]) == 0:
        raise ValueError(f'"{text}" is not a duration: write a number with s, m, h or d, for example 1h')
    return int(match[1]) * _UNITS_S[match[2]]
