"""The page of a study (several methods or settings, several seeds), from table.csv and study.json.

Next to the page stands the same as README.md, for those who read the folder where it is hosted.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from pacpfl.errors import InputError
from pacpfl.report.folder import GROUPS
from pacpfl.report.html import Drawn, environment, moment, write_whole
from pacpfl.report.measures import MEASURES, Measure, number
from pacpfl.report.plots import GROUP_TITLES
from pacpfl.report.style import (
    COLOURS,
    DARK_COLOURS,
    INK,
    Look,
    as_png,
    as_svg,
    drawing,
    grid,
    panels,
    short,
    wrapped,
)

PLACE = ("dataset", "group", "method", "metric")
GROUP_LOOKS = {"existing": Look(COLOURS[0], "o", "-"), "new": Look(COLOURS[1], "s", "--")}
ACCURACY = Measure(
    "accuracy", "Accuracy", "higher is better", "share of test points named rightly", ideal=1.0
)
RECOVERED = Measure(
    "recovered", "Kinds found", "1 is ideal",
    "share of clients whose kind the components of the prior tell without having been told",
    ideal=1.0,
)  # fmt: skip
DIVERSITY = Measure(
    "diversity", "Diversity", "", "root mean square difference between what two particles predict",
    ranked=False,
)  # fmt: skip
SHOWN = {measure.key: measure for measure in (ACCURACY, *MEASURES, RECOVERED, DIVERSITY)}
LEFT_OUT = ("coverage_", "width_")  # of the bands the tables show the 90% ones


@dataclass(frozen=True)
class Entry:
    """A row of table.csv: mean over seeds and half of its 95% interval, here and in the paper."""

    mean: float = math.nan
    ci95: float = math.nan
    paper_mean: float = math.nan
    paper_ci95: float = math.nan
    seeds: float = math.nan
    seconds: float = math.nan


@dataclass(frozen=True)
class Panel:
    """What one figure compares: `methods`, each with the label it has on the axis."""

    kind: str
    title: str
    dataset: str
    metric: str
    second: str | None
    caption: str
    x_label: str
    methods: list[str]
    labels: list[str]

    @property
    def metrics(self) -> list[str]:
        return [self.metric, self.second] if self.second else [self.metric]


@dataclass(frozen=True)
class Study:
    """A study folder in memory; `entries` is table.csv by (dataset, group, method, metric)."""

    record: dict[str, Any]
    entries: dict[tuple[str, ...], Entry]
    panels: list[Panel]

    def groups(self, dataset: str) -> list[str]:
        return [g for g in GROUPS if any(key[:2] == (dataset, g) for key in self.entries)]

    def measures(self, dataset: str) -> list[Measure]:
        """The measures of a data set's table: known ones first, in their usual order."""
        keys = dict.fromkeys(key[3] for key in self.entries if key[0] == dataset)
        other = [key for key in keys if key not in SHOWN and not key.startswith(LEFT_OUT)]
        return [SHOWN[key] for key in SHOWN if key in keys] + [measure(key) for key in other]

    def get(self, dataset: str, group: str, method: str, metric: str) -> Entry:
        return self.entries.get((dataset, group, method, metric), Entry())


def measure(key: str) -> Measure:
    """What is known about a metric; one that is not known is shown, but nobody wins in it."""
    return SHOWN.get(key) or Measure(key, key.replace("_", " "), "", "", ranked=False)


def write_study(folder: Path) -> Path:
    """Make `figures/*.png`, `figures/*.svg`, `README.md` and `report.html` in a study folder.

    Everything is computed before the first byte is written, and each file appears whole or
    not at all. The same study gives the same bytes.
    """
    study = read_study(folder)
    drawn = draw(study)
    page, text = render(study, drawn), markdown(study, drawn)
    try:
        (folder / "figures").mkdir(exist_ok=True)
        for figure in drawn:
            write_whole(folder / "figures" / f"{figure.name}.png", figure.png)
            write_whole(folder / "figures" / f"{figure.name}.svg", figure.svg.encode())
        write_whole(folder / "README.md", text.encode())
        write_whole(folder / "report.html", page.encode())
    except OSError as error:
        raise InputError(
            f"The report in {folder} cannot be written ({error.strerror or error}); "
            "make room or make the folder writable, and ask for the report again."
        ) from error
    return folder / "report.html"


