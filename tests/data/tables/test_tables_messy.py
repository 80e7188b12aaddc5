"""What people's folders look like: each fault works or ends in one sentence with file and column."""

from __future__ import annotations

import datetime as dt
import os
import sys
import tomllib
import unicodedata
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusals import refused

from pacpfl.cli.tables import commented, propose
from pacpfl.data.settings import TableSettings
from pacpfl.data.tables.files import Table, open_file, open_tables
from pacpfl.data.tables.read import Tables, load_own, load_tables
from pacpfl.errors import InputError

GOOD = "x,colour,y\n" + "".join(f"{i}.5,{'red' if i % 2 else 'blue'},{2 * i}\n" for i in range(8))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "sites"
    place.mkdir()
    (place / "a.csv").write_text(GOOD)
    (place / "b.csv").write_text(GOOD)
    return place


def load(source: Any, **more: Any) -> Tables:
    return load_tables(source, TableSettings(**{"target": "y", **more}), chunk=3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "is empty"),
        (b"\xef\xbb\xbf\n", "is empty"),
        (b"x,colour,y\n", "has a header and no rows"),
        (b"x,y\n1,2\n", "has no column 'colour'"),
        (b"x,color,y\n1,red,2\n", "has no column 'colour'; .* did you mean 'color'"),
        (b"x,colour,z,y\n1,red,5,2\n", "has a column 'z'.* tables.ignore"),
        (b"x,colour,x,y\n1,red,5,2\n", "has 2 columns called 'x'"),
        (b"x,,y\n1,red,2\n", "has no name for column 2"),
        (b"x,colour,y\n1,red,2\nabc,red,3\n", "row 2: column 'x' holds 'abc'"),
        (b"x,colour,y\n1,red,2\n2,red,oops\n", "row 2: column 'y' holds 'oops'"),
        (b"x,colour,y\n1,red,2\n,red,3\n", "row 2: column 'x' is missing"),
        (b"x,colour,y\n1,red,2\nNaN,red,3\n", "row 2: column 'x' is missing"),
        (b"x,colour,y\n1,red,2\n2,red,\n", "row 2: column 'y' is missing"),
        (b"x,colour,y\n1,red,2\ninf,red,3\n", "row 2: column 'x' holds 'inf'"),
        (b"x,colour,y\n1,red,2,9\n2,red,3,9\n", "loss of data"),
        (b"x,colour,y\n1,red,2\n1,red,2\n1,red,2,9\n", "line 4"),
        (b'x,colour,y\n1,"red,2\n', "cannot be read"),
        (b"x,colour,y\n1,r\xe9d,2\n", "cannot be read .*utf-8.* save it again in UTF-8"),
        ("x,colour,y\n1,red,2\n".encode("utf-16"), "is not a text file in UTF-8"),
    ],
)
def test_one_sentence_names_the_file_and_the_place(text: bytes, words: str, folder: Path) -> None:
    (folder / "c.csv").write_bytes(text)
    refused(lambda: load(folder), r"c\.csv", words)


def test_two_files_of_one_client_are_refused(folder: Path) -> None:
    pd.DataFrame({"x": [1.0], "colour": ["red"], "y": [1.0]}).to_parquet(folder / "a.parquet")
    refused(lambda: load(folder), r"a\.csv and a\.parquet .* are both client 'a'")
    (folder / "a.parquet").unlink()
    for form in ("NFC", "NFD"):
        name = unicodedata.normalize(form, "büro")
        (folder / f"{name}.csv").write_text(GOOD)
    refused(lambda: load(folder), "are both client 'büro'")


def test_a_client_in_two_files_of_a_folder_is_refused(folder: Path) -> None:
    for name in ("a", "b"):
        (folder / f"{name}.csv").write_text(GOOD.replace("colour", "who"))
    refused(lambda: load(folder, client="who"), r"Client 'blue' is in .*a\.csv and in .*b\.csv")


@pytest.mark.parametrize(
    ("text", "delimiter", "decimal"),
    [
        ("a;b\n1,5;2\n", ";", ","),
        ("a;b\n1.5;2\n", ";", "."),
        ("a\tb\n1,5\t2,5\n", "\t", ","),
        ("a|b\n1.5|2\n", "|", "."),
        ('a,b\n"1,5",2\n', ",", ","),
        ('a,b\n"1,500",2\n', ",", "."),  # may be thousands: a text, refused as a number
        ('"a;1",b\n"x;y",2\n', ",", "."),
    ],
)
def test_dialects_are_recognised(text: str, delimiter: str, decimal: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    table = open_file(tmp_path / "t.csv")
    assert (table.delimiter, table.decimal, len(table.columns)) == (delimiter, decimal, 2)


def test_quoted_fields_with_delimiters_and_lines(folder: Path) -> None:
    text = GOOD.replace("red", '"red, or\nnot"')
    for name in ("a", "b"):
        (folder / f"{name}.csv").write_text(text)
    assert "colour=red, or\nnot" in load(folder).federation.features


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"target": "z"}, "has no column 'z'"),
        ({"target": ""}, "tables.target is empty"),
        ({"client": "who"}, "has no column 'who'"),
        ({"split": "time"}, "needs a column"),
        ({"split": "time", "split_by": "colour"}, "not a number or a date"),
        ({"split": "column", "split_by": "colour"}, "not train, later or test"),
        ({"columns": ("x", "y")}, "'y' is the target"),
        ({"dates": ("x",)}, "named in tables.dates"),
        ({"dates": ("q",)}, "'q' is in tables.categorical or dates"),
        ({"cycles": ("year",)}, "'year' is not one of hour"),
        ({"new": ("c",)}, "tables.new names 'c'"),
        ({"new": ("a", "b")}, "All clients would be new"),
        ({"held_out": 0.6, "for_later": 0.5}, "leave no rows"),
        ({"task": "classes", "target": "colour", "columns": ("x",), "new_by": "y"}, "not new or"),
        ({"task": "regression", "target": "colour"}, "the target must be numbers"),
    ],
)
def test_settings_that_do_not_fit_the_tables(
    more: dict[str, Any], words: str, folder: Path
) -> None:
    refused(lambda: load(folder, **more), words)


