"""Own tables from the command line: four commands from a folder of files to calibrated predictions."""

from __future__ import annotations

import re
import shutil
import signal
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from commands import Ended, assert_one_sentence, called, several
from safetensors.numpy import load_file

# A process is killed as soon as training has saved something: nothing can be tidied up then.
KILLED = """
import os, signal
replace = os.replace
def once(source, target):
    replace(source, target)
    if str(target).endswith("checkpoint.safetensors"):
        os.kill(os.getpid(), signal.SIGKILL)
os.replace = once
"""


def in_folder(folder: Path, *commands: list[str], before: str = "") -> Ended:
    """Figures are drawn once, by compare: fit and compare end in the same lines of code."""
    told = [(folder, words[0] == "compare", words) for words in commands]
    return several(told, before)


def site(random: np.random.Generator, rows: int) -> pd.DataFrame:
    """A line of its own at every site, around one that all share, and noise of 10 kW."""
    slope, wind_slope, level = random.normal([3, -2, 0], [0.5, 0.5, 0.7])
    temperature, wind = random.uniform(0, 30, rows), random.uniform(0, 9, rows)
    day = random.choice(["work", "rest"], rows)
    signal = slope * (temperature - 15) / 9 + wind_slope * (wind - 4) / 3 + level + (day == "work")
    load = 100 + 20 * (signal + random.normal(0, 0.5, rows))
    table = {"temperature": temperature, "wind": wind, "day": day, "load_kw": load}
    return pd.DataFrame(table).round(3)


class Done(NamedTuple):
    folder: Path
    held_out: pd.DataFrame
    killed: Ended
    saved: list[str]  # what the killed process left in its run folder
    ended: Ended


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """init, fit, personalize, predict: on 30 files; the race is between what one mean leaves open.

    The files say which 20 rows train, so that 40 others of each site can measure the coverage. One of
    the two baselines is left out to save time. The first fit is killed, the second goes on from there,
    and compare is a third one that nobody disturbs, but for the race, whose choice it is given. Further
    commands follow in the same process.
    """
    folder = tmp_path_factory.mktemp("own")
    random = np.random.default_rng(3)
    (folder / "sites").mkdir()
    for number in range(30):
        rows = site(random, 60).assign(part=["train"] * 20 + ["test"] * 40)
        rows.to_csv(folder / "sites" / f"site {number}.csv", index=False)
    joined = site(random, 1040)
    joined[:40].to_csv(folder / "new.csv", index=False, sep=";", decimal=",")
    joined[40:].drop(columns="load_kw").to_csv(folder / "ask.csv", index=False)
    joined[40:90].to_csv(folder / "more.csv", index=False)
    joined[90:].to_parquet(folder / "rest.parquet")
    model = ["--model", "m.safetensors", "--data"]
    fit = ["fit", "--set", 'methods=["pacpfl", "ridge"]', "--set", "checkpoint_rounds=100"]
    fit += ["--set", "prior.mean=linear", "--set", "prior.noise_model=constant"]
    killed = in_folder(folder, ["init", "sites"], fit, before=KILLED)
    saved = sorted(path.name for path in (folder / "runs" / "sites").iterdir())
    compared = folder / "runs" / "sites-compare"
    compared.mkdir()
    shutil.copy(folder / "runs" / "sites" / "race.json", compared)
    ended = in_folder(
        folder,
        fit,
        ["compare", "--methods", "pacpfl,ridge", *fit[1:]],
        ["personalize", "--run", "runs/sites", "--data", "new.csv", "--out", "m.safetensors"],
        ["predict", "--model", "m.safetensors", "--data", "ask.csv", "--out", "predictions.csv"],
        ["update", *model, "more.csv", "--out", "larger.safetensors"],
        ["evaluate", *model, "rest.parquet"],
        ["evaluate", "--model", "larger.safetensors", "--data", "rest.parquet"],
        ["predict", *model, "rest.parquet", "--out", "p.parquet", "--quantiles", "0.25"],
        ["predict", "--run", "runs/sites", "--data", "sites", "--out", "every.csv"],
        ["check"],
    )
    return Done(folder, joined[40:], killed, saved, ended)