# Reading


def read_study(folder: Path) -> Study:
    if not folder.is_dir():
        raise InputError(f"There is no study folder {folder}; give the folder a study has written.")
    path = folder / "study.json"
    try:
        record = json.loads(_text(path))
    except ValueError as error:
        raise InputError(f"{path} is not valid JSON ({error}); run the study again.") from None
    if not isinstance(record, dict):
        raise InputError(f"{path} holds no JSON object; run the study again.")
    for name, kind in (("title", str), ("datasets", dict), ("methods", dict)):
        if not isinstance(record.get(name), kind) or not record[name]:
            raise InputError(f"{path} gives no {name!r}; run the study again.")
    for name in ("summary", "seeds", "panels", "notes"):
        if not isinstance(record.setdefault(name, []), list):
            raise InputError(f"{path} gives no list as {name!r}; run the study again.")
    entries = _read_table(folder / "table.csv", record)
    study = Study(record, entries, [])
    study.panels.extend(_panel(path, study, n, e) for n, e in enumerate(record["panels"], 1))
    return study


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path} is missing; give the folder of a finished study.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}); run the study again.") from None


def _read_table(path: Path, record: dict[str, Any]) -> dict[tuple[str, ...], Entry]:
    """An empty number is one that is not known, such as the mean of values that are not finite."""
    reader = csv.DictReader(io.StringIO(_text(path)))
    columns = [field.name for field in fields(Entry)]
    for column in (*PLACE, *columns):
        if column not in (reader.fieldnames or ()):
            raise InputError(f"{path} has no column {column!r}; run the study again.")
    named = {"dataset": record["datasets"], "group": GROUPS, "method": record["methods"]}
    entries: dict[tuple[str, ...], Entry] = {}
    for row in reader:
        where = f"{path}, line {reader.line_num},"
        if None in row or None in row.values():
            raise InputError(f"{where} has too many or too few cells; run the study again.")
        for column, known in named.items():
            if row[column] not in known:
                raise InputError(
                    f"{where} has the {column} {row[column]!r}, which is not among "
                    f"{', '.join(map(repr, known))}; run the study again."
                )
        place = tuple(row[column] for column in PLACE)
        if not place[3] or place in entries:
            fault = "repeats an earlier row" if place[3] else "names no metric"
            raise InputError(f"{where} {fault}; run the study again.")
        try:
            entries[place] = Entry(*(float(row[c]) if row[c] else math.nan for c in columns))
        except ValueError as error:
            raise InputError(
                f"{where} has a cell that is no number ({error}); run the study again."
            ) from None
        if entries[place].ci95 < 0:
            raise InputError(f"{where} has a negative half width; run the study again.")
    for dataset in record["datasets"]:
        if not any(place[0] == dataset for place in entries):
            raise InputError(f"{path} has no rows of dataset {dataset!r}; run the study again.")
    return entries


def _panel(path: Path, study: Study, count: int, entry: Any) -> Panel:
    where = f"{path}, panel {count},"
    try:
        kind, second = entry["kind"], entry.get("second")
        if kind == "sweep":
            labels, methods = zip(*((str(x), name) for x, name in entry["points"]), strict=True)
            x_label = str(entry["x_label"])
        else:
            methods, x_label = tuple(entry["methods"]), ""
            labels = tuple(str(study.record["methods"][name]) for name in methods)
        caption = str(entry.get("caption", ""))
        panel = Panel(
            kind, str(entry["title"]), entry["dataset"], entry["metric"], second, caption, x_label,
            list(methods), list(labels),
        )  # fmt: skip
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{where} cannot be used ({type(error).__name__}: {error}); run the study again."
        ) from None
    if kind not in ("sweep", "methods") or not methods:
        fault = "compares nothing" if not methods else f"is of the unknown kind {kind!r}"
        raise InputError(f"{where} {fault}; run the study again.")
    for method in methods:
        if not any((panel.dataset, g, method, panel.metric) in study.entries for g in GROUPS):
            raise InputError(
                f"{where} shows {panel.metric!r} of {method!r} on {panel.dataset!r}, which "
                "table.csv does not hold; run the study again."
            )
    return panel


