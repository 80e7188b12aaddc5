"""Reading a run folder: what is there, what may be missing, what is the user's to mend."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from folders import make_run

from pacpfl.errors import InputError
from pacpfl.report.folder import read_run
from pacpfl.report.page import write_report


def test_a_folder_is_read_as_it_was_written(polynomial: Path) -> None:
    run = read_run(polynomial)
    with (polynomial / "clients.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(run.titles) == ["pacpfl", "vanilla", "pooled"]
    assert run.main == "pacpfl"
    assert run.groups == ["existing", "new"]
    assert len(run.clients) == len(rows) == 3 * 48
    for group in run.groups:
        expected = [row for row in rows if row["method"] == "vanilla" and row["group"] == group]
        table = run.rows("vanilla", group)
        assert run.names(group) == [row["client"] for row in expected]
        assert run.kinds(group) == [row["kind"] for row in expected]
        np.testing.assert_allclose(table["nll"], [float(row["nll"]) for row in expected])


def test_names_that_look_like_numbers_or_gaps_stay_names(tmp_path: Path) -> None:
    names = ("NA", "007", "nan", "1e3")
    run = read_run(make_run(tmp_path / "run", clients=4, names=names, methods=("pacpfl",)))
    assert run.names("existing") == list(names)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("run.json", None, "run.json"),
        ("run.json", "{", "run.json is damaged"),
        ("run.json", "[]", "run.json is damaged"),
        ("run.json", '{"methods": {}}', "run.json names no methods"),
        ("metrics.json", None, "metrics.json"),
        ("clients.csv", None, "clients.csv"),
        ("clients.csv", "", "clients.csv is damaged"),
        ("clients.csv", "method,group\n", "clients.csv has no column 'client'"),
        (
            "clients.csv",
            "method,group,client,samples,test,rsmse\nother,new,a,1,1,1\n",
            "method 'other', which run.json does not name",
        ),
        (
            "clients.csv",
            "method,group,client,samples,test,rsmse\npacpfl,new,a,1,1,much\n",
            "column 'rsmse' that is no number",
        ),
        ("arrays.safetensors", "no tensors", "arrays.safetensors is damaged"),
    ],
)
def test_what_is_broken_is_named_in_one_sentence_and_nothing_is_written(
    tmp_path: Path, name: str, content: str | None, words: str
) -> None:
    folder = make_run(tmp_path / "run", clients=3)
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content, encoding="utf-8")
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(InputError) as error:
        write_report(folder)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no run folder"):
        write_report(tmp_path / "nowhere")


def test_arrays_of_other_clients_are_refused(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", clients=4)
    small = make_run(tmp_path / "small", clients=3)
    (folder / "arrays.safetensors").write_bytes((small / "arrays.safetensors").read_bytes())
    with pytest.raises(InputError, match=r"3 clients in weights/existing but .* lists 4"):
        read_run(folder).per_client("weights", "existing")


def test_columns_that_were_not_written_are_unknown(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", clients=3, methods=("pacpfl",))
    (folder / "clients.csv").write_text(
        "method,group,client,samples,test,rsmse\npacpfl,existing,a,10,60,0.5\n", encoding="utf-8"
    )
    (folder / "config.toml").unlink()
    run = read_run(folder)
    assert run.groups == ["existing"]
    assert run.kinds("existing") == [""]
    assert run.clients[["ce", "nll", "coverage_90", "later"]].isna().all(axis=None)
    assert run.config == ""
    assert json.loads((folder / "run.json").read_text())["dataset"] == run.record["dataset"]
