"""The page and the README of a study hold its numbers, and its figures show them."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes

from pacpfl.errors import InputError
from pacpfl.report import style
from reproduction import study_plots
from reproduction.study import write_study
from reproduction.study_folder import read_study
from reproduction.study_tables import plain

ReadPage = Callable[[Path], Any]
COLUMNS = (
    "dataset", "group", "method", "metric", "mean", "ci95", "paper_mean", "paper_ci95", "seeds",
    "seconds",
)  # fmt: skip
METHODS = {"pacpfl-k1": "PAC-PFL (k = 1)", "pacpfl": "PAC-PFL (k = 4)", "fedavg": "FedAvg"}
METRICS = ("rsmse", "nll", "coverage_90", "coverage_50", "diversity", "warmth")
SHOWN = ("rsmse", "nll", "coverage_90", "diversity", "warmth")
NASTY = "<script>alert(1)</script> | *a* `b` $x_1$ {{ 7*7 }} &amp; 東京"
RECORD: dict[str, Any] = {
    "title": "What k buys", "summary": ["More particles help.", "A little."],
    "command": "pacpfl reproduce polynomial", "date": "2026-11-15T08:00+00:00",
    "machine": "Linux, 2 cores", "versions": {"jax": "0.10.2"}, "seeds": [0, 1, 2, 3, 4],
    "datasets": {"polynomial": "Polynomial", "solar": "Solar"}, "methods": METHODS,
    "panels": [
        {"kind": "sweep", "title": "Particles", "dataset": "polynomial", "x_label": "particles k",
         "points": [[1, "pacpfl-k1"], [4, "pacpfl"]], "metric": "rsmse", "second": "diversity",
         "caption": "More is better."},
        {"kind": "methods", "title": "Against others", "dataset": "solar",
         "methods": ["pacpfl", "fedavg"], "metric": "rsmse", "caption": "Left is better."},
    ],
    "notes": ["Seeds were not looked at before."],
}  # fmt: skip


def cells() -> list[dict[str, str]]:
    """Numbers of every size and sign; diversity only where there are particles."""
    random = np.random.default_rng(3)
    rows = []
    for dataset in RECORD["datasets"]:
        for group in ("existing", "new"):
            for method in METHODS:
                for metric in METRICS:
                    if metric == "diversity" and method != "pacpfl":
                        continue
                    mean = random.normal() if metric in ("nll", "warmth") else random.uniform(0, 1)
                    numbers: dict[str, float | str] = {
                        "mean": float(mean), "ci95": float(random.uniform(0.001, 0.1)),
                        "paper_mean": "", "paper_ci95": "", "seeds": 5, "seconds": 12.34,
                    }  # fmt: skip
                    if metric == "rsmse" and method == "pacpfl":
                        numbers |= {"paper_mean": 0.5, "paper_ci95": 0.05}
                    row = dict(zip(COLUMNS, (dataset, group, method, metric), strict=False))
                    rows.append(row | {name: str(value) for name, value in numbers.items()})
    return rows


def make_study(
    folder: Path,
    record: dict[str, Any] | None = None,
    rows: list[dict[str, str]] | None = None,
    columns: tuple[str, ...] = COLUMNS,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.json").write_text(json.dumps(record or RECORD), encoding="utf-8")
    with (folder / "table.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(cells() if rows is None else rows)
    return folder


def changed(**changes: Any) -> dict[str, Any]:
    return json.loads(json.dumps(RECORD)) | changes


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(make_study(tmp_path_factory.mktemp("studies") / "study"))


def expected(group: str, dataset: str) -> dict[str, dict[str, dict[str, str]]]:
    """method -> metric -> row of the file."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for row in cells():
        if (row["group"], row["dataset"]) == (group, dataset):
            found.setdefault(row["method"], {})[row["metric"]] = row
    return found


def best(rows: dict[str, dict[str, dict[str, str]]], metric: str) -> str | None:
    if metric in ("diversity", "warmth"):
        return None
    ideal = 0.9 if metric == "coverage_90" else -np.inf
    means = {method: float(row[metric]["mean"]) for method, row in rows.items()}
    closest = sorted(means, key=lambda m: abs(means[m] - ideal) if ideal > 0 else means[m])
    return closest[0]


