"""The page of a study and its README: every number of the table, each figure, and nothing else."""

from __future__ import annotations

import csv
import math
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import cbook
from matplotlib.axes import Axes

from pacpfl import files
from pacpfl.errors import InputError
from pacpfl.report import style
from reproduction import figures
from reproduction.figures import box, far_limit, planned
from reproduction.page import of_dataset, plain, write_page
from reproduction.study import Dataset, Outcome, Quick, Row, Study, read_study
from reproduction.table import COLUMNS, Table
from tests.report.reading import read_page

ROWS = {"k1": "PAC-PFL (k = 1)", "pacpfl": "PAC-PFL (k = 4)", "fedavg": "FedAvg"}
MEASURES = ("rsmse", "nll", "coverage_90", "coverage_50", "diversity", "warmth")
SHOWN = ("rsmse", "nll", "coverage_90", "diversity", "warmth")
NASTY = "<script>alert(1)</script> | *a* `b` $x_1$ &amp; 東京"
STUDY = Study(
    "toy", "What k buys",
    {"polynomial": Dataset("Polynomial", ()), "solar": Dataset("Solar", ())},
    {name: Row(title, name) for name, title in ROWS.items()},
    Quick(),
    [{"kind": "text", "text": "More particles help."}],
    panels=[
        {"kind": "sweep", "title": "Particles", "dataset": "polynomial", "x_label": "particles k",
         "points": [[1, "k1"], [4, "pacpfl"]], "metrics": ["rsmse", "diversity"],
         "caption": "More is better."},
        {"kind": "methods", "title": "Against others", "dataset": "solar",
         "rows": ["pacpfl", "fedavg"], "metrics": ["rsmse"], "caption": "Left is better."},
        {"kind": "boxes", "title": "{title}: clients", "dataset": "solar",
         "metrics": ["rsmse", "nll"], "caption": "Boxes."},
    ],
    overview=["rsmse"],
    published={"columns": [["polynomial", "solar"]], "new": {"pacpfl": {"rsmse": [[0.5, 0.05]]}}},
)  # fmt: skip


def outcomes(seeds: int = 5) -> list[Outcome]:
    """Numbers of every size and sign; diversity only where there are particles."""
    random, found = np.random.default_rng(3), []
    for seed in range(seeds):
        for dataset in STUDY.datasets:
            for row in ROWS:
                groups = {
                    group: {
                        measure: float(random.normal() if measure in ("nll", "warmth") else
                                       random.uniform(0, 1))
                        for measure in MEASURES
                        if measure != "diversity" or row == "pacpfl"
                    }
                    for group in ("existing", "new")
                }  # fmt: skip
                clients = {g: {m: [v, v + 0.1] for m, v in d.items()} for g, d in groups.items()}
                found.append(Outcome(dataset, row, seed, 12.34, groups, clients))
    return found


def changed(every: list[Outcome], change: Callable[[Outcome, dict[str, float]], None]) -> Table:
    """The table after a change to the values of every outcome and group."""
    for outcome in every:
        for values in outcome.groups.values():
            change(outcome, values)  # type: ignore[arg-type]
    return Table(STUDY, every, range(5))


TABLE = Table(STUDY, outcomes(), range(5))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    return write_page(folder, TABLE, "python -m reproduction toy", ["Seeds were not looked at."])


def written(dataset: str, group: str, row: str, measure: str) -> str:
    """How mean and interval must read, from the outcomes themselves."""
    values = [
        outcome.groups[group][measure]
        for outcome in TABLE.outcomes
        if (outcome.dataset, outcome.name) == (dataset, row) and measure in outcome.groups[group]
    ]
    if not values:
        return "\N{EN DASH}"
    # Student's t with four degrees of freedom.
    half = 2.776445 * np.std(values, ddof=1) / math.sqrt(5)
    return f"{np.mean(values):.3f} ± {half:.3f}".replace("-", "\N{MINUS SIGN}")


