"""Folders, types and moments that nobody wishes for: read as meant, or refused in one sentence."""

from __future__ import annotations

import datetime as dt
import os
import tomllib
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pacpfl.cli.own import commented, propose
from pacpfl.data.settings import TableSettings
from pacpfl.data.tables import read as tables_module
from pacpfl.data.tables.files import Table, open_tables
from pacpfl.data.tables.read import Tables, load_own, load_tables
from pacpfl.errors import InputError

ROWS = 24
GOOD = "x,kind,y\n" + "".join(f"{i},{'uv'[i % 2]},{3 * i % 7}.5\n" for i in range(ROWS))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "tables"
    place.mkdir()
    for name in ("a", "b"):
        (place / f"{name}.csv").write_text(GOOD)
    return place


def refused(function: Callable[[], object], *words: str) -> None:
    with pytest.raises(InputError) as caught:
        function()
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    for word in words:
        assert word in sentence, sentence


def test_what_looks_like_a_table_and_is_none_is_named(folder: Path) -> None:
    strange = folder / "c.csv"
    for make, remove, words in (
        (lambda: strange.symlink_to("c.csv"), strange.unlink, "a link that leads nowhere"),
        (lambda: strange.symlink_to("gone.csv"), strange.unlink, "a link that leads nowhere"),
        (strange.mkdir, strange.rmdir, "is not a file"),
        (lambda: os.mkfifo(strange), strange.unlink, "is not a file"),
    ):
        make()
        refused(lambda: open_tables(folder), "c.csv", words)
        remove()
    for name in (os.fsdecode(b"c\xff.csv"), "c\nd.csv"):
        (folder / name).write_text(GOOD)
        refused(lambda: open_tables(folder), "The name of the file 'c", "rename the file")
        (folder / name).unlink()
    for name in (".hidden.csv", "~$open.csv"):
        (folder / name).write_text("junk")
    assert len(open_tables(folder)) == 2
    (folder.parent / "circle").symlink_to("circle")
    refused(lambda: open_tables(folder.parent / "circle"), "There is no file or folder")


def test_what_may_not_be_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's refusal is played: whoever may do everything is never refused."""

    def forbidden(path: Path, *_: object) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    own = TableSettings(source=str(folder), target="y")
    for name in ("iterdir", "is_file"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, name, forbidden)
            refused(lambda: open_tables(folder), "tables cannot be read (Permission denied)")
            refused(lambda: load_own(own, 0), "Permission denied")
    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", lambda path, *_: forbidden(path))
        refused(lambda: open_tables(folder), "a.csv cannot be read (Permission denied)")


def test_a_target_that_one_file_lacks_is_not_passed_over(folder: Path) -> None:
    (folder / "c.csv").write_text("x,kind\n" + "1,u\n" * 8)
    refused(lambda: propose(folder), "c.csv has no column 'y'", "--target COLUMN")
    assert propose(folder, "x").config.tables.target == "x"
    renamed = GOOD.replace("x,kind,y", "x,kind,load")
    for name in ("a", "b"):
        (folder / f"{name}.csv").write_text(renamed)
    refused(lambda: propose(folder), "c.csv has no column 'load'")
    (folder / "c.csv").write_text(GOOD.replace("x,kind,y", "X,Kind,Load"))
    refused(lambda: propose(folder), "c.csv shares no column with", "X, Kind, Load")
    (folder / "c.csv").write_text(renamed)
    refused(lambda: propose(folder, "x", "x"), "--target and --client are both 'x'")


def test_init_tells_which_files_it_does_not_read(folder: Path) -> None:
    (folder / "notes.xlsx").write_bytes(b"PK")
    found = propose(folder)
    assert "Not read, being no CSV or Parquet: notes.xlsx." in found.words[0]
    strange = found._replace(words=("Left out: two\nlines\x00.",))
    assert tomllib.loads(commented(strange))["tables"]["target"] == "y"


def table(**columns: Any) -> pd.DataFrame:
    random = np.random.default_rng(0)
    start = {"who": ["a", "b"] * (ROWS // 2), "z": random.normal(size=ROWS)}
    return pd.DataFrame(start | {"y": random.normal(size=ROWS)} | columns)


def load(source: Any, **more: Any) -> Tables:
    settings: dict[str, Any] = {"target": "y", "client": "who", **more}
    return load_tables(source, TableSettings(**settings))


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ([b"\xff\x00"] * ROWS, "bytes"),
        ([[1, 2]] * ROWS, "lists or records"),
        ([{"a": 1}] * ROWS, "lists or records"),
        ([dt.time(3)] * ROWS, "times of day"),
        ([dt.timedelta(hours=3)] * ROWS, "durations"),
        ([1 + 2j] * ROWS, "complex numbers"),
    ],
)
def test_cells_that_are_no_number_text_or_date(cells: list[Any], words: str) -> None:
    strange = table(x=cells)
    refused(lambda: load(strange), "'x' holds", words, "tables.ignore")
    refused(lambda: load(strange, target="x"), "target 'x' holds", words)
    refused(lambda: load(strange, client="x"), "'x' holds", words)
    assert load(strange, ignore=("x",)).federation.features == ("z",)