def written(row: dict[str, str] | None) -> str:
    """How mean and half width must read, from the text of the file."""
    if row is None:
        return "\N{EN DASH}"
    mean, half = (f"{float(row[name]):.3f}" for name in ("mean", "ci95"))
    return f"{mean} ± {half}".replace("-", "\N{MINUS SIGN}")


@pytest.mark.parametrize("dataset", RECORD["datasets"])
def test_the_tables_of_the_page_are_table_csv(
    page: Path, read_page: ReadPage, dataset: str
) -> None:
    table = read_page(page).one("table", **{"data-dataset": dataset})
    heads = [head.children[0] for head in table.one("thead").all("th")]
    assert heads == ["Method", "RSMSE", "NLL", "90% coverage", "Diversity", "warmth", "Seconds"]
    for body, group in zip(table.all("tbody"), ("existing", "new"), strict=True):
        rows = expected(group, dataset)
        lines = body.all("tr")[1:]
        assert [line.one("th").text for line in lines] == list(METHODS.values())
        for line, method in zip(lines, METHODS, strict=True):
            for cell, metric in zip(line.all("td"), SHOWN, strict=False):
                text = written(rows[method].get(metric))
                if best(rows, metric) == method:
                    text = f"★ best {text}"
                if metric == "rsmse" and method == "pacpfl":
                    text += " in the paper (0.50 ± 0.05)"
                assert cell.text == text
            assert line.all("td")[-1].text == "12.3"


def test_the_tables_of_the_readme_are_table_csv(page: Path) -> None:
    text = (page.parent / "README.md").read_text(encoding="utf-8")
    for dataset, title in RECORD["datasets"].items():
        section = text.split(f"## {title}\n")[1].split("\n#")[0]
        lines = [
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in section.splitlines()
            if line.startswith("|")
        ]
        assert lines[0] == ["Clients", "Method", "RSMSE", "NLL", "90% coverage", "Diversity",
                            "warmth", "Seconds"]  # fmt: skip
        assert lines[1] == ["---", "---"] + ["---:"] * 6
        wanted = []
        for group in ("existing", "new"):
            rows = expected(group, dataset)
            for method, name in METHODS.items():
                line = [group, name]
                for metric in SHOWN:
                    value = written(rows[method].get(metric))
                    value = f"**{value}**" if best(rows, metric) == method else value
                    paper = metric == "rsmse" and method == "pacpfl"
                    line.append(f"{value} (0.50 ± 0.05)" if paper else value)
                wanted.append([*line, "12.3"])
        assert lines[2:] == wanted


def test_the_readme_says_what_was_run_and_links_the_figures(page: Path) -> None:
    text = (page.parent / "README.md").read_text(encoding="utf-8")
    assert text.startswith("# What k buys\n\nMore particles help.\nA little.\n\n```sh\npacpfl ")
    for line in ("- Date: 2026-11-15 08:00:00", "- Machine: Linux, 2 cores",
                 "- Seeds: 0, 1, 2, 3, 4", "- Versions: jax 0.10.2"):  # fmt: skip
        assert f"\n{line}\n" in text
    assert text.endswith("## Notes\n\n- Seeds were not looked at before.\n")
    images = re.findall(r"!\[(.+)\]\((\S+)\)\n\n(.+)\n", text)
    assert [(image, caption) for _, image, caption in images] == [
        ("figures/sweep_1.png", "More is better."), ("figures/methods_2.png", "Left is better."),
    ]  # fmt: skip
    for _, image, _ in images:
        assert (page.parent / image).read_bytes().startswith(b"\x89PNG")
        drawing = (page.parent / image).with_suffix(".svg").read_text(encoding="utf-8")
        ElementTree.fromstring(drawing)
    row = expected("existing", "polynomial")["pacpfl"]["rsmse"]
    assert f"4: {written(row)}" in images[0][0]