def test_four_commands_give_calibrated_predictions_in_the_owners_units(done: Done) -> None:
    assert done.ended.code == 0, done.ended
    found = pd.read_csv(done.folder / "predictions.csv")
    assert list(found.columns) == ["row", "mean", "std", "q0.05", "q0.5", "q0.95", "outside"]
    truth = done.held_out["load_kw"].to_numpy()
    assert np.sqrt(np.mean((found["mean"] - truth) ** 2)) < 12  # 10 is the noise alone
    covered = np.mean((found["q0.05"] <= truth) & (truth <= found["q0.95"]))
    assert 0.85 <= covered <= 0.95
    assert (found["q0.05"] < found["q0.5"]).all()
    assert found["std"].between(8, 16).all()
    clients = pd.read_csv(done.folder / "runs" / "sites" / "clients.csv")
    ours = clients[clients["method"] == "pacpfl"]
    assert len(ours) == 30
    assert 0.85 <= ours["coverage_90"].mean() <= 0.95


def test_init_tells_what_it_guessed(done: Done) -> None:
    for words in (
        *("30 tables", "'load_kw': it is the last column", "regression", "temperature, wind, day"),
        *("30 clients with 60 to 60 rows", "scaled together", "tau", "Training takes about"),
    ):
        assert words in done.killed.output
    text = (done.folder / "pacpfl.toml").read_text()
    assert tomllib.loads(text)["tables"]["target"] == "load_kw"
    assert all("#" in line for line in text.splitlines() if " = " in line)


def test_the_run_folder_has_units_and_what_new_clients_need(done: Done) -> None:
    run = done.folder / "runs" / "sites"
    units = pd.read_csv(run / "units.csv")
    clients = pd.read_csv(run / "clients.csv")
    both = units.merge(clients, on=["method", "group", "client"], suffixes=("", "_scaled"))
    assert len(both) == 2 * 30
    ratio = both["width_90"] / both["width_90_scaled"]
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-6)  # one scale for all
    best = units[units["method"] == "pacpfl"]["rmse"].mean()
    assert 8 < best < 14
    assert f" {best:.1f} ±" in done.ended.output
    assert b"site 7" not in (run / "prior.safetensors").read_bytes()
    assert str(done.folder).encode() not in (run / "prior.safetensors").read_bytes()


def test_fit_leaves_the_models_that_it_has_measured(done: Done) -> None:
    run = done.folder / "runs" / "sites"
    assert (run / "models.safetensors").stat().st_mode & 0o777 == 0o600
    assert "1800 predictions of load_kw for 30 clients: every.csv" in done.ended.output
    units = pd.read_csv(run / "units.csv").query("method == 'pacpfl'").set_index("client")["rmse"]
    found = pd.read_csv(done.folder / "every.csv")
    for name, own in found.groupby("client"):
        rows = pd.read_csv(done.folder / "sites" / f"{name}.csv")
        assert list(own["row"]) == list(range(1, 61))
        error = (own["mean"].to_numpy() - rows["load_kw"])[rows["part"] == "test"]
        assert np.sqrt(np.mean(error**2)) == pytest.approx(units[name], rel=1e-3)


def test_a_killed_fit_goes_on_to_the_same_particles(done: Done) -> None:
    assert done.killed.code == -signal.SIGKILL
    assert "checkpoint.safetensors" in done.saved
    assert "run.json" not in done.saved
    places = (done.folder / "runs" / name for name in ("sites", "sites-compare"))
    resumed, whole = (load_file(run / "prior.safetensors")["particles"] for run in places)
    np.testing.assert_array_equal(resumed, whole)
    assert resumed.std() > 0


