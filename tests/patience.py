"""Limits for processes that tests start, scaled by one setting: a busy machine is not a red suite."""

from __future__ import annotations

import os


def patience(seconds: float) -> float:
    """Return `seconds` times the environment's PACPFL_TEST_PATIENCE (1 where it is not set)."""
    return seconds * float(os.environ.get("PACPFL_TEST_PATIENCE") or 1)
