"""Tables become a federation: every cell at its place, splits, encodings, standardisation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from refusals import refused

from pacpfl.data.prepare import check_federation, standardize
from pacpfl.data.settings import TableSettings
from pacpfl.data.tables.columns import Schema
from pacpfl.data.tables.read import Tables, load_tables, read_rows
from pacpfl.types import Client, Federation

COLOURS = ("blue", "green", "red")
SITES = (("a", 20, 1), ("b", 30, 2), ("d", 25, 4), ("zürich", 15, 3))  # name, rows, seed


def frame(rows: int, seed: int, **columns: Any) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    x = random.normal(size=rows).round(3)
    table = {
        "number": np.arange(rows) + 1000 * seed,  # tells where a row comes from
        "x": x,
        "colour": random.choice(COLOURS, rows),
        "on": random.choice(["yes", "no"], rows),
        "y": (100 + 10 * x).round(3),
    }
    return pd.DataFrame(table | columns)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four clients, each written in another way."""
    place = tmp_path / "sites"
    place.mkdir()
    frame(20, 1).to_csv(place / "a.csv", index=False)
    frame(30, 2).to_csv(place / "b.csv", index=False, sep=";", decimal=",", encoding="utf-8-sig")
    frame(15, 3)[["y", "on", "x", "number", "colour"]].to_csv(
        place / "zürich.csv", index=False, sep="\t"
    )
    frame(25, 4).to_parquet(place / "d.parquet")
    return place


def load(source: Any, seed: int = 0, chunk: int = 50, **more: Any) -> Tables:
    return load_tables(source, TableSettings(**{"target": "y", **more}), seed, chunk=chunk)


def everyone(federation: Federation) -> dict[str, Client]:
    return {client.name: client for client in (*federation.existing, *federation.new)}


def rows_of(client: Client) -> np.ndarray:
    """The numbers of all rows, in the order train, later, test."""
    parts = [part for part in (client.train, client.later, client.test) if part is not None]
    return np.concatenate([part.x[:, 0] for part in parts])


def test_every_cell_arrives_whatever_the_file_looks_like(folder: Path) -> None:
    federation = load(folder).federation
    colours = tuple(f"colour={colour}" for colour in COLOURS)
    assert federation.features == ("number", "x", *colours, "on")
    clients = everyone(federation)
    assert list(clients) == ["a", "b", "d", "zürich"]
    for name, rows, seed in SITES:
        expected = frame(rows, seed).set_index("number")
        client = clients[name]
        assert sorted(rows_of(client)) == list(expected.index)
        for part in (client.train, client.test):
            origin = expected.loc[part.x[:, 0]]
            np.testing.assert_array_equal(part.x[:, 1], origin["x"])
            np.testing.assert_array_equal(part.y, origin["y"])
            for place, colour in enumerate(COLOURS):
                np.testing.assert_array_equal(part.x[:, 2 + place], origin["colour"] == colour)
            np.testing.assert_array_equal(part.x[:, 5], origin["on"] == "yes")
    check_federation(federation)


def test_one_table_with_a_column_of_clients(folder: Path, tmp_path: Path) -> None:
    """Rows of the clients in between each other: the same federation."""
    parts = [frame(rows, seed).assign(site=name) for name, rows, seed in SITES]
    whole = pd.concat(parts).sample(frac=1, random_state=0)
    whole.to_csv(tmp_path / "all.csv", index=False)
    for source in (tmp_path / "all.csv", whole):
        found = everyone(load(source, client="site").federation)
        for name, rows, seed in SITES:
            assert sorted(rows_of(found.pop(name))) == list(1000 * seed + np.arange(rows))
        assert not found
    again = everyone(load(whole.sample(frac=1, random_state=1), client="site").federation)
    assert set(rows_of(again["a"])) == set(range(1000, 1020))


def test_the_split_is_seeded_per_client_and_disjoint(folder: Path) -> None:
    one = everyone(load(folder, held_out=0.3, for_later=0.2).federation)
    for name, rows in (("a", 20), ("b", 30)):
        client = one[name]
        assert len(client.test) == round(0.3 * rows)
        assert len(client.later) == round(0.2 * rows)
        assert len(set(rows_of(client))) == rows
    (folder / "a.csv").unlink()
    fewer = everyone(load(folder, held_out=0.3, for_later=0.2).federation)
    np.testing.assert_array_equal(fewer["b"].train.x[:, :2], one["b"].train.x[:, :2])
    other = everyone(load(folder, seed=1, held_out=0.3, for_later=0.2).federation)
    assert set(other["b"].train.x[:, 0]) != set(one["b"].train.x[:, 0])


