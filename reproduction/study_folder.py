"""A study folder (several methods, several seeds) in memory, and what is wrong with one that is none."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pacpfl.errors import InputError
from pacpfl.report.folder import GROUPS
from pacpfl.report.measures import MEASURES, Measure
from pacpfl.report.style import (
    COLOURS,
    Look,
)

PLACE = ("dataset", "group", "method", "metric")
GROUP_LOOKS = {"existing": Look(COLOURS[0], "o", "-"), "new": Look(COLOURS[1], "s", "--")}
ACCURACY = Measure(
    "accuracy", "Accuracy, %", "higher is better",
    "share of test samples whose class is named rightly, in per cent", ideal=100.0, digits=1,
)  # fmt: skip
TRAINING = Measure(
    "train_seconds",
    "Training, s",
    "",
    "time of the training's rounds alone",
    ranked=False,
    digits=1,
)
COMPILATION = Measure(
    "compile_seconds", "Compilation, s", "", "time of the first round, compilation included",
    ranked=False, digits=1,
)  # fmt: skip
RECOVERED = Measure(
    "recovered", "Kinds found", "1 is ideal",
    "share of clients whose kind the components of the prior tell without having been told",
    ideal=1.0,
)  # fmt: skip
DIVERSITY = Measure(
    "diversity", "Diversity", "", "root mean square difference between what two particles predict",
    ranked=False,
)  # fmt: skip
TIMES = (TRAINING, COMPILATION)
SHOWN = {measure.key: measure for measure in (ACCURACY, *MEASURES, RECOVERED, DIVERSITY, *TIMES)}
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
class Box:
    """Of one method's clients: quartiles, whiskers, and the values beyond these."""

    low: float
    q1: float
    median: float
    q3: float
    high: float
    outliers: list[float]


Boxes = dict[str, dict[str, list[Box | None]]]  # metric -> group -> one for each method


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
    bars: str  # what error bars are: `interval`, or `std` over seeds
    boxes: Boxes

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
    for name in ("summary", "seeds", "panels", "notes", "overview"):
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
        caption, bars = str(entry.get("caption", "")), entry.get("bars", "interval")
        panel = Panel(
            kind, str(entry["title"]), entry["dataset"], entry["metric"], second, caption, x_label,
            list(methods), list(labels), bars, _boxes(entry.get("boxes", {}), len(methods)),
        )  # fmt: skip
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{where} cannot be used ({type(error).__name__}: {error}); run the study again."
        ) from None
    if kind not in ("sweep", "methods", "boxes") or not methods:
        fault = "compares nothing" if not methods else f"is of the unknown kind {kind!r}"
        raise InputError(f"{where} {fault}; run the study again.")
    if bars not in ("interval", "std"):
        raise InputError(f"{where} has the unknown error bars {bars!r}; run the study again.")
    if kind == "boxes" and not all(panel.boxes.get(metric) for metric in panel.metrics):
        raise InputError(f"{where} holds no boxes of what it shows; run the study again.")
    for method in methods:
        if not any((panel.dataset, g, method, panel.metric) in study.entries for g in GROUPS):
            raise InputError(
                f"{where} shows {panel.metric!r} of {method!r} on {panel.dataset!r}, which "
                "table.csv does not hold; run the study again."
            )
    return panel


def _boxes(entry: dict[str, Any], count: int) -> Boxes:
    found: Boxes = {}
    for metric, groups in entry.items():
        found[metric] = {
            group: [None if box is None else Box(**box) for box in groups[group]]
            for group in GROUPS
            if group in groups
        }
        if any(len(boxes) != count for boxes in found[metric].values()):
            raise ValueError("not one box for each method")
    return found
