"""Which column of one table names the client, guessed as a person would."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer

from pacpfl.cli.tables import propose
from pacpfl.data.tables import guess as guessing
from pacpfl.data.tables.guess import client_columns
from pacpfl.errors import InputError

ROWS = 48


def write(path: Path, **columns: object) -> Path:
    """A table with a feature and a target, after these columns; numbers choose a value for each row."""
    random = np.random.default_rng(0)
    own = {
        name: [f"{name}{i % value}" for i in range(ROWS)] if isinstance(value, int) else value
        for name, value in columns.items()
    }
    x = random.normal(size=ROWS)
    pd.DataFrame(own | {"x": x, "y": x + random.normal(size=ROWS)}).to_csv(path, index=False)
    return path


def found(path: Path, target: str | None = "y") -> list[str]:
    (table,) = guessing.open_tables(path)
    return list(client_columns(table, target))


def test_columns_are_ranked_as_a_person_would(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    codes, floats = [101 + i % 6 for i in range(ROWS)], [0.5 + i % 6 for i in range(ROWS)]
    for columns, best in (
        ({"colour": 4, "county": 8, "state": 4}, ["county", "colour", "state"]),
        ({"hue": 4, "village": 8}, ["village", "hue"]),  # more clients first
        ({"village": 8, "pair": 24, "hue": 3}, ["village", "hue"]),  # 2 rows are too few
        ({"colour": 8, "SchoolCode": codes}, ["SchoolCode", "colour"]),
        (
            {"colour": 8, "hospital_id": codes, "hospital_type": 3},
            ["hospital_id", "hospital_type", "colour"],
        ),
        ({"colour": 3, "schoolid": codes, "grid": codes}, ["schoolid", "colour"]),
        ({"colour": 8, "site": 2, "sex": 2}, ["site", "colour"]),
        ({"sex": 2, "side": 2}, ["sex", "side"]),  # the last resort
        ({"area": codes, "id": range(ROWS), "name": ROWS, "one": 1}, []),
        ({"site_id": floats, "smoker": ["yes", "no"] * (ROWS // 2)}, []),
        ({"day": ["2024-01-01", "2024-01-02", "2024-01-03"] * 16}, []),
        ({"hole": ["a", "b", "c", ""] * 12}, []),
    ):
        assert found(write(path, **columns)) == best, columns
    write(path, town=4, label=4)
    assert found(path, None) == ["town"]  # a column called as targets are is none of clients
    assert found(path, "y") == ["town", "label"]
    assert found(path, "town") == ["label"]
    frame = pd.read_csv(path)
    frame[["x", "town"]].to_csv(path, index=False)
    assert found(path, None) == []  # the last column is the target
    frame[["x", "town"]].rename(columns={"town": "city"}).to_csv(path, index=False)
    assert found(path, None) == ["city"]


def test_what_names_rows_is_dropped_while_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk that looks like names of clients is followed by others that are all different."""
    path = write(tmp_path / "t.csv", note=[f"n{max(0, i - 8)}" for i in range(ROWS)])
    (table,) = guessing.open_tables(path)
    chunks, seen = type(table).chunks, []

    def slowly(self, rows=4):
        for chunk in chunks(self, rows):
            seen.append(len(chunk))
            yield chunk

    monkeypatch.setattr(type(table), "chunks", slowly)
    monkeypatch.setattr(guessing, "CHUNK", 4)
    assert client_columns(table, "y") == {}
    assert 8 < sum(seen) < ROWS


def test_one_sentence_says_the_counts_and_a_terminal_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "t.csv", state=4, county=8, town=5)
    said = (
        "Column 'county' names the client: 8 values with 6 to 6 rows; it could also be 'town' (5), "
        "'state' (4). Another: --client COLUMN."
    )

    def refuse(*words: object, **more: object) -> str:
        raise AssertionError("asked where nobody is")

    monkeypatch.setattr(typer, "prompt", refuse)
    for of_in, of_out in ((False, False), (False, True), (True, False)):
        monkeypatch.setattr(sys.stdin, "isatty", lambda value=of_in: value, raising=False)
        monkeypatch.setattr(sys.stdout, "isatty", lambda value=of_out: value, raising=False)
        proposal = propose(path)
    assert said in proposal.words
    assert proposal.config.tables.client == "county"

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert propose(path, client="town").config.tables.client == "town"
    answers = ["nowhere", "state"]
    monkeypatch.setattr(typer, "prompt", lambda words, default: answers.pop(0))
    proposal = propose(path)
    assert not answers
    assert proposal.config.tables.client == "state"
    assert any("'state' names the client: 4 values with 12 to 12" in w for w in proposal.words)
    monkeypatch.setattr(typer, "prompt", refuse)
    assert propose(write(path, site=6)).config.tables.client == "site"  # nothing to choose from
    with pytest.raises(InputError, match=r"t.csv is one table; say which .* one of x\."):
        propose(write(path), "y")