def test_by_time_the_last_rows_measure(folder: Path) -> None:
    numbered = everyone(load(folder, split="time", split_by="number", columns=("x",)).federation)
    last = frame(20, 1)["x"][-len(numbered["a"].test) :]
    assert sorted(numbered["a"].test.x[:, 0]) == sorted(last)
    days = pd.date_range("2024-01-01", periods=10).astype(str)[::-1]
    times = pd.DataFrame({"when": days, "x": np.arange(10.0), "y": np.arange(10.0), "who": "a"})
    found = load(times, split="time", split_by="when", client="who", held_out=0.3, for_later=0.2)
    client = found.federation.existing[0]
    assert client.test.y.tolist() == [2, 1, 0]  # the latest dates stand first in the table
    assert client.later.y.tolist() == [4, 3]
    assert client.train.y.tolist() == [9, 8, 7, 6, 5]


def test_a_column_may_say_which_rows_train(tmp_path: Path) -> None:
    parts = ["train", "Later", "test", "", "test", "train", "train", "TEST"]
    table = pd.DataFrame({"x": np.arange(8.0), "y": np.arange(8.0), "part": parts, "who": "a"})
    client = load(table, split="column", split_by="part", client="who").federation.existing[0]
    assert (client.train.y.tolist(), client.later.y.tolist()) == ([0, 5, 6], [1])
    assert client.test.y.tolist() == [2, 4, 7]


def test_new_clients_are_named_drawn_or_told_by_a_column(folder: Path) -> None:
    named = load(folder, new=("b",)).federation
    assert [client.name for client in named.new] == ["b"]
    drawn = load(folder, new_share=0.5).federation
    assert len(drawn.new) == len(drawn.existing) == 2
    whole = pd.concat([frame(9, s).assign(who=f"c{s}", fresh=s == 3) for s in (1, 2, 3)])
    told = load(whole, client="who", new_by="fresh").federation
    assert [client.name for client in told.new] == ["c3"]


def test_categories_are_those_of_training_rows_of_existing_clients(folder: Path) -> None:
    rare = frame(12, 5)
    rare["colour"] = "violet"
    rare.to_csv(folder / "e.csv", index=False)
    found = load(folder, new=("e",))
    assert "colour=violet" not in found.federation.features
    violet = found.federation.new[0].train
    np.testing.assert_array_equal(violet.x[:, 2:5], 0)
    assert any("'colour': 12 cells" in notice for notice in found.notices)
    assert "colour=violet" in load(folder).federation.features
    violet_there = r"e\.csv, row 1: column 'colour' holds 'violet'"
    refused(lambda: load(folder, new=("e",), unseen="error"), violet_there)


def test_numbers_may_be_categories_and_dates_cycles() -> None:
    columns = {"zone": [1, 2, 1, 2, 3, 3, 1, 2], "y": np.arange(8.0), "who": "a"}
    table = pd.DataFrame(columns | {"when": pd.date_range("2024-01-01", periods=8, freq="6h")})
    found = load(table, client="who", categorical=("zone",), dates=("when",), cycles=("hour",))
    zones = ("zone=1", "zone=2", "zone=3")
    assert found.federation.features == (*zones, "when hour sin", "when hour cos")
    client = found.federation.existing[0]
    assert set(client.train.x[:, 3].round(9)) <= {0, 1, -1}
    ignored = load(table, client="who").federation  # dates only where they are asked for
    assert ignored.features == ("zone",)


def test_missing_cells_are_an_error_dropped_or_imputed_by_training_medians() -> None:
    table = frame(40, 1).assign(who="a")
    table.loc[[3, 8, 9], "x"] = np.nan
    table.loc[5, "colour"] = None
    table.loc[7, "y"] = np.nan
    refused(lambda: load(table, client="who"), r"row 4: column 'x' is missing")
    dropped = load(table, client="who", missing="drop")
    assert sorted(rows_of(dropped.federation.existing[0])) == [
        1000 + k for k in range(40) if k not in (3, 5, 7, 8, 9)
    ]
    assert dropped.notices == ("Missing cells: 'x' 3, 'colour' 1, 'y' 1. 5 rows were dropped.",)
    filled = load(table, client="who", missing="impute")
    client = filled.federation.existing[0]
    kept = table.set_index("number").loc[client.train.x[:, 0], "x"]
    median = float(np.median(kept.dropna()))
    for part in (client.train, client.test):
        gaps = np.isin(part.x[:, 0], [1003, 1008, 1009])
        assert (part.x[gaps, 1] == median).all()
        assert np.isfinite(part.x).all()
        assert not part.x[part.x[:, 0] == 1005, 2:5].any()
    assert 1007 not in rows_of(client)
    assert filled.schema.columns[1].median == median