def winner(dataset: str, group: str, measure: str) -> str | None:
    ideal = 0.9 if measure == "coverage_90" else None
    if measure in ("diversity", "warmth"):
        return None
    means = {row: TABLE.get(dataset, group, row, measure).mean for row in ROWS}
    return min(means, key=lambda row: means[row] if ideal is None else abs(means[row] - ideal))


@pytest.mark.parametrize("dataset", STUDY.datasets)
def test_the_tables_of_page_and_readme_hold_the_numbers(page: Path, dataset: str) -> None:
    shown = read_page(page).one("table", **{"data-dataset": dataset})
    heads = [head.children[0] for head in shown.one("thead").all("th")]
    assert heads == ["Method", "RSMSE", "NLL", "90% coverage", "Diversity", "warmth", "Seconds"]
    readme = (page.parent / "README.md").read_text(encoding="utf-8")
    section = readme.split(f"## {STUDY.datasets[dataset].title}\n")[1].split("\n#")[0]
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("|")
    ][2:]
    for body, group in zip(shown.all("tbody"), ("existing", "new"), strict=True):
        for line, row in zip(body.all("tr")[1:], ROWS, strict=True):
            assert line.one("th").text == ROWS[row]
            there, markdown = [], [group, ROWS[row]]
            for measure in SHOWN:
                value = written(dataset, group, row, measure)
                best = winner(dataset, group, measure) == row
                paper = (measure, group, row) == ("rsmse", "new", "pacpfl")
                there.append(("★ best " if best else "") + value
                             + (" in the paper (0.50 ± 0.05)" if paper else ""))  # fmt: skip
                value = f"**{value}**" if best else value
                markdown.append(f"{value} (0.50 ± 0.05)" if paper else value)
            assert [cell.text for cell in line.all("td")] == [*there, "12.3"]
            assert lines.pop(0) == [*markdown, "12.3"]


def test_table_csv_has_every_number_to_six_digits(page: Path) -> None:
    with (page.parent / "table.csv").open(newline="") as file:
        rows = {tuple(row[c] for c in COLUMNS[:4]): row for row in csv.DictReader(file)}
    assert len(rows) == len(TABLE.entries)
    for place, row in rows.items():
        entry = TABLE.entries[place]
        assert float(row["mean"]) == pytest.approx(entry.mean, rel=1e-5)
        assert float(row["ci95"]) == pytest.approx(entry.ci95, rel=1e-5)
        assert row["seeds"] == "5" and row["seconds"] == "12.34"
        paper = (place[1], place[2], place[3]) == ("new", "pacpfl", "rsmse")
        assert (row["paper_mean"], row["paper_ci95"]) == (("0.5", "0.05") if paper else ("", ""))


def test_the_overview_has_every_row_on_every_data_set(page: Path) -> None:
    shown = read_page(page).one("table", **{"data-overview": "rsmse"})
    heads = [head.children[0] for head in shown.one("thead").all("th")]
    assert heads == ["Method", "Polynomial", "Solar", "Seconds"]
    lines = shown.all("tbody")[1].all("tr")[1:]
    assert [line.one("th").text for line in lines] == list(ROWS.values())
    for line, row in zip(lines, ROWS, strict=True):
        for cell, dataset in zip(line.all("td"), STUDY.datasets, strict=False):
            assert written(dataset, "new", row, "rsmse") in cell.text


