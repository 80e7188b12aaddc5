"""Numbers as short text inside the page: two characters each, one for a pixel.

A number becomes one of 4095 steps between the lowest and the highest value of its axis, finer than
any screen shows; the last code of all stands for what is not finite. `panels.js` reads it back.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
MISSING = 64 * 64 - 1
STEPS = MISSING - 1
LETTERS = np.frombuffer(ALPHABET.encode(), np.uint8)


def pack(values: np.ndarray, low: float, high: float) -> str:
    """Each value as its step from `low` (0) to `high` (STEPS), written with two letters."""
    values = np.asarray(values, float).reshape(-1)
    known = np.isfinite(values)
    width = high - low if high > low else 1.0
    steps = np.rint((np.where(known, values, low) - low) / width * STEPS)
    codes = np.where(known, np.clip(steps, 0, STEPS), MISSING).astype(int)
    return LETTERS[np.stack([codes // 64, codes % 64], axis=1)].tobytes().decode()


def pack_image(image: np.ndarray) -> str:
    """A byte image with one letter for each pixel, 64 shades from its darkest to its brightest."""
    brightest = max(int(image.max(initial=0)), 1)
    return LETTERS[np.rint(63.0 * image / brightest).astype(int).reshape(-1)].tobytes().decode()


def limits(*values: np.ndarray) -> tuple[float, float]:
    """The lowest and the highest finite value; (0, 1) where there is none."""
    together = np.concatenate([np.asarray(part, float).reshape(-1) for part in values])
    together = together[np.isfinite(together)]
    return (float(together.min()), float(together.max())) if together.size else (0.0, 1.0)


def embedded(data: Any) -> str:
    """JSON that can stand inside a script element: nothing in it can end the element."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
