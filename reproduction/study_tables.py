"""Tables, page and Markdown of a study."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from pacpfl.report.measures import Measure, best, number, plus_minus
from pacpfl.report.page import Drawn, environment, moment
from pacpfl.report.sentences import GROUP_TITLES
from pacpfl.report.style import (
    COLOURS,
    DARK_COLOURS,
)
from reproduction.study_folder import (
    Entry,
    Study,
    measure,
)

TEMPLATE = Path(__file__).with_name("study.html.j2")


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


def published(entry: Entry, digits: int = 3) -> str:
    """The paper's value with the two decimals it is printed with (or fewer, where the measure is shown
    with fewer), or more where it has more."""
    mean, half, least = entry.paper_mean, entry.paper_ci95, min(digits, 2)
    digits = least if all(round(v, least) == v for v in (mean, half) if math.isfinite(v)) else 3
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
        winning = method in best_methods(study, dataset, group, known)
        text = plus_minus(entry.mean, entry.ci95, known.digits)
        cells.append(Cell(text, entry.mean, published(entry, known.digits), winning))
    return Row(title, cells, number(entries[0].seconds, 1))


@dataclass(frozen=True)
class Overview:
    """One measure of every method on every data set: group -> rows of cells, one for each data set."""

    measure: Measure
    columns: list[str]
    groups: dict[str, list[Row]]


def overviews(study: Study) -> list[Overview]:
    """Of the measures that the study names as `overview`; the best of each column is marked."""
    datasets: dict[str, str] = study.record["datasets"]
    found = []
    for known in map(measure, study.record["overview"]):
        groups = {}
        for group in GROUP_TITLES:
            rows = []
            for method, title in study.record["methods"].items():
                entries = {d: study.get(d, group, method, known.key) for d in datasets}
                if all(math.isnan(entry.mean) for entry in entries.values()):
                    continue
                cells = [
                    Cell(
                        plus_minus(entry.mean, entry.ci95, known.digits),
                        entry.mean,
                        published(entry, known.digits),
                        method in best_methods(study, dataset, group, known),
                    )
                    for dataset, entry in entries.items()
                ]
                spent = [e.seconds for e in entries.values() if math.isfinite(e.seconds)]
                rows.append(Row(str(title), cells, number(sum(spent) / max(1, len(spent)), 1)))
            if rows:
                groups[group] = rows
        found.append(Overview(known, list(datasets.values()), groups))
    return found


def best_methods(study: Study, dataset: str, group: str, known: Measure) -> set[str]:
    """Return the methods nearest to the ideal of a measure (`measures.best`)."""
    methods = study.record["methods"]
    return best({m: study.get(dataset, group, m, known.key).mean for m in methods}, known)


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
    page = environment().from_string(TEMPLATE.read_text(encoding="utf-8"))
    return page.render(
        study=study,
        datasets=datasets,
        overviews=overviews(study),
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
    for overview in overviews(study):
        heads = ["Clients", "Method", *map(plain, overview.columns), "Seconds"]
        lines += ["", f"## {plain(overview.measure.title)} on all data sets", "", _line(heads)]
        lines.append(_line(["---", "---", *["---:"] * (len(overview.columns) + 1)]))
        for group, rows in overview.groups.items():
            for row in rows:
                cells = [_marked(cell) for cell in row.cells]
                lines.append(_line([group, plain(row.title), *cells, row.seconds]))
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
