"""Box plots over clients, error bars of a standard deviation, and the tables over all data sets."""

from __future__ import annotations

import copy
import csv
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from pacpfl.errors import InputError
from pacpfl.report import style
from reproduction import study_boxes, study_plots
from reproduction.study import write_study
from reproduction.study_folder import Box, Entry, read_study
from reproduction.study_tables import overviews
from reproduction.table import COLUMNS

METHODS = {"pacpfl": "PAC-PFL", "ridge": "Ridge & co", "pooled": "Pooled"}


def box(middle: float, *outliers: float) -> dict[str, Any]:
    return {
        "low": middle - 0.2, "q1": middle - 0.1, "median": middle, "q3": middle + 0.1,
        "high": middle + 0.3, "outliers": list(outliers),
    }  # fmt: skip


PANEL: dict[str, Any] = {
    "kind": "boxes", "title": "Client by client", "dataset": "solar", "methods": list(METHODS),
    "metric": "rsmse", "second": "ce", "caption": "Boxes.",
    "boxes": {
        "rsmse": {
            "existing": [box(0.5, 0.9, 7.0), box(0.6), box(40.0)],
            "new": [box(0.55), None, box(0.7)],
        },
        "ce": {"existing": [box(1.1), box(1.2), box(1.3)], "new": [box(1.1), None, box(1.0)]},
    },
}  # fmt: skip
RECORD: dict[str, Any] = {
    "title": "Boxes", "summary": [], "command": "pacpfl x", "seeds": [0, 1, 2], "notes": [],
    "methods": METHODS,
    "datasets": {"solar": "Solar", "wind": "Wind"}, "overview": ["rsmse"], "panels": [PANEL],
}  # fmt: skip


def make(folder: Path, record: dict[str, Any] = RECORD) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "study.json").write_text(json.dumps(record))
    with (folder / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for dataset, shift in (("solar", 0.0), ("wind", 1.0)):
            for group in ("existing", "new"):
                for number, method in enumerate(METHODS):
                    if (dataset, method) == ("wind", "ridge"):
                        continue
                    paper = (0.4, 0.01) if method == "pacpfl" else ("", "")
                    row = (
                        dataset,
                        group,
                        method,
                        "rsmse",
                        0.5 + shift - 0.1 * number,
                        0.02,
                        *paper,
                    )
                    writer.writerow((*row, 3, 10.0 * (number + 1)))
                    writer.writerow((dataset, group, method, "ce", 0.1, 0.02, "", "", 3, 1.0))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("study"))


def drawn(folder: Path) -> tuple[Any, Any]:
    study = read_study(folder)
    with style.drawing():
        figure = study_boxes.boxes(study, study.panels[0])
        figure.canvas.draw()
    return figure, study


def test_every_box_stands_where_its_numbers_are(folder):
    figure, _ = drawn(folder)
    for axis, metric in zip(figure.axes, ("rsmse", "ce"), strict=True):
        found = []
        for patch in axis.patches:
            x, y = patch.get_path().vertices[:, 0], patch.get_path().vertices[:, 1]
            colour = tuple(np.round(patch.get_facecolor()[:3], 3))
            found.append((round(y.mean()), round(x.min(), 6), round(x.max(), 6), colour))
        expected = []
        for group, look in style_of_groups().items():
            for place, one in enumerate(PANEL["boxes"][metric][group]):
                if one is not None and one["median"] < 30:
                    expected.append((place, round(one["q1"], 6), round(one["q3"], 6), look))
        assert sorted(found) == sorted(expected)
        medians = {round(line.get_xdata()[0], 6) for line in axis.lines if is_upright(line)}
        for boxes in PANEL["boxes"][metric].values():
            for one in boxes:
                if one is not None and one["median"] < 30:
                    assert {one["median"], round(one["low"], 6), round(one["high"], 6)} <= medians


def style_of_groups() -> dict[str, tuple[float, ...]]:
    colours = [tuple(int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)) for c in style.COLOURS[:2]]
    return {g: tuple(np.round(c, 3)) for g, c in zip(("existing", "new"), colours, strict=True)}


def is_upright(line: Any) -> bool:
    x = line.get_xdata()
    return len(x) == 2 and x[0] == x[1]


