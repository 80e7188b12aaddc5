"""From cells to numbers, categories and dates; nothing is guessed that could be read in two ways.

Cells of CSV files are texts. `decimal` says how their file writes one and a half: "1.5" or "1,5".
Where it is the comma, "1.234,5" is read with its point between thousands, and "1.234" is refused:
it could be either.
"""

from __future__ import annotations

from datetime import time, timedelta
from typing import NamedTuple

import numpy as np
import pandas as pd

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "#n/a", "<na>", "nat"})
TRUE, FALSE = frozenset({"true", "yes"}), frozenset({"false", "no"})
FOREIGN: tuple[tuple[tuple[type, ...], str], ...] = (
    ((bytes, bytearray), "bytes"),
    ((list, tuple, set, dict, np.ndarray), "lists or records"),
    ((time, timedelta), "times of day or durations"),
)
LARGEST = 1e30  # beyond, squares no longer fit: such a number is a mistake
_WHOLE = r"^([+-]?\d+)[.,]0+$"
_OTHER_DATE = r"^\s*\d{1,2}[./-]\d{1,2}[./-](?:\d{4}|\d{2})(?:\D|$)"
_THOUSANDS = r"^\s*[+-]?\d{1,3}(?:\.\d{3})+,\d+\s*$"


class Numbers(NamedTuple):
    """Values, NaN wherever there is none; `bad` cells hold something that is no number of usual size."""

    values: np.ndarray
    missing: np.ndarray
    bad: np.ndarray


def is_text(column: pd.Series) -> bool:
    kinds, kind = pd.api.types, column.dtype
    real = kinds.is_numeric_dtype(kind) and not kinds.is_complex_dtype(kind)
    return not (real or kinds.is_datetime64_any_dtype(kind))


def foreign(column: pd.Series) -> str:
    """What a column of Parquet or of a data frame holds that is no number, text or date; else nothing."""
    if pd.api.types.is_complex_dtype(column.dtype):
        return "complex numbers"
    if pd.api.types.is_timedelta64_dtype(column.dtype):
        return "durations"
    if column.dtype != object or not column.notna().any():
        return ""
    first = column[column.notna()].iloc[0]
    return next((words for kinds, words in FOREIGN if isinstance(first, kinds)), "")


def is_missing(column: pd.Series) -> np.ndarray:
    """Empty cells, and the words that stand for nothing."""
    absent = column.isna().to_numpy(bool)
    if not is_text(column):
        return absent
    found = absent.copy()
    words = column[~absent].astype(str).str.strip().str.lower()
    found[~absent] = words.isin(MISSING).to_numpy(bool)
    return found


def numbers(column: pd.Series, decimal: str = ".") -> Numbers:
    if not is_text(column):
        kinds, kind = pd.api.types, column.dtype
        if kinds.is_datetime64_any_dtype(kind) or kinds.is_bool_dtype(kind):
            absent = column.isna().to_numpy(bool)
            return Numbers(np.full(len(column), np.nan), absent, ~absent)
        values = _floats(column)
    else:
        texts = column.where(column.notna(), "").astype(str)
        if decimal == ",":
            grouped = texts.str.match(_THOUSANDS)
            plain = texts.where(~grouped, texts.str.replace(".", "", regex=False))
            readable = ~plain.str.contains(".", regex=False)
            texts = plain.str.replace(",", ".", regex=False).where(readable, "x")
        values = _floats(pd.to_numeric(texts, errors="coerce"))
    suspicious = ~(np.abs(values) <= LARGEST)
    absent = np.zeros(len(values), bool)
    if suspicious.any():
        absent[suspicious] = is_missing(column[suspicious])
        values[suspicious] = np.nan
    return Numbers(values, absent, suspicious & ~absent)


def booleans(column: pd.Series) -> np.ndarray:
    """1 and 0 for true and false, yes and no; NaN for anything else."""
    words = column.where(column.notna(), "").astype(str).str.strip().str.lower()
    return np.where(words.isin(TRUE), 1.0, np.where(words.isin(FALSE), 0.0, np.nan))


def texts(column: pd.Series) -> np.ndarray:
    """Stripped words, "" where nothing stands. Whole numbers are written without a fraction, so that
    a file that stores them as 3.0 has the category 3, too."""
    if pd.api.types.is_bool_dtype(column.dtype):
        words = column.astype(str).str.lower()
    elif is_text(column):
        words = column.where(column.notna(), "").astype(str).str.strip()
        words = words.str.replace(_WHOLE, r"\1", regex=True)
    elif pd.api.types.is_datetime64_any_dtype(column.dtype):
        words = column.astype(str)
    else:
        words = pd.Series(
            [_written(value) for value in _floats(column)], index=column.index, dtype=object
        )
    found = np.array(words.to_numpy(dtype=object), dtype=object)
    found[is_missing(column)] = ""
    return found


def _floats(column: pd.Series) -> np.ndarray:
    if column.isna().any():
        return np.array(column.to_numpy(dtype=float, na_value=np.nan), float)
    return np.array(column.to_numpy(), float)


def _written(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def times(column: pd.Series) -> pd.Series:
    """Dates as ISO 8601 writes them, in UTC; NaT for anything else."""
    if not is_text(column) and not pd.api.types.is_datetime64_any_dtype(column.dtype):
        return pd.Series(pd.NaT, index=column.index, dtype="datetime64[us, UTC]")
    given = column if not is_text(column) else column.where(column.notna(), "").astype(str)
    form = None if not is_text(column) else "ISO8601"
    try:
        return pd.to_datetime(given, format=form, errors="coerce", utc=True)
    except (ValueError, OverflowError):  # years that no calendar has
        return pd.Series(pd.NaT, index=column.index, dtype="datetime64[us, UTC]")


def unclear_times(column: pd.Series) -> np.ndarray:
    """Dates in another form than ISO 8601's, such as 31.05.2024 or 05/06/24 (which month is that?)."""
    words = column.where(column.notna(), "").astype(str)
    return words.str.match(_OTHER_DATE).to_numpy(bool)


def cycle(moments: pd.Series, name: str) -> np.ndarray:
    """[rows, 2]: sine and cosine of where in its cycle a moment lies."""
    at, hour = moments.dt, moments.dt.hour + moments.dt.minute / 60
    share = {
        "hour": lambda: hour / 24,
        "weekday": lambda: (at.day_of_week + hour / 24) / 7,
        "day": lambda: (at.day_of_year - 1 + hour / 24) / 365.25,
        "month": lambda: (at.month - 1 + (at.day - 1) / at.days_in_month) / 12,
    }[name]()
    angle = 2 * np.pi * _floats(share)
    return np.stack([np.sin(angle), np.cos(angle)], axis=1)
