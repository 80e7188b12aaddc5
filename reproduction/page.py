"""The page of a study and its README.md, for those who read the folder where it is hosted."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pacpfl.engine import runtime
from pacpfl.errors import InputError
from pacpfl.files import write
from pacpfl.report.measures import Measure, number, plus_minus
from pacpfl.report.page import environment, moment
from pacpfl.report.sentences import GROUP_TITLES
from pacpfl.report.style import COLOURS, DARK_COLOURS, Drawn
from reproduction.figures import draw
from reproduction.sentences import summary
from reproduction.study import Outcome
from reproduction.table import Entry, Table, measure

TEMPLATE = Path(__file__).with_name("study.html.j2")
IN_README = 2  # figures that stand beside README.md; all are in figures/


@dataclass(frozen=True)
class Cell:
    """What stands in a cell of a table; `paper` is empty where the paper has no value."""

    text: str
    value: float
    paper: str
    best: bool


@dataclass(frozen=True)
class Line:
    title: str
    cells: list[Cell]
    seconds: str


@dataclass(frozen=True)
class Shown:
    """A table of the page: group -> lines."""

    title: str
    heads: list[Measure] | list[str]
    groups: dict[str, list[Line]]
    measure: Measure | None = None


@dataclass(frozen=True)
class Page:
    """What the page and README.md say beside tables and figures."""

    title: str
    summary: list[str]
    command: str
    notes: list[str]
    facts: dict[str, str]


def write_page(folder: Path, table: Table, command: str, notes: list[str]) -> Path:
    """Write table.csv, README.md with its figures, figures/ and report.html into a study's folder.

    Everything is computed before the first byte is written, and each file appears whole or not at all.
    """
    page = Page(
        table.study.title, summary(table), command, notes, facts(table.outcomes, table.seeds)
    )
    drawn = draw(table)
    beside = [f for f in drawn if f.name in table.study.readme] or drawn[:IN_README]
    files = {"table.csv": table.as_csv(), "README.md": markdown(page, table, beside)}
    files |= {f"{figure.name}.svg": on_white(figure.svg) for figure in beside}
    files["report.html"] = render(page, table, drawn)
    try:
        (folder / "figures").mkdir(parents=True, exist_ok=True)
        for figure in drawn:
            write(folder / "figures" / f"{figure.name}.png", figure.png)
            write(folder / "figures" / f"{figure.name}.svg", figure.svg.encode())
        for name, text in files.items():
            write(folder / name, text.encode())
    except OSError as error:
        raise InputError(
            f"The report in {folder} cannot be written ({error.strerror or error}); "
            "make room or make the folder writable, and ask for the report again."
        ) from error
    return folder / "report.html"


def on_white(svg: str) -> str:
    """Return a figure that is read on its own, where the page may be dark."""
    return svg.replace("fill: none", "fill: white", 1)


def facts(outcomes: Sequence[Outcome], seeds: Sequence[int]) -> dict[str, str]:
    """Return how the study was run: it may begin on one machine and end on another."""
    machines = dict.fromkeys(o.machine or runtime.machine() for o in outcomes)
    each = [o.versions or runtime.versions() for o in outcomes]
    versions = {
        name: " and ".join(dict.fromkeys(one.get(name, "?") for one in each))
        for name in runtime.versions()
    }
    return {
        "Date": moment(datetime.now(UTC).isoformat(timespec="minutes")),
        "Machine": "; ".join(machines),
        "Seeds": ", ".join(map(str, seeds)),
        "Versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


# ------------------------------------------------------------------------------------------ tables


def published(entry: Entry, digits: int = 3) -> str:
    """Return the paper's value with the two decimals it is printed with (or fewer, where the measure
    is shown with fewer), or more where it has more."""
    mean, half, least = entry.paper_mean, entry.paper_ci95, min(digits, 2)
    digits = least if all(round(v, least) == v for v in (mean, half) if math.isfinite(v)) else 3
    return plus_minus(mean, half, digits) if math.isfinite(mean) else ""


def cell(table: Table, dataset: str, group: str, row: str, known: Measure) -> Cell:
    entry = table.get(dataset, group, row, known.key)
    best = row in table.best(dataset, group, known)
    text = plus_minus(entry.mean, entry.ci95, known.digits)
    return Cell(text, entry.mean, published(entry, known.digits), best)


def of_dataset(table: Table, dataset: str) -> Shown:
    """Return all measures of one data set."""
    measures = table.measures(dataset)
    groups = {
        group: [
            Line(
                _title(table, dataset, group, row),
                [cell(table, dataset, group, row, known) for known in measures],
                _seconds(table, group, row, [dataset]),
            )
            for row in table.rows
            if table.has(dataset, row, group)
        ]
        for group in table.groups(dataset)
    }
    return Shown(table.datasets[dataset], measures, groups)


def overview(table: Table, known: Measure) -> Shown:
    """Return one measure on all data sets."""
    groups = {}
    for group in GROUP_TITLES:
        lines = [
            Line(
                table.rows[row],
                [cell(table, dataset, group, row, known) for dataset in table.datasets],
                _seconds(table, group, row, table.datasets),
            )
            for row in table.rows
            if any(
                math.isfinite(table.get(dataset, group, row, known.key).mean)
                for dataset in table.datasets
            )
        ]
        if lines:
            groups[group] = lines
    title = f"{known.title} on all data sets"
    return Shown(title, list(table.datasets.values()), groups, known)


def _title(table: Table, dataset: str, group: str, row: str) -> str:
    """Return a row's title, with the number of its seeds where some are missing."""
    counts = sorted({e.seeds for p, e in table.entries.items() if p[:3] == (dataset, group, row)})
    if counts in ([], [len(table.seeds)]):
        return table.rows[row]
    return f"{table.rows[row]} ({' to '.join(map(str, counts))} of {len(table.seeds)} seeds)"