def test_compare_gives_one_table_and_one_figure(done: Done) -> None:
    run = done.folder / "runs" / "sites-compare"
    said = done.ended.output
    figure = Path(said.split("Figure: ")[1].splitlines()[0])
    assert figure == Path("runs/sites-compare/figures/boxes.png")
    assert (done.folder / figure).read_bytes().startswith(b"\x89PNG")
    assert (run / "report.html").stat().st_size > 10_000
    units = pd.read_csv(run / "units.csv")
    means = units.groupby("method")["rmse"].mean()
    assert list(means.index) == ["pacpfl", "ridge"]
    assert means["pacpfl"] < means["ridge"]  # 20 rows, and lines that have much in common
    table = said.split("In the units of load_kw")[2].split("Report:")[0]
    truth = [pd.read_csv(path) for path in (done.folder / "sites").glob("*.csv")]
    every = pd.concat(truth).query("part == 'test'")["load_kw"]
    loads = [(t["load_kw"][t["part"] == "test"], t["load_kw"][t["part"] == "train"]) for t in truth]
    own_mean = sum(np.sum((test - train.mean()) ** 2) for test, train in loads)
    for method, title in (("pacpfl", "PAC-PFL"), ("ridge", "Ridge per client")):
        line = next(line for line in table.splitlines() if line.startswith(title))
        assert f" {means[method]:.1f} ±" in line
        # 40 rows at each of 30 sites: pooled, as one would by hand
        squares = 40 * np.sum(units[units["method"] == method]["rmse"] ** 2)
        assert f" {np.sqrt(squares / 1200) / every.std(ddof=0):.3f} " in line
        assert f" {100 * (1 - squares / own_mean):.0f}% " in f"{line} "
    assert "RSMSE  " not in said  # of one client with the spread of its own test rows, that is


def test_update_evaluate_parquet_and_quantiles(done: Done) -> None:
    ended = done.ended
    assert "Model of new from 90 rows: larger.safetensors" in ended.output
    assert len(re.findall("(?m)^rmse ", ended.output)) == 2
    assert ended.output.count("new, 950 rows") == 2
    assert "All is well" in ended.output
    found = pd.read_parquet(done.folder / "p.parquet")
    assert list(found.columns) == ["row", "mean", "std", "q0.25", "outside"]
    assert len(found) == 950


def test_faults_of_models_and_tables_end_in_one_sentence(done: Done, tmp_path: Path) -> None:
    good, broken = done.folder / "m.safetensors", tmp_path / "broken.safetensors"
    broken.write_bytes(good.read_bytes()[:-9])
    table = tmp_path / "t.csv"
    out = str(tmp_path / "o.csv")
    faults: list[tuple[str, Path, tuple[str, ...]]] = [
        ("temperature,wind\n1,2\n", good, ("t.csv has no column 'day'",)),
        ("temperature,wind,day\n1,2,work\nx,2,work\n", good, ("row 2", "'temperature'", "'x'")),
        ("temperature,wind,day\n1,2,work\n1,,work\n", good, ("row 2: column 'wind' is missing",)),
        ("temperature,wind,day\n1,inf,work\n", good, ("row 1", "'inf'")),
        ("temperature,wind,day\n", good, ("no rows",)),
        ("", good, ("t.csv is empty",)),
        ("temperature,wind,day\n1,2,work\n", broken, ("broken.safetensors is damaged",)),
        ("temperature,wind,day\n1,2,work\n", tmp_path / "no", ("There is no file",)),
    ]
    for text, model, words in faults:
        table.write_text(text)
        ended = called("predict", "--model", str(model), "--data", str(table), "--out", out)
        assert_one_sentence(ended, *words)
    table.write_text("temperature,wind,day\n1,2,work\n")
    arguments = ("predict", "--model", str(good), "--data", str(table))
    assert_one_sentence(called(*arguments, "--out", "x.xlsx"), ".csv or .parquet")
    ended = called(*arguments, "--out", out, "--quantiles", "5")
    assert_one_sentence(ended, "--quantiles 5")
    ended = called("update", "--model", str(good), "--data", str(table))
    assert_one_sentence(ended, "no column 'load_kw'")
    arguments = ("personalize", "--data", str(table), "--out", out, "--run")
    assert_one_sentence(called(*arguments, str(tmp_path)), "config.toml")


@pytest.fixture
def tables(tmp_path: Path) -> Callable[..., Path]:
    def write(**files: str) -> Path:
        folder = tmp_path / "tables"
        folder.mkdir(exist_ok=True)
        for name, text in files.items():
            (folder / f"{name}.csv").write_text(text)
        return folder

    return write


ROWS = "".join(f"{i},{i % 3}.5,{'u' if i % 2 else 'v'},{3 * i}\n" for i in range(12))