# Figures


def draw(study: Study) -> list[Drawn]:
    with drawing():
        figures = [{"sweep": sweep, "methods": dots}[p.kind](study, p) for p in study.panels]
        return [
            Drawn(
                f"{panel.kind}_{count}", panel.dataset, panel.title, panel.caption,
                _alternative(study, panel), as_png(figure), as_svg(figure),
            )
            for count, (panel, figure) in enumerate(zip(study.panels, figures, strict=True), 1)
        ]  # fmt: skip


def sweep(study: Study, panel: Panel) -> Figure:
    """A metric against a setting, whose values stand equally spaced; below it the second metric."""
    figure, axes = panels(
        len(panel.metrics), 1, 1.6 + 1.4 * len(panel.metrics), sharex=True,
        gridspec_kw={"height_ratios": [2, 1][: len(panel.metrics)]},
    )  # fmt: skip
    shown: set[str] = set()
    for axis, metric in zip(axes, panel.metrics, strict=True):
        shown |= _draw_entries(axis, study, panel, metric, upright=True)
        axis.set_ylabel(_aim(metric, "\n"))
        grid(axis, "y")
    axes[-1].set_xticks(range(len(panel.labels)), [short(label, 14) for label in panel.labels])
    axes[-1].set_xlim(-0.5, len(panel.labels) - 0.5)
    axes[-1].set_xlabel(short(panel.x_label, 60))
    _legend(figure, shown, lines=True)
    return figure


def dots(study: Study, panel: Panel) -> Figure:
    """One row per method, the first given on top, one dot per group."""
    figure, (axis,) = panels(1, 1, 1.1 + 0.42 * len(panel.methods))
    shown = _draw_entries(axis, study, panel, panel.metric, upright=False)
    axis.set_yticks(
        range(len(panel.labels)), [wrapped(short(label, 60), 26) for label in panel.labels]
    )
    axis.set_ylim(len(panel.labels) - 0.5, -0.5)
    axis.tick_params(axis="y", length=0)
    axis.set_xlabel(_aim(panel.metric, " "))
    grid(axis, "x")
    for place in range(1, len(panel.labels)):
        axis.axhline(place - 0.5, color=INK, alpha=0.12, linewidth=0.6)
    entries = [e for g in GROUPS for e in _column(study, panel, g, panel.metric)]
    means = [entry.mean for entry in entries if math.isfinite(entry.mean)]
    # Where one method is far off, the others would melt into a line.
    if means and min(means) > 0 and max(means) > 20 * min(means):
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(numticks=5))
        axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_xlabel(f"{axis.get_xlabel()}, logarithmic")
    _legend(figure, shown, lines=False)
    return figure


def _column(study: Study, panel: Panel, group: str, metric: str) -> list[Entry]:
    return [study.get(panel.dataset, group, method, metric) for method in panel.methods]


def _draw_entries(axis: Axes, study: Study, panel: Panel, metric: str, upright: bool) -> set[str]:
    """Means with their intervals, method after method; returns what the legend has to explain."""
    shown: set[str] = set()
    known = np.zeros(len(panel.methods), dtype=bool)
    for side, (group, look) in zip((-1, 1), GROUP_LOOKS.items(), strict=True):
        column = _column(study, panel, group, metric)
        # A little apart, so that one group does not hide the other.
        places = np.arange(len(column)) + side * (0.04 if upright else 0.15)
        means = np.array([entry.mean for entry in column])
        halves = np.array([entry.ci95 for entry in column])
        means[~np.isfinite(means)] = halves[~np.isfinite(halves)] = np.nan
        known |= np.isfinite(means)
        if np.isfinite(means).any():
            shown |= {group, "interval"} if np.isfinite(halves).any() else {group}
            x, y = (places, means) if upright else (means, places)
            axis.errorbar(
                x, y, yerr=halves if upright else None, xerr=None if upright else halves,
                color=look.colour, marker=look.marker, markersize=5, capsize=3, elinewidth=1.2,
                linewidth=1.3, linestyle=look.dash if upright else "none", label=group,
            )  # fmt: skip
    for place in map(float, np.flatnonzero(~known)):
        axis.text(
            place if upright else 0.02, 0.08 if upright else place, "no value",
            transform=axis.get_xaxis_transform() if upright else axis.get_yaxis_transform(),
            ha="center" if upright else "left", va="center", fontsize=8, style="italic", alpha=0.75,
        )  # fmt: skip
    ideal = measure(metric).ideal
    if ideal is not None:
        (axis.axhline if upright else axis.axvline)(ideal, color=INK, alpha=0.45, linewidth=0.9)
    return shown