def _seconds(table: Table, group: str, row: str, datasets: Iterable[str]) -> str:
    """Return the mean, over the data sets on which a row has values, of the seconds of a run."""
    each = [
        next(e.seconds for place, e in table.entries.items() if place[:3] == (dataset, group, row))
        for dataset in datasets
        if table.has(dataset, row, group)
    ]
    return number(sum(each) / max(1, len(each)), 1)


def legend(table: Table) -> str:
    over = "one seed" if len(table.seeds) == 1 else f"{len(table.seeds)} seeds"
    return f"Mean over clients and {over} \N{PLUS-MINUS SIGN} half of its 95% interval over seeds."


# ------------------------------------------------------------------------------------------ output


def render(page: Page, table: Table, drawn: list[Drawn]) -> str:
    """Return the page as text. Everything that comes from the study is escaped."""
    known = {m.key: m for dataset in table.datasets for m in table.measures(dataset)}
    template = environment().from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        page=page,
        rows=table.rows,
        seeds=table.seeds,
        datasets=table.datasets,
        overviews=[overview(table, measure(key)) for key in table.study.overview],
        tables={dataset: of_dataset(table, dataset) for dataset in table.datasets},
        legend=legend(table),
        from_paper={place[0] for place, entry in table.entries.items() if published(entry)},
        terms=[m for m in known.values() if m.explanation],
        figures=drawn,
        group_titles=GROUP_TITLES,
        colours=COLOURS,
        dark_colours=DARK_COLOURS,
    )


def markdown(page: Page, table: Table, drawn: list[Drawn]) -> str:
    """Return the same as README.md."""
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", page.command)), 3)
    lines = [f"# {plain(page.title)}", "", *map(plain, page.summary), ""]
    lines += [f"{fence}sh", page.command, fence, ""]
    lines += [f"- {name}: {plain(text)}" for name, text in page.facts.items()]
    lines += ["", f"{legend(table)} The best mean of each group is bold;"
              " values of the paper stand in brackets."]  # fmt: skip
    for key in table.study.overview:
        lines += _lines(overview(table, measure(key)))
    for dataset in table.datasets:
        lines += _lines(of_dataset(table, dataset))
        for figure in drawn:
            if figure.section == dataset:
                image = f"![{plain(figure.alternative)}]({figure.name}.svg)"
                lines += ["", f"### {plain(figure.title)}", "", image, "", plain(figure.caption)]
    lines += ["", "The same command writes the page `report.html`, with all figures."]
    if page.notes:
        lines += ["", "## Notes", "", *(f"- {plain(note)}" for note in page.notes)]
    return "\n".join(lines).rstrip() + "\n"


def _lines(shown: Shown) -> list[str]:
    heads = [plain(head.title if isinstance(head, Measure) else head) for head in shown.heads]
    lines = ["", f"## {plain(shown.title)}", "", _line(["Clients", "Method", *heads, "Seconds"])]
    lines.append(_line(["---", "---", *["---:"] * (len(heads) + 1)]))
    for group, rows in shown.groups.items():
        lines += [_line([group, plain(r.title), *map(_marked, r.cells), r.seconds]) for r in rows]
    return lines


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _marked(cell: Cell) -> str:
    text = f"**{cell.text}**" if cell.best else cell.text
    return f"{text} ({cell.paper})" if cell.paper else text


def plain(value: object) -> str:
    """Return one line of Markdown that shows the text as it is, whatever signs are in it."""
    text = re.sub(r"([\\`*_{}\[\]<>|#&$~!])", r"\\\1", " ".join(str(value).split()))
    # Signs that only count at the start of a line: lists, numbered lists, underlined headings.
    return re.sub(r"^(\d+(?=[.)](?:\s|$))|(?=[-+=]))", r"\1\\", text)