def test_init_guesses_and_says_why(tables: Callable[..., Path], tmp_path: Path) -> None:
    european = ROWS.replace(",", ";").replace(".5", ",5")
    folder = tables(
        a="id,x,kind,price,note\n" + ROWS.replace("\n", ",n\n"),
        b="id;x;kind;price;extra\n" + european.replace("\n", ";1\n"),
        tiny="id,x,kind,price\n1,2,u,3\n",
    )
    out = tmp_path / "own.toml"
    ended = called("init", str(folder), "--out", str(out))
    assert ended.code == 0, ended
    for words in (
        *("decimal commas in b.csv", "Not in every file, so not used: extra, note"),
        *("'price': it is called so", "fewer than 4 rows: tiny", f"pacpfl fit {out}"),
    ):
        assert words in ended.output
    found = tomllib.loads(out.read_text())["tables"]
    assert found["small"] == "leave"
    assert found["columns"] == ["id", "x", "kind"]
    there, again = ("--out", str(out)), ("--out", str(out), "--force")
    assert_one_sentence(called("init", str(folder), *there), "--force")
    ended = called("init", str(folder), "--target", "cost", *again)
    assert_one_sentence(ended, "--target 'cost' is no column", "price")
    one = ("init", str(folder / "a.csv"), *again)
    assert "Column 'kind' names the client: 2 values with 6 to 6 rows." in called(*one).output
    (folder / "a.csv").write_text("id,x,price\n" + "".join(f"{i},{i}.5,{i}\n" for i in range(12)))
    assert_one_sentence(called(*one), "--client COLUMN", "id, x, price")


def test_init_finds_missing_cells_dates_splits_and_levels(tables, tmp_path):
    def text(level: int) -> str:
        part = ["train"] * 9 + ["test"] * 3
        x = [*range(3), "", *range(4, 12)]
        rows = [f"2024-01-{i + 1:02},{x[i]},same,{part[i]},{level + i % 4}\n" for i in range(12)]
        return "when,x,flat,part,y\n" + "".join(rows)

    folder = tables(a=text(0), b=text(1000))
    out = tmp_path / "own.toml"
    ended = called("init", str(folder), "--out", str(out))
    assert ended.code == 0, ended
    for words in (
        *("18 training rows in all, 9 at the median", "Missing cells ('x' 2)"),
        *(
            "'part' says which rows train",
            "'when', it holds dates",
            "'flat', it has the same value",
        ),
        *("100% of the target's variance", "each is scaled by its own"),
    ):
        assert words in ended.output
    found = tomllib.loads(out.read_text())
    assert found["data"]["standardize"] == "client"
    assert (found["tables"]["missing"], found["tables"]["split"]) == ("impute", "column")
    ended = called("check", str(out))
    assert ended.code == 0, ended
    said = ("2 existing and 0 new", "1 number", "Missing cells: 'x' 2.", "6 rows only measure")
    for words in said:
        assert words in ended.output


def test_init_splits_by_dates_where_there_are_some(tables, tmp_path):
    rows = [f"2024-01-{day:02},{day},{2 * day}\n" for day in range(1, 9)]
    text, out = "when,x,y\n" + "".join(rows), tmp_path / "own.toml"
    folder = tables(a=text, b=text)
    ended = called("init", str(folder), "--out", str(out))
    assert "'when' orders the rows: each client's last ones measure" in ended.output
    found = tomllib.loads(out.read_text())["tables"]
    assert (found["split"], found["split_by"]) == ("time", "when")
    tables(a="when,x,y\n,1,2\n" + "".join(rows))  # a day is missing
    assert called("init", str(folder), "--out", str(out), "--force").code == 0
    assert tomllib.loads(out.read_text())["tables"]["split"] == "rows"


def test_check_stops_before_a_long_run_would(tables, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in ("check", "fit", "compare"):
        assert_one_sentence(called(command), "There is no pacpfl.toml here", "pacpfl init")
    folder = tables(a="x,y\n" + "1,2\n" * 6, b="x,y\n1,2\n2,oops\n")
    assert_one_sentence(called("check", str(folder)), "b.csv, row 2", "'oops'")
    folder = tables(b="x,y\n" + "1,3\n" * 6)
    own = f"[data]\nname = 'tables'\n[tables]\nsource = '{folder}'\ntarget = 'y'\n"
    for command, text, *words in (
        ("fit", '[data]\nname = "polynomial"\n', "p.toml is about polynomial"),
        ("fit", '[data]\nname = "tables"\n', "pacpfl init FOLDER"),
        ("check", f"{own}[train]\nclients_per_round = 3\n", "clients_per_round = 3", "2 clients"),
    ):
        (tmp_path / "p.toml").write_text(text)
        assert_one_sentence(called(command, "p.toml"), *words)