def test_the_page_tells_everything_and_needs_nothing(page: Path, read_page: ReadPage) -> None:
    content = read_page(page)
    text = page.read_text(encoding="utf-8")
    assert content.one("h1").text == "What k buys"
    assert content.one("p", id="summary").text == "More particles help. A little."
    assert content.one("section", id="notes").one("li").text == "Seeds were not looked at before."
    assert content.one("section", id="details").one("pre").text == "pacpfl reproduce polynomial"
    assert "2026-11-15 08:00:00" in content.one("section", id="details").text
    for figure, caption in (("sweep_1", "More is better."), ("methods_2", "Left is better.")):
        shown = content.one("figure", id=f"figure-{figure}")
        assert shown.one("figcaption").text == caption
        assert "currentColor" in str(shown.one("svg"))
    assert not content.all("script") and not re.search(r"https?:|//[a-z]|@import", text)
    for drawing in re.findall(r"<svg.*?</svg>", text, flags=re.S):
        assert not re.findall(r"#[0-9a-f]{6}\b", drawing), "a colour that knows one theme"
    ids = Counter(e.attributes["id"] for e in content.all() if "id" in e.attributes)
    assert set(ids.values()) == {1}
    for element in content.all():
        target = element.attributes.get("href", "#main")
        assert target == "data:," or target[1:] in ids
        assert element.attributes.get("aria-labelledby", "main") in ids


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


@pytest.mark.usefixtures("drawn_in_style")
def test_a_sweep_shows_both_metrics_with_their_intervals(page: Path) -> None:
    study = read_study(page.parent)
    upper, lower = study_plots.sweep(study, study.panels[0]).axes
    assert [label.get_text() for label in lower.get_xticklabels()] == ["1", "4"]
    assert list(lower.get_xticks()) == [0, 1]
    assert lower.get_xlabel() == "particles k"
    assert upper.get_ylabel() == "RSMSE\n(lower is better)"
    assert upper.get_position().height > 1.5 * lower.get_position().height
    for group, colour in (("existing", style.COLOURS[0]), ("new", style.COLOURS[1])):
        points, ends = bars(upper)[group]
        rows = expected(group, "polynomial")
        for place, method in enumerate(("pacpfl-k1", "pacpfl")):
            mean, half = (float(rows[method]["rsmse"][name]) for name in ("mean", "ci95"))
            assert points[place][1] == mean and abs(points[place][0] - place) < 0.1
            np.testing.assert_allclose(ends[place][:, 1], [mean - half, mean + half])
        diversity = bars(lower)[group][0][:, 1]
        wanted = float(rows["pacpfl"]["diversity"]["mean"])
        np.testing.assert_allclose(diversity, [np.nan, wanted])
        (bar,) = [bar for bar in upper.containers if bar.get_label() == group]
        assert bar.lines[0].get_color() == colour
    assert [text.get_text() for text in lower.texts] == ["no value"]
    assert lower.texts[0].get_position()[0] == 0


@pytest.mark.usefixtures("drawn_in_style")
def test_dots_keep_the_given_order_from_the_top(page: Path) -> None:
    study = read_study(page.parent)
    figure = study_plots.dots(study, study.panels[1])
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["PAC-PFL (k = 4)", "FedAvg"]
    bottom, top = axes.get_ylim()
    assert top < 0 < 1 < bottom
    for group in ("existing", "new"):
        points, ends = bars(axes)[group]
        for place, method in enumerate(("pacpfl", "fedavg")):
            row = expected(group, "solar")[method]["rsmse"]
            mean, half = float(row["mean"]), float(row["ci95"])
            assert points[place][0] == mean and abs(points[place][1] - place) < 0.2
            np.testing.assert_allclose(ends[place][:, 0], [mean - half, mean + half])
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["existing clients", "new clients", "95% interval over seeds"]


def test_one_method_far_off_and_one_without_a_value(tmp_path: Path, read_page: ReadPage) -> None:
    rows = cells()
    for row in rows:
        if row["metric"] == "rsmse" and row["dataset"] == "solar":
            row["mean"] = {"pacpfl-k1": "0.2", "pacpfl": "40", "fedavg": ""}[row["method"]]
            row["ci95"] = ""
    panels = [RECORD["panels"][1] | {"methods": list(METHODS)}]
    folder = make_study(tmp_path / "study", changed(panels=panels), rows)
    with style.drawing():
        study = read_study(folder)
        (axes,) = study_plots.dots(study, study.panels[0]).axes
    assert axes.get_xscale() == "log" and axes.get_xlabel().endswith(", logarithmic")
    assert [(text.get_text(), text.get_position()[1]) for text in axes.texts] == [("no value", 2)]
    table = read_page(write_study(folder)).one("table", **{"data-dataset": "solar"})
    cells_shown = [line.all("td")[0].text for line in table.all("tbody")[0].all("tr")[1:]]
    assert cells_shown == ["★ best 0.200", "40.000 in the paper (0.50 ± 0.05)", "\N{EN DASH}"]