def test_what_is_far_off_is_told_and_does_not_squeeze_the_others(folder):
    figure, _ = drawn(folder)
    left, right = figure.axes
    # The middle of the upper edges 0.6, 0.7, 40.1, 0.65, 0.8 is 0.7.
    assert left.get_xlim()[1] == pytest.approx(3 * 0.7)
    texts = [text.get_text() for text in left.texts]
    assert any(text.endswith("1 beyond") for text in texts)
    assert any(text.endswith("median 40.000") for text in texts)
    assert all(text.get_position()[0] > 1 for text in left.texts), "no dot may be in the way"
    assert len(texts) == 2 and not right.texts
    labels = [label.get_text().replace("\n", " ") for label in left.get_yticklabels()]
    assert labels == list(METHODS.values())
    assert left.get_ylim()[0] > left.get_ylim()[1], "the first on top"


@pytest.mark.parametrize(
    ("thirds", "extreme", "limit"),
    [((1.0, 1.0, 1.0), 2.0, math.inf), ((1.0, 2.0, 9.0), 9.1, 6.0), ((0.0, 0.0), 1.0, math.inf)],
)
def test_an_axis_is_cut_only_where_something_is_far(thirds, extreme, limit):
    boxes = [Box(0, 0, 0, q3, q3, []) for q3 in thirds]
    boxes[0] = Box(0, 0, 0, thirds[0], thirds[0], [extreme])
    assert study_boxes.far_limit(boxes) == limit
    assert study_boxes.far_limit([]) == math.inf


def test_those_who_cannot_see_the_boxes_read_the_medians(folder):
    page = write_study(folder).read_text()
    assert "Median RSMSE of existing clients: PAC-PFL: 0.500, Ridge &amp; co: 0.600" in page
    assert (
        "Median CE of new clients: PAC-PFL: 1.100, Ridge &amp; co: \N{EN DASH}, Pooled: 1.000"
        in page
    )
    assert (folder / "figures" / "boxes_1.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"boxes": {"rsmse": PANEL["boxes"]["rsmse"]}}, "no boxes"),
        ({"boxes": {**PANEL["boxes"], "ce": {"existing": [None]}}}, "one box for each"),
        ({"boxes": {**PANEL["boxes"], "ce": {"existing": [{"low": 1}] * 3}}}, "cannot be used"),
        ({"boxes": 7}, "cannot be used"),
        ({"bars": "range"}, "error bars 'range'"),
        ({"kind": "violins"}, "unknown kind"),
    ],
)
def test_panels_that_cannot_be_drawn_are_named(change, words, tmp_path):
    record = copy.deepcopy(RECORD)
    record["panels"][0] |= change
    with pytest.raises(InputError, match=rf"panel 1.*{words}"):
        read_study(make(tmp_path / "study", record))


def test_a_standard_deviation_is_had_back_from_the_interval():
    values = np.array([0.4, 0.45, 0.43, 0.5, 0.41])
    half = stats.sem(values) * stats.t.ppf(0.975, 4)
    entry = Entry(mean=values.mean(), ci95=half, seeds=5)
    assert study_plots.half_bar(entry, "std") == pytest.approx(values.std(ddof=1), rel=1e-12)
    assert study_plots.half_bar(entry, "interval") == half
    assert math.isnan(study_plots.half_bar(Entry(mean=0.4, seeds=1), "std"))


def test_the_overview_has_every_method_on_every_data_set(folder):
    (overview,) = overviews(read_study(folder))
    assert overview.columns == ["Solar", "Wind"]
    rows = overview.groups["new"]
    assert [row.title for row in rows] == list(METHODS.values())
    cells = [[(c.text, c.paper, c.best) for c in row.cells] for row in rows]
    assert cells == [
        [("0.500 ± 0.020", "0.40 ± 0.01", False), ("1.500 ± 0.020", "0.40 ± 0.01", False)],
        [("0.400 ± 0.020", "", False), ("\N{EN DASH}", "", False)],
        [("0.300 ± 0.020", "", True), ("1.300 ± 0.020", "", True)],
    ]
    assert [row.seconds for row in rows] == ["10.0", "20.0", "30.0"]
    page = write_study(folder).read_text()
    section = page[page.index('data-overview="rsmse"') :]
    values = re.findall(r'data-value="([\d.]+|nan)"', section[: section.index("</table>")])
    assert len(values) == 2 * 6 and float(values[0]) == 0.5
    text = (folder / "README.md").read_text()
    assert "| new | Pooled | **0.300 ± 0.020** | **1.300 ± 0.020** | 30.0 |" in text


def test_a_study_without_an_overview_has_none(tmp_path):
    record = {name: value for name, value in RECORD.items() if name != "overview"}
    assert overviews(read_study(make(tmp_path / "study", record))) == []