def test_the_readme_says_what_was_run_and_has_two_figures(page: Path) -> None:
    text = (page.parent / "README.md").read_text(encoding="utf-8")
    assert text.startswith("# What k buys\n\nMore particles help.\n\n```sh\npython -m reproduction")
    for words in ("\n- Date: 20", "\n- Machine: ", "\n- Seeds: 0, 1, 2, 3, 4\n", "\n- Versions: "):
        assert words in text
    assert text.endswith("## Notes\n\n- Seeds were not looked at.\n")
    images = re.findall(r"!\[(.+)\]\((\S+)\)\n\n(.+)\n", text)
    assert [(image, caption) for _, image, caption in images] == [
        ("sweep_1.svg", "More is better."), ("methods_2.svg", "Left is better."),
    ]  # fmt: skip
    for _, image, _ in images:
        ElementTree.fromstring((page.parent / image).read_text(encoding="utf-8"))
    assert f"4: {written('polynomial', 'existing', 'pacpfl', 'rsmse')}" in images[0][0]
    for name in ("sweep_1", "methods_2", "boxes_3"):
        assert (page.parent / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_tells_everything_and_needs_nothing(page: Path) -> None:
    content, text = read_page(page), page.read_text(encoding="utf-8")
    assert content.one("h1").text == "What k buys"
    assert content.one("p", id="summary").text == "More particles help."
    assert content.one("section", id="notes").one("li").text == "Seeds were not looked at."
    assert content.one("section", id="details").one("pre").text == "python -m reproduction toy"
    for figure, caption in (("sweep_1", "More is better."), ("boxes_3", "Boxes.")):
        shown = content.one("figure", id=f"figure-{figure}")
        assert shown.one("figcaption").text == caption
        assert "currentColor" in str(shown.one("svg"))
    assert not content.all("script") and not re.search(r"https?:|//[a-z]|@import", text)
    ids = Counter(e.attributes["id"] for e in content.all() if "id" in e.attributes)
    assert set(ids.values()) == {1}
    for element in content.all():
        target = element.attributes.get("href", "#main")
        assert target == "data:," or target[1:] in ids
        assert element.attributes.get("aria-labelledby", "main") in ids


def test_whatever_is_written_stays_text(tmp_path: Path) -> None:
    study = replace(
        STUDY, title=NASTY, summary=[{"kind": "text", "text": NASTY}],
        datasets={name: Dataset(NASTY, ()) for name in STUDY.datasets},
        rows={name: Row(NASTY, name) for name in ROWS},
        panels=[{**panel, "title": NASTY, "caption": NASTY} for panel in STUDY.panels],
    )  # fmt: skip
    table = Table(study, outcomes(), range(5))
    written = write_page(tmp_path, table, "```\n" + NASTY, [NASTY, "- no list", "1. no number"])
    content = read_page(written)
    assert not content.all("script")
    shown = [content.one("h1"), content.one("p", id="summary"), content.all("figcaption")[0],
             content.one("section", id="notes").all("li")[0],
             content.all("tbody")[0].all("tr")[1].one("th")]  # fmt: skip
    assert [element.text for element in shown] == [NASTY] * 5
    readme = (tmp_path / "README.md").read_text(encoding="utf-8")
    fenced = "````sh\n```\n" + NASTY + "\n````\n"
    assert "<script>" not in readme.replace(fenced, "").replace("\\<", "")
    assert readme.endswith("\n- \\- no list\n- 1\\. no number\n")


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a|b", "a\\|b"), ("<b>", "\\<b\\>"), ("# a", "\\# a"), ("- a", "\\- a"), ("1. a", "1\\. a"),
     ("a\nb", "a b"), ("1.5 and 2", "1.5 and 2")],
)  # fmt: skip
def test_markdown_is_escaped(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_fewer_seeds_than_planned_are_told(tmp_path: Path) -> None:
    some = [o for o in outcomes() if o.name != "fedavg" or o.seed < 3]
    page = write_page(tmp_path, Table(STUDY, some, range(5)), "x", [])
    shown = read_page(page).one("table", **{"data-dataset": "solar"})
    names = {row.one("th").text for row in shown.all("tr") if row.all("td")}
    assert names == {*list(ROWS.values())[:2], "FedAvg (3 of 5 seeds)"}


def test_a_study_of_existing_clients_only(tmp_path: Path) -> None:
    some = [o._replace(groups={"existing": o.groups["existing"]}) for o in outcomes()]
    content = read_page(write_page(tmp_path, Table(STUDY, some, range(5)), "x", []))
    assert "New clients" not in content.text and "new clients" not in content.text
    assert {len(table.all("tbody")) for table in content.all("table")} == {1}


def test_a_page_is_replaced_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "report.html").write_text("the old page")
    replaced = files.os.replace

    def full_disk(source: Any, target: Any) -> None:
        if Path(target).name == "report.html":
            raise OSError(28, "No space left on device")
        replaced(source, target)

    monkeypatch.setattr(files.os, "replace", full_disk)
    with pytest.raises(InputError, match="No space left on device"):
        write_page(tmp_path, TABLE, "x", [])
    assert (tmp_path / "report.html").read_text() == "the old page"


