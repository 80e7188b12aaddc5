"""One page that tells a run: written once, opened anywhere, no network, nothing beside it."""

from __future__ import annotations

import base64
import hashlib
from datetime import datetime
from importlib import resources
from pathlib import Path

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from pacpfl import files
from pacpfl.report import figures, particles, sentences
from pacpfl.report.folder import GROUPS, Facts, Run, read_run
from pacpfl.report.judge import judge
from pacpfl.report.measures import number
from pacpfl.report.panels import embedded, in_blocks, panel_data
from pacpfl.report.sentences import GROUP_TITLES
from pacpfl.report.style import COLOURS, DARK_COLOURS, Drawn, as_png, as_svg, drawing
from pacpfl.report.tables import (
    client_link,
    client_table,
    method_table,
    shown_measures,
    table_data,
)

CLIENTS_SHOWN = 5000  # a page with more clients than this is read by nobody
PAGE_ROWS = 50  # of the table at a time
LISTED = 40  # entries of a list in the details; an image has hundreds of features
SCRIPTS = ("table", "draw", "figures", "panels")  # one after the other they are the page's script
SECTIONS = {
    "gains": "Who gains by taking part",
    "results": "Results",
    "calibration": "Calibration",
    "predictions": "Predictions",
    "certificates": "Certificates",
    "learning": "Learning",
}


def write_report(run_dir: Path) -> Path:
    """Make `figures/*.png`, `figures/*.svg` and `report.html` in a run folder.

    Everything is computed before the first byte is written, and each file appears whole or
    not at all. The same run gives the same bytes.
    """
    run = read_run(run_dir)
    drawn = draw(run)
    page = render(run, drawn)
    target = run_dir / "report.html"
    for figure in drawn:
        files.write(run_dir / "figures" / f"{figure.name}.png", figure.png, private=True)
        files.write(run_dir / "figures" / f"{figure.name}.svg", figure.svg.encode(), private=True)
    files.write(target, page.encode(), private=True)
    return target


def draw(run: Run) -> list[Drawn]:
    """Draw the figures that the run has material for, in the order of the page."""
    with drawing():
        group = figures.examples if run.classification else figures.bands
        shown = [
            figures.gains(run, judge(run)),
            figures.boxes(run),
            figures.calibration(run),
            *(group(run, name) for name in run.groups),
            particles.training(run),
            particles.diversity(run),
            particles.weights(run),
            particles.responsibilities(run),
            figures.certificates(run.certificates) if run.certificates else None,
        ]
        return [Drawn(*f[:5], as_png(f.figure), as_svg(f.figure)) for f in shown if f]


def render(run: Run, drawn: list[Drawn]) -> str:
    """Return the page as text; everything that comes from the run is escaped."""
    script = "".join(packaged(f"{name}.js") for name in SCRIPTS)
    judged = judge(run)
    listed = judged[:CLIENTS_SHOWN]
    columns = client_table(run, listed)
    table = {"page": PAGE_ROWS, **table_data(listed, columns)}
    present = {figure.section for figure in drawn} | {"results"}
    template = environment().get_template("template.html.j2")
    return template.render(
        run=run,
        link=client_link,
        dataset=str(run.record.get("dataset", run.name)),
        about=_about(run),
        summary=sentences.summary(run, judged),
        headline=sentences.headline(run),
        cautions=sentences.cautions(run, judged),
        checked=sentences.CHECKED,
        sections={key: title for key, title in SECTIONS.items() if key in present},
        measures=shown_measures(run),
        methods=method_table(run),
        group_titles=GROUP_TITLES,
        figures=drawn,
        certificates=run.certificates,
        number=number,
        guaranteed=sentences.certificates,
        conditions=sentences.conditions,
        columns=list(columns),
        rows=list(zip(listed.itertuples(), zip(*columns.values(), strict=True), strict=True))[
            :PAGE_ROWS
        ],
        further=len(listed) > PAGE_ROWS,
        page_rows=PAGE_ROWS,
        left_out=len(judged) - len(listed),
        panels=Markup(embedded(in_blocks(panel_data(run, listed)) | {"table": table})),
        details=_details(run),
        colours=COLOURS,
        dark_colours=DARK_COLOURS,
        script=Markup(script),
        # The page's security policy runs its own script and no other, whatever a name holds.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def environment() -> Environment:
    """Load the templates of this package; every value is escaped and a missing one an error."""
    options = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    return Environment(loader=FunctionLoader(packaged), autoescape=True, **options)  # type: ignore[arg-type]


def packaged(name: str) -> str:
    return resources.files("pacpfl.report").joinpath(name).read_text(encoding="utf-8")


def _about(run: Run) -> list[str]:
    """Return the parts of the line under the title."""
    counts = [f"{run.count(group)} {group}" for group in GROUPS if run.count(group)]
    parts = [" + ".join(counts) + " clients"]
    features = run.record.get("clients", {}).get("features")
    if features and not run.classification:  # of an image the pixels are of no interest
        parts.append("1 feature" if len(features) == 1 else f"{len(features)} features")
    if "seed" in run.record:
        parts.append(f"seed {run.record['seed']}")
    if "finished" in run.record:
        parts.append(f"finished {moment(run.record['finished'])[:10]}")
    return parts


def moment(value: str) -> str:
    """Return a date of ISO 8601 as people read it."""
    return f"{datetime.fromisoformat(value):%Y-%m-%d %H:%M:%S}"


def _details(run: Run) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return everything run.json says, in blocks of name and value."""
    rest = {**run.record, "clients": {}, "versions": {}, "methods": {}, "race": {}}
    blocks = [
        ("Run", rest),
        *((k.capitalize(), run.record.get(k)) for k in ("clients", "versions")),
    ]
    blocks += [(run.titles[name], entry) for name, entry in run.methods.items()]
    race = sentences.candidates(run.record.get("race", {}).get("table", []))
    shown = [
        *((title, _pairs(entry)) for title, entry in blocks if entry),
        ("Race of settings", race),
    ]
    return [block for block in shown if block[1]]


def _pairs(entry: Facts, prefix: str = "") -> list[tuple[str, str]]:
    pairs = []
    for key, value in entry.items():
        name = prefix + str(key).replace("_", " ")
        if isinstance(value, dict):
            pairs += _pairs(value, f"{name}, ")
        elif key != "title":  # it stands above the block
            pairs.append((name, _plain(key, value)))
    return pairs


def _plain(key: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        shown = [str(item) for item in value[:LISTED]]
        return ", ".join(shown) + (f", ... ({len(value)} in all)" if len(value) > LISTED else "")
    return moment(str(value)) if key in ("started", "finished") else str(value)
