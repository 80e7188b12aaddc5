"""What people's folders look like: each fault works or ends in one sentence with file and column."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pacpfl.data.settings import TableSettings
from pacpfl.data.tables.files import open_file, open_tables
from pacpfl.data.tables.read import Tables, load_tables
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
    ("name", "text", "words"),
    [
        ("c.csv", b"", ("c.csv is empty",)),
        ("c.csv", b"\xef\xbb\xbf\n", ("c.csv is empty",)),
        ("c.csv", b"x,colour,y\n", ("c.csv has a header and no rows",)),
        ("c.csv", b"x,y\n1,2\n", ("c.csv has no column 'colour'",)),
        ("c.csv", b"x,color,y\n1,red,2\n", ("c.csv has no column 'colour'", "it has 'color'")),
        ("c.csv", b"x,colour,z,y\n1,red,5,2\n", ("c.csv has a column 'z'", "tables.ignore")),
        ("c.csv", b"x,colour,x,y\n1,red,5,2\n", ("c.csv has 2 columns called 'x'",)),
        ("c.csv", b"x,,y\n1,red,2\n", ("c.csv has no name for column 2",)),
        ("c.csv", b"x,colour,y\n1,red,2\nabc,red,3\n", ("row 2", "'x' holds 'abc'")),
        ("c.csv", b"x,colour,y\n1,red,2\n2,red,oops\n", ("row 2", "'y' holds 'oops'")),
        ("c.csv", b"x,colour,y\n1,red,2\n,red,3\n", ("row 2: column 'x' is missing",)),
        ("c.csv", b"x,colour,y\n1,red,2\nNaN,red,3\n", ("row 2: column 'x' is missing",)),
        ("c.csv", b"x,colour,y\n1,red,2\n2,red,\n", ("row 2: column 'y' is missing",)),
        ("c.csv", b"x,colour,y\n1,red,2\ninf,red,3\n", ("row 2", "'x' holds 'inf'")),
        (
            "c.csv",
            b"x,colour,y\n1,red,2,9\n2,red,3,9\n",
            ("c.csv", "more cells than its first line"),
        ),
        ("c.csv", b"x,colour,y\n1,red,2\n1,red,2\n1,red,2,9\n", ("c.csv", "line 4")),
        ("c.csv", b'x,colour,y\n1,"red,2\n', ("c.csv cannot be read",)),
        ("c.csv", b"x,colour,y\n1,r\xe9d,2\n", ("c.csv is not in UTF-8",)),
        ("c.csv", "x,colour,y\n1,red,2\n".encode("utf-16"), ("c.csv is not a text file in UTF-8",)),
        ("a.parquet", b"PAR1 no", ("a.parquet cannot be read",)),
    ],
)
def test_one_sentence_names_the_file_and_the_place(
    name: str, text: bytes, words: tuple[str, ...], folder: Path
) -> None:
    (folder / name).write_bytes(text)
    with pytest.raises(InputError) as caught:
        load(folder)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    for word in words:
        assert word in sentence


def test_two_files_of_one_client_are_refused(folder: Path) -> None:
    pd.DataFrame({"x": [1.0], "colour": ["red"], "y": [1.0]}).to_parquet(folder / "a.parquet")
    with pytest.raises(InputError, match=r"a\.csv and a\.parquet .* are both client 'a'"):
        load(folder)
    (folder / "a.parquet").unlink()
    for form in ("NFC", "NFD"):
        name = unicodedata.normalize(form, "büro")
        (folder / f"{name}.csv").write_text(GOOD)
    with pytest.raises(InputError, match="are both client 'büro'"):
        load(folder)


def test_a_client_in_two_files_of_a_folder_is_refused(folder: Path) -> None:
    for name in ("a", "b"):
        (folder / f"{name}.csv").write_text(GOOD.replace("colour", "who"))
    with pytest.raises(InputError, match=r"Client 'blue' is in .*a\.csv and in .*b\.csv"):
        load(folder, client="who")


def test_dialects_are_recognised(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for text, delimiter, decimal in (
        ("a;b\n1,5;2\n", ";", ","),
        ("a;b\n1.5;2\n", ";", "."),
        ("a\tb\n1,5\t2,5\n", "\t", ","),
        ("a|b\n1.5|2\n", "|", "."),
        ('a,b\n"1,5",2\n', ",", ","),
        (
            'a,b\n"1,500",2\n',
            ",",
            ".",
        ),  # may be thousands: stays a text, and is refused as a number
        ('"a;1",b\n"x;y",2\n', ",", "."),
    ):
        path.write_text(text)
        table = open_file(path)
        assert (table.delimiter, table.decimal) == (delimiter, decimal), text
        assert len(table.columns) == 2


def test_quoted_fields_with_delimiters_and_lines(folder: Path) -> None:
    text = GOOD.replace("red", '"red, or\nnot"')
    for name in ("a", "b"):
        (folder / f"{name}.csv").write_text(text)
    assert "colour=red, or\nnot" in load(folder).federation.features


def test_settings_that_do_not_fit_the_tables(folder: Path, tmp_path: Path) -> None:
    for more, words in (
        ({"target": "z"}, "has no column 'z'"),
        ({"target": ""}, "tables.target is empty"),
        ({"client": "who"}, "has no column 'who'"),
        ({"split": "time"}, "needs a column"),
        ({"split": "time", "split_by": "colour"}, "not a number or a date"),
        ({"split": "column", "split_by": "colour"}, "not train, later or test"),
        ({"columns": ("x", "y")}, "'y' is the target"),
        ({"dates": ("x",)}, "named in tables.dates"),
        ({"dates": ("q",)}, "'q' is in tables.categorical or dates"),
        ({"cycles": ("year",)}, "'year' is none of hour"),
        ({"new": ("c",)}, "tables.new names 'c'"),
        ({"new": ("a", "b")}, "All clients would be new"),
        ({"held_out": 0.6, "for_later": 0.5}, "leave no rows"),
        ({"task": "classes", "target": "colour", "columns": ("x",), "new_by": "y"}, "not new or"),
        ({"task": "regression", "target": "colour"}, "the target must be numbers"),
    ):
        with pytest.raises(InputError, match=words):
            load(folder, **more)
    with pytest.raises(InputError, match="is one table; name the column"):
        load(folder / "a.csv")
    with pytest.raises(InputError, match="There is no file or folder"):
        open_tables(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no tables"):
        open_tables(tmp_path / "empty")
    with pytest.raises(InputError, match="A int is no table"):
        open_tables(3)


def test_too_many_texts_are_no_categories(folder: Path) -> None:
    rows = "".join(f"{i},id-{i},{i}\n" for i in range(60))
    (folder / "c.csv").write_text("x,colour,y\n" + rows)
    with pytest.raises(InputError, match="'colour' holds more than 50 different texts"):
        load(folder)
    assert len(load(folder, ignore=("colour",)).federation.existing) == 3


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
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
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
            assert part is not None
            assert np.isfinite(part.x).all()
            assert np.isfinite(part.y).all()


@given(content=st.one_of(st.binary(max_size=80), st.text(max_size=80).map(str.encode)))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_whatever_bytes_a_file_holds_no_other_error_comes_out(content: bytes, folder: Path) -> None:
    from pacpfl.cli.own import propose

    (folder / "c.csv").write_bytes(content)
    try:
        found = propose(folder)
    except InputError as error:
        assert "\n" not in str(error)
        return
    assert found.config.tables.target