# ---------------------------------------------------------------------------------------- figures


@pytest.fixture
def drawn_in_style() -> Iterator[None]:
    with style.drawing():
        yield


def bars(axes: Axes) -> dict[str, tuple[np.ndarray, list[np.ndarray]]]:
    """Group -> points [n, 2] and ends of each interval [2, 2] as they are drawn."""
    return {
        str(bar.get_label()): (
            np.asarray(bar.lines[0].get_xydata()), bar.lines[2][0].get_segments()
        )
        for bar in axes.containers
    }  # fmt: skip


@pytest.mark.parametrize("error", ["interval", "std"])
def test_a_sweep_shows_both_measures_with_their_error_bars(drawn_in_style, error) -> None:
    panel = replace(next(planned(TABLE)), bars=error)
    upper, lower = figures.sweep(TABLE, panel).axes
    assert [label.get_text() for label in lower.get_xticklabels()] == ["1", "4"]
    assert lower.get_xlabel() == "particles k"
    assert upper.get_ylabel() == "RSMSE\n(lower is better)"
    for group in ("existing", "new"):
        points, ends = bars(upper)[group]
        for place, row in enumerate(("k1", "pacpfl")):
            entry = TABLE.get("polynomial", group, row, "rsmse")
            values = [o.groups[group]["rsmse"] for o in TABLE.outcomes
                      if (o.dataset, o.name) == ("polynomial", row)]  # fmt: skip
            half = entry.ci95 if error == "interval" else np.std(values, ddof=1)
            assert points[place][1] == entry.mean and abs(points[place][0] - place) < 0.1
            np.testing.assert_allclose(ends[place][:, 1], [entry.mean - half, entry.mean + half])
        diversity = bars(lower)[group][0][:, 1]
        wanted = TABLE.get("polynomial", group, "pacpfl", "diversity").mean
        np.testing.assert_allclose(diversity, [np.nan, wanted])
    assert [text.get_text() for text in lower.texts] == ["no value"]


def test_dots_keep_the_given_order_from_the_top(drawn_in_style) -> None:
    panel = list(planned(TABLE))[1]
    figure = figures.dots(TABLE, panel)
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["PAC-PFL (k = 4)", "FedAvg"]
    bottom, top = axes.get_ylim()
    assert top < 0 < 1 < bottom
    for place, row in enumerate(("pacpfl", "fedavg")):
        point = bars(axes)["new"][0][place]
        assert point[0] == TABLE.get("solar", "new", row, "rsmse").mean
        assert abs(point[1] - place) < 0.2


def test_one_row_far_off_and_one_without_a_value(drawn_in_style) -> None:
    def change(outcome: Outcome, values: dict[str, float]) -> None:
        values["rsmse"] = {"k1": 0.2, "pacpfl": 40.0, "fedavg": math.nan}[outcome.name]

    table = changed(outcomes(), change)
    panel = list(planned(table))[1]
    (axes,) = figures.dots(table, replace(panel, rows=list(ROWS), labels=list(ROWS))).axes
    assert axes.get_xscale() == "log" and axes.get_xlabel().endswith(", logarithmic)")
    assert [(text.get_text(), text.get_position()[1]) for text in axes.texts] == [("no value", 2)]
    cell = of_dataset(table, "solar").groups["new"][0].cells[0]
    assert cell.text.startswith("0.200") and cell.best


@pytest.mark.parametrize("count", [1, 2, 3, 10, 57])
def test_boxes_are_those_everybody_draws(count: int) -> None:
    values = np.random.default_rng(count).standard_t(2, count)
    found, (expected,) = box([*values, math.nan]), cbook.boxplot_stats(values)
    assert found is not None and box([math.nan]) is None
    for name in ("whislo", "q1", "med", "q3", "whishi"):
        assert found[name] == pytest.approx(expected[name], abs=1e-12)
    assert found["fliers"] == pytest.approx(sorted(expected["fliers"]))