def test_fewer_seeds_than_planned_are_told(tmp_path: Path, read_page: ReadPage) -> None:
    rows = cells()
    for row in rows:
        row["seeds"] = "3" if row["method"] == "fedavg" else "5"
    page = write_study(make_study(tmp_path / "study", rows=rows))
    names = {row.one("th").text for row in read_page(page).all("tr") if row.all("td")}
    assert names == {*list(METHODS.values())[:2], "FedAvg (3 of 5 seeds)"}


def test_a_study_of_existing_clients_only(tmp_path: Path, read_page: ReadPage) -> None:
    rows = [row for row in cells() if row["group"] == "existing"]
    content = read_page(write_study(make_study(tmp_path / "study", rows=rows)))
    assert "New clients" not in content.text and "new clients" not in content.text
    assert [len(table.all("tbody")) for table in content.all("table")] == [1, 1]


def test_whatever_is_written_stays_text(tmp_path: Path, read_page: ReadPage) -> None:
    record = changed(
        title=NASTY, summary=[NASTY], notes=[NASTY, "- no list", "1. no number"], machine=NASTY,
        command="```\n" + NASTY, methods=dict.fromkeys(METHODS, NASTY),
        datasets=dict.fromkeys(RECORD["datasets"], NASTY),
    )  # fmt: skip
    for panel in record["panels"]:
        panel |= {"title": NASTY, "caption": NASTY, "x_label": NASTY}
    folder = make_study(tmp_path / "study", record)
    page = write_study(folder)
    content = read_page(page)
    assert not content.all("script")
    shown = [content.one("h1"), content.one("p", id="summary"), content.all("figcaption")[0],
             content.one("section", id="notes").all("li")[0], content.all("h2")[0],
             content.all("tbody")[0].all("tr")[1].one("th")]  # fmt: skip
    assert [element.text for element in shown] == [NASTY] * 6
    readme = (folder / "README.md").read_text(encoding="utf-8")
    fenced = readme.index("````sh\n```\n" + NASTY + "\n````\n")
    assert "<script>" not in readme.replace(readme[fenced : fenced + 200], "").replace("\\<", "")
    rows = [line for line in readme.splitlines() if line.startswith("| existing")]
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 9 for line in rows)
    assert readme.endswith("\n- \\- no list\n- 1\\. no number\n")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b", r"a\|b"), ("coverage_90 *", r"coverage\_90 \*"), ("[x](y) ![z]", r"\[x\](y) \!\[z\]"),
        ("two\n\n# lines", r"two \# lines"), ("+ x", r"\+ x"), ("12) x", r"12\) x"),
        ("12 x", "12 x"), ("0.5 x", "0.5 x"), ("a\\b", r"a\\b"), ("<b>&lt;", r"\<b\>\&lt;"),
    ],
)  # fmt: skip
def test_markdown_is_escaped(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_two_pages_of_one_study_are_the_same_bytes(page: Path, tmp_path: Path) -> None:
    again = write_study(Path(shutil.copytree(page.parent, tmp_path / "other"))).parent
    files = sorted(path.relative_to(again) for path in again.rglob("*.*"))
    assert len(files) == 8
    for path in files:
        assert (again / path).read_bytes() == (page.parent / path).read_bytes()


def test_a_page_is_replaced_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_study(tmp_path / "study", changed(panels=[]))
    (folder / "report.html").write_text("the old page")
    replaced = os.replace

    def full_disk(source: str, target: Path) -> None:
        if str(target).endswith("report.html"):
            raise OSError(28, "No space left on device")
        replaced(source, target)

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(InputError, match="No space left on device"):
        write_study(folder)
    assert (folder / "report.html").read_text() == "the old page"
    assert not list(folder.rglob(".*"))


SWEEP, DOTS = RECORD["panels"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"title": ""}, r"study\.json gives no 'title'"),
        ({"datasets": []}, r"study\.json gives no 'datasets'"),
        ({"methods": {}}, r"study\.json gives no 'methods'"),
        ({"notes": "one"}, r"study\.json gives no list as 'notes'"),
        ({"methods": {"pacpfl": "P"}}, r"table\.csv, line 2, has the method 'pacpfl-k1'"),
        ({"datasets": RECORD["datasets"] | {"femnist": "F"}}, r"no rows of dataset 'femnist'"),
        ({"panels": [SWEEP | {"kind": "pie", "methods": ["pacpfl"]}]}, "unknown kind 'pie'"),
        ({"panels": [SWEEP, DOTS | {"metric": "ce"}]}, "panel 2, shows 'ce' of 'pacpfl' on 'solar'"),
        ({"panels": [SWEEP | {"points": [1, 2]}]}, "panel 1, cannot be used"),
        ({"panels": [DOTS | {"methods": []}]}, "panel 1, compares nothing"),
        ({"panels": [DOTS | {"methods": ["mtl"]}]}, "panel 1, cannot be used .KeyError: 'mtl'"),
        ({"panels": [{"kind": "methods"}]}, "panel 1, cannot be used .KeyError: 'methods'"),
        ({"panels": ["pie"]}, "panel 1, cannot be used"),
    ],
)  # fmt: skip
def test_a_record_that_is_no_study(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    folder = make_study(tmp_path / "study", changed(**changes))
    with pytest.raises(InputError, match=words) as caught:
        write_study(folder)
    assert str(caught.value).endswith("; run the study again.")
    assert sorted(path.name for path in folder.iterdir()) == ["study.json", "table.csv"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mean": "much"}, "line 2, has a cell that is no number .*'much'"),
        ({"group": "old"}, "line 2, has the group 'old', which is not among 'existing', 'new'"),
        ({"metric": ""}, "line 2, names no metric"),
        ({"metric": "nll"}, "line 3, repeats an earlier row"),
        ({"ci95": "-0.1"}, "line 2, has a negative half width"),
    ],
)
def test_a_row_that_cannot_be_used(tmp_path: Path, changes: dict[str, str], words: str) -> None:
    rows = cells()
    rows[0] |= changes
    with pytest.raises(InputError, match=f"table\\.csv, {words}"):
        write_study(make_study(tmp_path / "study", rows=rows))