def test_class_labels_are_any_words() -> None:
    table = frame(30, 1).assign(who="a", y=np.array(["ja", "nein", "äh"] * 10))
    found = load(table, client="who")
    assert found.schema.classes == ("ja", "nein", "äh")
    assert found.federation.classes == 3
    client = found.federation.existing[0]
    expected = (client.train.x[:, 0] - 1000) % 3
    np.testing.assert_array_equal(client.train.y, expected)
    numbered = load(table.assign(y=[10, 9, 2] * 10), client="who", task="classes")
    assert numbered.schema.classes == ("2", "9", "10")
    assert load(table.assign(y=[0, 1, 1] * 10), client="who").schema.classes == ("0", "1")


def test_too_small_clients_are_named_or_left_out(folder: Path) -> None:
    frame(1, 7).to_csv(folder / "tiny.csv", index=False)
    refused(lambda: load(folder), r"Too few rows .*: tiny; add rows, or set tables.small")
    found = load(folder, small="leave")
    assert "tiny" not in everyone(found.federation)
    assert found.notices == ("Left out, having too few rows: tiny.",)
    four = everyone(load(frame(4, 1).assign(who="a"), client="who").federation)["a"]
    assert (len(four.train), len(four.test)) == (2, 2)


def test_at_most_so_many_training_rows(folder: Path) -> None:
    one, all_ = (everyone(load(folder, most=most).federation)["b"] for most in (10, 0))
    assert len(one.train) == 10
    places = [all_.train.x[:, 0].tolist().index(value) for value in one.train.x[:, 0]]
    assert (places[0], places[-1]) == (0, len(all_.train) - 1)  # spread over all of them
    assert np.ptp(np.diff(places)) <= 1
    np.testing.assert_array_equal(one.test.x, all_.test.x)


@pytest.mark.parametrize("how", ["client", "global"])
def test_what_is_constant_at_a_client_is_not_divided_by_zero(how: str) -> None:
    table = pd.concat(
        [frame(9, s).assign(who=f"c{s}", height=0.1 * s, floor=float(s)) for s in (1, 2)]
    )
    federation = standardize(load(table, client="who").federation, how)
    for client in federation.existing:
        heights = client.train.x[:, -2:]
        assert (np.ptp(heights, axis=0) == 0).all()
        np.testing.assert_allclose(np.abs(heights), 0 if how == "client" else 1, atol=1e-9)
    flat = standardize(load(table.assign(y=3.7, height=0.1), client="who").federation, how)
    assert max(np.abs(client.train.y).max() for client in flat.existing) < 1e-9


def test_a_schema_survives_writing_and_reads_new_tables(folder: Path, tmp_path: Path) -> None:
    found = load(folder)
    schema = Schema.from_json(found.schema.to_json())
    assert schema == found.schema
    rows = read_rows(folder / "b.csv", schema, targets=True)
    expected = frame(30, 2)
    assert rows.client == "b"
    np.testing.assert_array_equal(rows.x[:, 1], expected["x"])
    np.testing.assert_array_equal(rows.y, expected["y"])
    asked = frame(4, 9).drop(columns="y").assign(more="text")
    asked.to_csv(tmp_path / "ask.csv", index=False)
    bare = read_rows(tmp_path / "ask.csv", schema, targets=False)
    assert bare.y is None
    np.testing.assert_array_equal(bare.x[:, 0], asked["number"])
    refused(lambda: read_rows(tmp_path / "ask.csv", schema, targets=True), "has no column 'y'")
    gaps, dropping = asked.assign(x=[1, None, 2, 3]), replace(schema, missing="drop")
    refused(lambda: read_rows(gaps, dropping, targets=False), "row 2: column 'x' is missing")


def test_rows_of_one_client_are_chosen_from_a_table_of_many() -> None:
    whole = pd.concat([frame(9, s).assign(who=f"c{s}") for s in (1, 2)])
    schema = load(whole, client="who").schema
    rows = read_rows(whole, schema, targets=True, client="c2")
    assert (rows.client, len(rows.x), rows.x[0, 0]) == ("c2", 9, 2000)
    refused(lambda: read_rows(whole, schema, targets=True), "rows of 2 clients; .* --client")
    refused(lambda: read_rows(whole, schema, targets=True, client="c9"), "no row of client 'c9'")
    whole.iloc[13, 1] = np.nan
    gap = "row 14: column 'x' is missing"
    refused(lambda: read_rows(whole, schema, targets=True, client="c2"), gap)


def test_the_index_of_pandas_in_parquet_is_no_column(tmp_path: Path) -> None:
    frame(12, 1).drop(index=5).to_parquet(tmp_path / "a.parquet")
    frame(9, 2).to_parquet(tmp_path / "b.parquet")
    found = load(tmp_path).federation
    assert found.features == ("number", "x", *(f"colour={colour}" for colour in COLOURS), "on")
    assert sorted(rows_of(found.existing[1])) == list(range(2000, 2009))