def test_every_box_stands_where_its_numbers_are(drawn_in_style) -> None:
    panel = list(planned(TABLE))[2]
    left, _ = figures.boxes(TABLE, panel).axes
    boxes = []
    for patch in left.patches:
        x, y = patch.get_path().vertices[:, 0], patch.get_path().vertices[:, 1]
        boxes.append((round((y.min() + y.max()) / 2, 6), round(x.min(), 6), round(x.max(), 6)))
    expected = []
    for side, group in ((-0.2, "existing"), (0.2, "new")):
        for place, row in enumerate(ROWS):
            values = figures.clients(TABLE, "solar", group, row, "rsmse")
            assert len(values) == 10, "clients of all seeds are in one box"
            edges = np.percentile(values, (25, 75))
            expected.append((round(place + side, 6), *np.round(edges, 6)))
    assert sorted(boxes) == sorted(expected)


def test_what_is_far_off_is_told_and_does_not_squeeze_the_others(drawn_in_style) -> None:
    every = [
        o._replace(clients={g: {"rsmse": [40.0, 40.2] if o.name == "fedavg" else [0.4, 0.6, 9.0],
                                "nll": [0.1]} for g in o.clients})
        for o in outcomes(1)
    ]  # fmt: skip
    table = Table(STUDY, every, range(1))
    left, right = figures.boxes(table, list(planned(table))[2]).axes
    texts = [text.get_text() for text in left.texts]
    assert sum(text.endswith("median 40.100") for text in texts) == 2
    assert all(text.get_position()[0] > 1 for text in left.texts), "no dot may be in the way"
    assert not right.texts and left.get_xlim()[1] < 40


@pytest.mark.parametrize(
    ("thirds", "extreme", "limit"),
    [((1.0, 1.0, 1.0), 2.0, math.inf), ((1.0, 2.0, 9.0), 9.1, 6.0), ((0.0, 0.0), 1.0, math.inf)],
)
def test_an_axis_is_cut_only_where_something_is_far(thirds, extreme, limit) -> None:
    found: list[dict[str, Any]] = [{"q3": q3, "whishi": q3, "fliers": []} for q3 in thirds]
    found[0]["fliers"] = [extreme]
    assert far_limit(found) == limit
    assert far_limit([]) == math.inf


def test_curves_against_epsilon_hold_only_what_was_run(made, tmp_path: Path) -> None:
    values = {"none": 0.30, "alone": 0.45, "gaussian-1": 0.46, "gaussian-8": 0.33, "paper-8": 0.40}
    outcomes = [
        made("polynomial", row, s, {"rsmse": v}) for row, v in values.items() for s in (0, 1)
    ]
    table = Table(read_study("privacy"), outcomes, range(2))
    (panel,) = planned(table)
    assert figures.points(table, panel, "gaussian") == [(1.0, "gaussian-1"), (8.0, "gaussian-8")]
    assert figures.points(table, panel, "paper") == [(8.0, "paper-8")]
    text = write_page(tmp_path, table, "x", []).read_text()
    assert "RSMSE of existing clients, Gaussian noise, by epsilon: 1: 0.460" in text
    svg = (tmp_path / "figures" / "epsilon_polynomial.svg").read_text()
    for words in (
        "delta = 1e-05", "add or remove one client", "Gaussian noise", "no guarantee",
        "without privacy", "a GP per client",
    ):  # fmt: skip
        assert words in svg
    with (tmp_path / "table.csv").open(newline="") as file:
        found = {row["method"]: row for row in csv.DictReader(file)}
    privacy = ("mode", "epsilon", "delta", "adjacency")
    add = "add or remove one client"
    assert [found["gaussian-8"][c] for c in privacy] == ["gaussian", "8.0", "1e-05", add]
    assert [found["alone"][c] for c in privacy] == ["alone", "0", "0", add]
    assert [found["none"][c] for c in privacy] == ["none", "", "", ""]