def test_broken_parquet_and_none_without_pyarrow(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "c.parquet").write_bytes(b"PAR1 no")
    refused(lambda: load(folder), r"c\.parquet cannot be read")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    refused(lambda: load(folder), r"c\.parquet is Parquet", r"pip install 'pacpfl\[tables\]'")


def test_what_is_no_table(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused(lambda: load(folder / "a.csv"), "is one table; name the column")
    refused(lambda: open_tables(tmp_path / "nowhere"), "There is no file or folder")
    refused(lambda: open_tables(tmp_path / "empty"), "holds no tables")
    refused(lambda: open_tables(3), "A int is no table")


def test_too_many_texts_are_no_categories(folder: Path) -> None:
    rows = "".join(f"{i},id-{i},{i}\n" for i in range(60))
    (folder / "c.csv").write_text("x,colour,y\n" + rows)
    refused(lambda: load(folder), "'colour' holds more than 50 different texts")
    assert len(load(folder, ignore=("colour",)).federation.existing) == 3


MANY = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
CELLS = st.one_of(
    st.sampled_from(
        ["1", "2.5", "-3", "1,5", "", "NA", "nan", "inf", "1e999", "red", '"', "é", ";"]
    ),
    st.text(max_size=6),
    st.floats().map(repr),
)


@given(
    rows=st.lists(st.lists(CELLS, min_size=2, max_size=4), min_size=1, max_size=8),
    delimiter=st.sampled_from([",", ";", "\t"]),
    missing=st.sampled_from(["error", "drop", "impute"]),
)
@MANY
def test_whatever_stands_in_a_file_ends_well_or_in_a_sentence(
    rows: list[list[str]], delimiter: str, missing: str, folder: Path
) -> None:
    text = "".join(delimiter.join(row) + "\n" for row in [["x", "y"], *rows])
    (folder / "b.csv").write_text(text, encoding="utf-8", errors="replace", newline="")
    (folder / "a.csv").write_text("x,y\n" + "1,2\n2,3\n3,4\n5,9\n")
    try:
        found = load(folder, missing=missing, small="leave")
    except InputError as error:
        assert "\n" not in str(error)
        return
    for client in found.federation.existing:
        for part in (client.train, client.test):
            assert np.isfinite(part.x).all() and np.isfinite(part.y).all()


@given(content=st.one_of(st.binary(max_size=80), st.text(max_size=80).map(str.encode)))
@MANY
def test_whatever_bytes_a_file_holds_no_other_error_comes_out(content: bytes, folder: Path) -> None:
    (folder / "c.csv").write_bytes(content)
    try:
        found = propose(folder)
    except InputError as error:
        assert "\n" not in str(error)
        return
    assert found.config.tables.target


# ---- folders, types and moments that nobody wishes for ----

ROWS = 24
LONG = "x,kind,y\n" + "".join(f"{i},{'uv'[i % 2]},{3 * i % 7}.5\n" for i in range(ROWS))


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    place = tmp_path / "tables"
    place.mkdir()
    for name in ("a", "b"):
        (place / f"{name}.csv").write_text(LONG)
    return place


def test_what_looks_like_a_table_and_is_none_is_named(sites: Path) -> None:
    strange = sites / "c.csv"
    for make, remove, words in (
        (lambda: strange.symlink_to("c.csv"), strange.unlink, "a link that leads nowhere"),
        (lambda: strange.symlink_to("gone.csv"), strange.unlink, "a link that leads nowhere"),
        (strange.mkdir, strange.rmdir, "is not a file"),
        (lambda: os.mkfifo(strange), strange.unlink, "is not a file"),
    ):
        make()
        refused(lambda: open_tables(sites), "c.csv", words)
        remove()
    for name in (os.fsdecode(b"c\xff.csv"), "c\nd.csv"):
        (sites / name).write_text(LONG)
        refused(lambda: open_tables(sites), "The name of the file 'c", "rename the file")
        (sites / name).unlink()
    for name in (".hidden.csv", "~$open.csv"):
        (sites / name).write_text("junk")
    assert len(open_tables(sites)) == 2
    (sites.parent / "circle").symlink_to("circle")
    refused(lambda: open_tables(sites.parent / "circle"), "There is no file or folder")


def test_what_may_not_be_read_is_named(sites: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's refusal is played: whoever may do everything is never refused."""

    def forbidden(path: Path, *_: object) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    own = TableSettings(source=str(sites), target="y")
    for name in ("iterdir", "is_file"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, name, forbidden)
            refused(lambda: open_tables(sites), r"tables cannot be read \(Permission denied\)")
            refused(lambda: load_own(own, 0), "Permission denied")
    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", lambda path, *_: forbidden(path))
        refused(lambda: open_tables(sites), r"a\.csv cannot be read \(Permission denied\)")


def test_a_target_that_one_file_lacks_is_not_passed_over(sites: Path) -> None:
    (sites / "c.csv").write_text("x,kind\n" + "1,u\n" * 8)
    refused(lambda: propose(sites), "c.csv has no column 'y'", "--target COLUMN")
    assert propose(sites, "x").config.tables.target == "x"
    renamed = LONG.replace("x,kind,y", "x,kind,load")
    for name in ("a", "b"):
        (sites / f"{name}.csv").write_text(renamed)
    refused(lambda: propose(sites), "c.csv has no column 'load'")
    (sites / "c.csv").write_text(LONG.replace("x,kind,y", "X,Kind,Load"))
    refused(lambda: propose(sites), "No column is in every file: .*c.csv has X, Kind, Load")
    (sites / "c.csv").write_text(renamed)
    refused(lambda: propose(sites, "x", "x"), "--target and --client are both 'x'")


def test_init_tells_which_files_it_does_not_read(sites: Path) -> None:
    (sites / "notes.xlsx").write_bytes(b"PK")
    found = propose(sites)
    assert "Not read, being no CSV or Parquet: notes.xlsx." in found.words[0]
    strange = found._replace(words=("Left out: two\nlines\x00.",))
    assert tomllib.loads(commented(strange))["tables"]["target"] == "y"


def table(**columns: Any) -> pd.DataFrame:
    random = np.random.default_rng(0)
    start = {"who": ["a", "b"] * (ROWS // 2), "z": random.normal(size=ROWS)}
    return pd.DataFrame(start | {"y": random.normal(size=ROWS)} | columns)


def load_frame(source: Any, **more: Any) -> Tables:
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
    refused(lambda: load_frame(strange), "'x' holds", words, "tables.ignore")
    refused(lambda: load_frame(strange, target="x"), "target 'x' holds", words)
    refused(lambda: load_frame(strange, client="x"), "'x' holds", words)
    assert load_frame(strange, ignore=("x",)).federation.features == ("z",)


def test_dates_in_other_forms(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    days = [f"2024-01-{day + 1:02}" for day in range(ROWS)]
    for written in ("05.06.2024", "5/6/24", "05-06-2024 10:00"):
        for dates in ([written] * ROWS, [*days[:-1], written]):
            table(when=dates).to_csv(path, index=False)
            row = 1 if dates[0] == written else ROWS
            where = f"row {row}: column 'when' holds '{written}'"
            refused(lambda: load_frame(path), where, "not written like 2024-05-31")
            refused(lambda: load_frame(path, dates=("when",)), where)
            assert any("not all written like" in w for w in propose(path, "y", "who").words)
    table(when=days, version=["1.2.3"] * ROWS).to_csv(path, index=False)
    found = load_frame(path, dates=("when",), cycles=("month",)).federation.features
    assert found == ("z", "when month sin", "when month cos", "version=1.2.3")
    refused(lambda: load_frame(path, target="when"), "The target 'when' holds dates")


def test_a_target_that_never_changes_is_no_target(tmp_path: Path) -> None:
    table(y=[3.0] * ROWS).to_csv(tmp_path / "t.csv", index=False)
    refused(lambda: propose(tmp_path / "t.csv", "y", "who"), "'y' has the same value in every row")


@pytest.mark.parametrize(
    "text", [LONG + "1,u,2\n", LONG[:-9], LONG.replace("0,u,0.5", "9,u,8.5", 1)]
)
def test_rows_that_come_go_or_change_while_being_read(
    text: str, sites: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = Table.chunks

    def writing(self: Table, *arguments: Any) -> Any:
        yield from chunks(self, *arguments)
        if self.name == "b":
            (sites / "b.csv").write_text(text)
            os.utime(sites / "b.csv", ns=(0, 0))

    monkeypatch.setattr(Table, "chunks", writing)
    own = TableSettings(source=str(sites), target="y")
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
    wanted = load_frame(tmp_path / "t.csv", **more)
    assert "kind=v" in wanted.federation.features
    for source in (frame, tmp_path / "t.parquet", frame.to_pandas()):
        found = load_frame(source, **more)
        assert found.schema == wanted.schema
        for one, other in zip(found.federation.existing, wanted.federation.existing, strict=True):
            np.testing.assert_array_equal(one.train.x, other.train.x)
            np.testing.assert_array_equal(one.train.y, other.train.y)
    refused(lambda: load_frame(frame.lazy()), "A LazyFrame is no table")