@pytest.mark.parametrize("column", COLUMNS)
def test_a_missing_column_is_named(tmp_path: Path, column: str) -> None:
    rest = tuple(name for name in COLUMNS if name != column)
    folder = make_study(tmp_path / "study", columns=rest)
    with pytest.raises(InputError, match=f"table\\.csv has no column '{column}'"):
        write_study(folder)


def test_folders_that_are_no_study(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no study folder"):
        write_study(tmp_path / "nowhere")
    folder = make_study(tmp_path / "study")
    (folder / "table.csv").write_bytes(b"dataset,\xff")
    with pytest.raises(InputError, match=r"table\.csv cannot be read"):
        write_study(folder)
    (folder / "table.csv").unlink()
    with pytest.raises(InputError, match=r"table\.csv is missing; give the folder of a finished"):
        write_study(folder)
    for text, words in (("{", "is not valid JSON"), ("[]", "holds no JSON object")):
        (folder / "study.json").write_text(text)
        with pytest.raises(InputError, match=rf"study\.json {words}"):
            write_study(folder)
    (folder / "study.json").unlink()
    with pytest.raises(InputError, match=r"study\.json is missing"):
        write_study(folder)


def test_a_browser_opens_it_light_dark_and_narrow(page: Path, tmp_path: Path) -> None:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("No browser: install the Debian packages chromium and chromium-driver.")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--no-first-run", "--disable-background-networking", "--disable-component-update",
        "--hide-scrollbars", f"--user-data-dir={tmp_path / 'browser'}",
    ):  # fmt: skip
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=driver)
    browser = webdriver.Chrome(options=options, service=service)
    try:
        browser.get(page.as_uri())
        inks = {}
        for theme, width in (("light", 1100), ("dark", 1100), ("light", 400)):
            size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            wish = [{"name": "prefers-color-scheme", "value": theme}]
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wish})
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width
            inks[theme] = browser.execute_script(
                "const style = (found) => getComputedStyle(document.querySelector(found));"
                "return [style('body').backgroundColor, style('body').color,"
                " style('figure svg text').fill]"
            )
        sizes = browser.execute_script(
            "return [...document.querySelectorAll('figure svg')]"
            ".map(drawing => drawing.getBoundingClientRect().height)"
        )
        assert len(sizes) == 2 and min(sizes) > 100
        assert inks["light"][0] != inks["dark"][0]
        assert all(text == ink != ground for ground, text, ink in inks.values())
        assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
        assert browser.get_log("browser") == []
    finally:
        browser.quit()
