"""Cells: what is a number, what is missing, what is refused because it could be read in two ways."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pacpfl.data.tables import columns


@pytest.mark.parametrize(
    ("cell", "decimal", "number"),
    [
        ("1.5", ".", 1.5),
        (" -2e3 ", ".", -2000.0),
        ("1,5", ",", 1.5),
        ("1.234,5", ",", 1234.5),
        ("-1.234.567,25", ",", -1234567.25),
        ("7", ",", 7.0),
    ],
)
def test_numbers_are_read_as_their_file_writes_them(cell: str, decimal: str, number: float) -> None:
    found = columns.read_numbers(pd.Series([cell]), decimal)
    assert found.values.tolist() == [number]
    assert not found.missing.any()
    assert not found.bad.any()


@pytest.mark.parametrize(
    ("cell", "decimal"),
    [
        ("1,5", "."),
        ("1.234", ","),  # a thousand and more, or one and a bit
        ("inf", "."),
        ("-Infinity", "."),
        ("1e400", "."),
        ("1e31", "."),
        ("0x10", "."),
        ("1_000", "."),
        ("12 km", "."),
        ("(1+2j)", "."),
        ("--1", "."),
    ],
)
def test_what_is_no_number_is_bad_and_never_guessed(cell: str, decimal: str) -> None:
    found = columns.read_numbers(pd.Series([cell]), decimal)
    assert found.bad.tolist() == [True]
    assert np.isnan(found.values).all()


@pytest.mark.parametrize("cell", ["", "  ", "NA", "n/a", "NaN", "null", "None", "?", "#N/A"])
def test_words_for_nothing_are_missing(cell: str) -> None:
    found = columns.read_numbers(pd.Series([cell, "1"]))
    assert found.missing.tolist() == [True, False]
    assert found.bad.tolist() == [False, False]
    assert columns.read_texts(pd.Series([cell, "1"])).tolist() == ["", "1"]


def test_typed_columns_keep_their_values() -> None:
    whole = columns.read_numbers(pd.Series(pd.array([1, None], dtype="Int64")))
    assert whole.values[0] == 1
    assert whole.missing.tolist() == [False, True]
    truth = pd.Series([True, False])  # no numbers: files of text write them as words
    assert columns.read_numbers(truth).bad.all()
    assert columns.read_booleans(truth).tolist() == [1.0, 0.0]
    assert columns.read_numbers(pd.Series([1.0, math.inf])).bad.tolist() == [False, True]
    assert columns.read_numbers(pd.Series([1 + 2j])).bad.tolist() == [True]
    assert columns.read_texts(pd.Series([3.0, 2.5])).tolist() == ["3", "2.5"]
    assert columns.read_texts(pd.Series(["3.0", "007", " x "])).tolist() == ["3", "007", "x"]
    assert columns.read_texts(pd.Series([True, False])).tolist() == ["true", "false"]


@given(st.lists(st.floats(-1e29, 1e29), min_size=1, max_size=20))
@settings(max_examples=50, deadline=None)
def test_written_numbers_come_back_with_point_and_comma(numbers: list[float]) -> None:
    for decimal in (".", ","):
        written = pd.Series([repr(number).replace(".", decimal) for number in numbers], dtype=str)
        found = columns.read_numbers(written, decimal)
        np.testing.assert_allclose(found.values, numbers, rtol=1e-14)


@given(st.lists(st.text(max_size=12), min_size=1, max_size=10))
@settings(max_examples=100, deadline=None)
def test_any_text_is_a_number_or_missing_or_bad(cells: list[str]) -> None:
    found = columns.read_numbers(pd.Series(cells, dtype=object))
    good = np.isfinite(found.values)
    assert (good.astype(int) + found.missing + found.bad == 1).all()
    for cell, is_good, value in zip(cells, good, found.values, strict=True):
        if is_good:
            assert float(cell) == pytest.approx(value)


def test_cycles_close() -> None:
    start = datetime(2024, 1, 1, tzinfo=UTC)
    assert start.weekday() == 0
    moments = columns.read_times(
        pd.Series(["2024-01-01", "2024-01-01T06:00", "2024-01-04T12:00", "2024-07-01", "nonsense"])
    )
    assert moments.isna().tolist() == [False] * 4 + [True]
    hour, weekday, month = (
        columns.cycle_features(moments[:4], name) for name in ("hour", "weekday", "month")
    )
    np.testing.assert_allclose(hour, [[0, 1], [1, 0], [0, -1], [0, 1]], atol=1e-12)
    np.testing.assert_allclose(weekday[0], [0, 1], atol=1e-12)
    np.testing.assert_allclose(weekday[2], [0, -1], atol=1e-12)  # the middle of the week
    np.testing.assert_allclose(month[[0, 3]], [[0, 1], [0, -1]], atol=1e-12)
    day = columns.cycle_features(moments[:4], "day")
    np.testing.assert_allclose(np.hypot(*day.T), 1)
    assert np.arctan2(*day[3]) % (2 * np.pi) == pytest.approx(2 * np.pi * 182 / 365.25)