def _aim(metric: str, between: str) -> str:
    known = measure(metric)
    return short(known.title) + (f"{between}({known.goal})" if known.goal else "")


def _legend(figure: Figure, shown: set[str], lines: bool) -> None:
    handles = [
        Line2D(
            [], [], color=look.colour, marker=look.marker, markersize=5, linewidth=1.3,
            linestyle=look.dash if lines else "none", label=GROUP_TITLES[group].lower(),
        )
        for group, look in GROUP_LOOKS.items()
        if group in shown
    ]  # fmt: skip
    if "interval" in shown:
        handles.append(
            Line2D(
                [], [], color=INK, linestyle="none", marker="|" if lines else "_", markersize=12,
                label="95% interval over seeds",
            )
        )  # fmt: skip
    if handles:
        figure.legend(
            handles=handles, loc="outside lower center", ncols=len(handles), handlelength=2.5
        )


def _alternative(study: Study, panel: Panel) -> str:
    parts = []
    for metric in panel.metrics:
        for group in study.groups(panel.dataset):
            column = zip(panel.labels, _column(study, panel, group, metric), strict=True)
            listed = ", ".join(f"{label}: {plus_minus(e.mean, e.ci95)}" for label, e in column)
            what = f"{measure(metric).title} of {group} clients"
            parts.append(f"{what} by {panel.x_label or 'method'}: {listed}.")
    return " ".join(parts)


# Tables, page and Markdown


@dataclass(frozen=True)
class Cell:
    """What stands in a cell of a table; `paper` is empty where the paper has no value."""

    text: str
    value: float
    paper: str
    best: bool


@dataclass(frozen=True)
class Row:
    title: str
    cells: list[Cell]
    seconds: str


def plus_minus(mean: float, half: float, digits: int = 3) -> str:
    known = math.isfinite(mean) and math.isfinite(half)
    return number(mean, digits) + (f" \N{PLUS-MINUS SIGN} {number(half, digits)}" if known else "")


def published(entry: Entry) -> str:
    """The paper's value with the two decimals it is printed with, or more where it has more."""
    mean, half = entry.paper_mean, entry.paper_ci95
    digits = 2 if all(round(v, 2) == v for v in (mean, half) if math.isfinite(v)) else 3
    return plus_minus(mean, half, digits) if math.isfinite(mean) else ""


def table(study: Study, dataset: str) -> dict[str, list[Row]]:
    """Group -> one row per method that was run on this data set."""
    return {
        group: [
            _row(study, dataset, group, method)
            for method in study.record["methods"]
            if any(place[:3] == (dataset, group, method) for place in study.entries)
        ]
        for group in study.groups(dataset)
    }


def _row(study: Study, dataset: str, group: str, method: str) -> Row:
    entries = [e for place, e in study.entries.items() if place[:3] == (dataset, group, method)]
    title = str(study.record["methods"][method])
    counts = sorted({int(e.seeds) for e in entries if math.isfinite(e.seeds)})
    planned = len(study.record["seeds"])
    if planned and counts not in ([], [planned]):
        title += f" ({' to '.join(map(str, counts))} of {planned} seeds)"
    cells = []
    for known in study.measures(dataset):
        entry = study.get(dataset, group, method, known.key)
        best = method in best_methods(study, dataset, group, known)
        text = plus_minus(entry.mean, entry.ci95)
        cells.append(Cell(text, entry.mean, published(entry), best))
    return Row(title, cells, number(entries[0].seconds, 1))