def test_dates_in_other_forms(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    days = [f"2024-01-{day + 1:02}" for day in range(ROWS)]
    for written in ("05.06.2024", "5/6/24", "05-06-2024 10:00"):
        for dates in ([written] * ROWS, [*days[:-1], written]):
            table(when=dates).to_csv(path, index=False)
            row = 1 if dates[0] == written else ROWS
            where = f"row {row}: column 'when' holds '{written}'"
            refused(lambda: load(path), where, "not written like 2024-05-31")
            refused(lambda: load(path, dates=("when",)), where)
            assert any("not all written like" in w for w in propose(path, "y", "who").words)
    table(when=days, version=["1.2.3"] * ROWS).to_csv(path, index=False)
    found = load(path, dates=("when",), cycles=("month",)).federation.features
    assert found == ("z", "when month sin", "when month cos", "version=1.2.3")
    refused(lambda: load(path, target="when"), "The target 'when' holds dates")


def test_a_target_that_never_changes_is_no_target(tmp_path: Path) -> None:
    table(y=[3.0] * ROWS).to_csv(tmp_path / "t.csv", index=False)
    refused(lambda: propose(tmp_path / "t.csv", "y", "who"), "'y' has the same value in every row")


def test_rows_that_come_or_go_while_being_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the first pass and the last one; the stamp of the files sees any other change."""
    settings = TableSettings(target="y")
    for text, words in ((GOOD + "1,u,2\n", "changed"), (GOOD[:-9], "lost rows")):
        (folder / "b.csv").write_text(GOOD)
        kinds = tables_module.column_kinds

        def later(*arguments: Any, kinds: Any = kinds, text: str = text) -> Any:
            (folder / "b.csv").write_text(text)
            return kinds(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(tables_module, "column_kinds", later)
            refused(lambda: load_tables(folder, settings), "b.csv", words)
    (folder / "b.csv").write_text(GOOD)
    chunks = Table.chunks

    def writing(self: Table, *arguments: Any) -> Any:
        yield from chunks(self, *arguments)
        if self.name == "b":
            (folder / "b.csv").write_text(GOOD.replace("0,u,0.5", "9,u,8.5", 1))
            os.utime(folder / "b.csv", ns=(0, 0))

    with monkeypatch.context() as patch:
        patch.setattr(Table, "chunks", writing)
        own = TableSettings(source=str(folder), target="y")
        refused(lambda: load_own(own, 0), "changed while it was read")


def test_polars_in_memory_and_in_parquet(tmp_path: Path) -> None:
    """The same federation as from CSV, for every type that has a meaning here."""
    polars = pytest.importorskip("polars", reason="polars is not installed")
    random = np.random.default_rng(1)
    kinds = ["u", "v", None, "w"] * (ROWS // 4)
    columns: dict[str, Any] = {
        "who": ["a", "b"] * (ROWS // 2),
        "whole": list(range(ROWS)),
        "exact": [Decimal(f"{i}.25") for i in range(ROWS)],
        "gap": [None if i == 5 else i / 8 for i in range(ROWS)],
        "on": [True, False] * (ROWS // 2),
        "kind": polars.Series(kinds, dtype=polars.Categorical),
        "when": [dt.datetime(2024, 1, 1 + i, i % 24) for i in range(ROWS)],
        "y": random.normal(size=ROWS),
    }
    frame = polars.DataFrame(columns)
    frame.write_parquet(tmp_path / "t.parquet")
    frame.write_csv(tmp_path / "t.csv")
    more: dict[str, Any] = {"missing": "impute", "dates": ("when",)}
    wanted = load(tmp_path / "t.csv", **more)
    assert "kind=v" in wanted.federation.features
    for source in (frame, tmp_path / "t.parquet", frame.to_pandas()):
        found = load(source, **more)
        assert found.schema == wanted.schema
        for one, other in zip(found.federation.existing, wanted.federation.existing, strict=True):
            np.testing.assert_array_equal(one.train.x, other.train.x)
            np.testing.assert_array_equal(one.train.y, other.train.y)
    refused(lambda: load(frame.lazy()), "A LazyFrame is no table")