def best_methods(study: Study, dataset: str, group: str, known: Measure) -> set[str]:
    """The methods nearest to the ideal; several when they tie, none when there is no contest."""
    distances = {
        method: known.distance(mean)
        for method in study.record["methods"]
        if math.isfinite(mean := study.get(dataset, group, method, known.key).mean)
    }
    if len(distances) < 2 or not known.ranked:
        return set()
    least = min(distances.values())
    return {method for method, distance in distances.items() if distance == least}


def legend_of_tables(study: Study) -> str:
    count = len(study.record["seeds"])
    over = "seeds" if not count else "one seed" if count == 1 else f"{count} seeds"
    return f"Mean over clients and {over} \N{PLUS-MINUS SIGN} half of its 95% interval over seeds."


def facts(study: Study) -> dict[str, str]:
    """How the study was run, in words."""
    record = study.record
    versions = record.get("versions") or {}
    told = {
        "Date": moment(record.get("date", "")),
        "Machine": str(record.get("machine", "")),
        "Seeds": ", ".join(map(str, record["seeds"])),
        "Versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    return {name: text for name, text in told.items() if text}


def render(study: Study, drawn: list[Drawn]) -> str:
    """The page as text. Everything that comes from the study is escaped."""
    datasets = study.record["datasets"]
    known = {m.key: m for dataset in datasets for m in study.measures(dataset) if m.explanation}
    return environment().get_template("study.html.j2").render(
        study=study,
        datasets=datasets,
        tables={dataset: table(study, dataset) for dataset in datasets},
        legend=legend_of_tables(study),
        from_paper={place[0] for place, entry in study.entries.items() if published(entry)},
        terms=list(known.values()),
        facts=facts(study),
        figures=drawn,
        group_titles=GROUP_TITLES,
        colours=COLOURS,
        dark_colours=DARK_COLOURS,
    )  # fmt: skip


def markdown(study: Study, drawn: list[Drawn]) -> str:
    """The same as README.md: what stands in the folder is read where it is hosted."""
    record = study.record
    lines = [f"# {plain(record['title'])}", "", *map(plain, record["summary"]), ""]
    command = str(record.get("command", "")).strip()
    if command:
        fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", command)), 3)
        lines += [f"{fence}sh", command, fence, ""]
    lines += [f"- {name}: {plain(text)}" for name, text in facts(study).items()]
    lines += ["", f"{legend_of_tables(study)} The best mean of each group is bold;"
              " values of the paper stand in brackets."]  # fmt: skip
    for dataset, title in record["datasets"].items():
        measures = study.measures(dataset)
        heads = ["Clients", "Method", *(plain(m.title) for m in measures), "Seconds"]
        lines += ["", f"## {plain(title)}", "", _line(heads)]
        lines.append(_line(["---", "---", *["---:"] * (len(measures) + 1)]))
        for group, rows in table(study, dataset).items():
            for row in rows:
                cells = [_marked(cell) for cell in row.cells]
                lines.append(_line([group, plain(row.title), *cells, row.seconds]))
        for figure in drawn:
            if figure.section == dataset:
                image = f"![{plain(figure.alternative)}](figures/{figure.name}.png)"
                lines += ["", f"### {plain(figure.title)}", "", image, "", plain(figure.caption)]
    if record["notes"]:
        lines += ["", "## Notes", "", *(f"- {plain(note)}" for note in record["notes"])]
    return "\n".join(lines).rstrip() + "\n"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _marked(cell: Cell) -> str:
    text = f"**{cell.text}**" if cell.best else cell.text
    return f"{text} ({cell.paper})" if cell.paper else text


def plain(value: object) -> str:
    """One line of Markdown that shows the text as it is, whatever signs are in it."""
    text = re.sub(r"([\\`*_{}\[\]<>|#&$~!])", r"\\\1", " ".join(str(value).split()))
    # Signs that only count at the start of a line: lists, numbered lists, underlined headings.
    return re.sub(r"^(\d+(?=[.)](?:\s|$))|(?=[-+=]))", r"\1\\", text)
