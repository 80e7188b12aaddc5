"""The figure of the photovoltaic data: what all houses produce on a few days (paper, appendix)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pacpfl.data.pv import KINDS, MONTHS, HouseRecord, Panels
from pacpfl.data.weather import Weather
from pacpfl.errors import InputError
from pacpfl.report.style import COLOURS, Dash, grid, panels

DAYS = 5
# Green and blue as in the paper, and told apart without colours too.
LOOKS: dict[str, tuple[str, Dash]] = {
    "east": (COLOURS[2], "-"),
    "west": (COLOURS[0], "--"),
    "south": (COLOURS[0], "-"),
}


def houses_over_days(
    records: Sequence[HouseRecord],
    weather: Weather,
    facing: Panels,
    start: pd.Timestamp | None = None,
    days: int = DAYS,
) -> Figure:
    """Draw one line for each house over whole days from `start` (or the record's first of June) on."""
    local = weather.local
    first = _first_of_june(weather) if start is None else start.normalize()
    shown = np.flatnonzero((local >= first) & (local < first + pd.Timedelta(days=days)))
    if not records or len(shown) != 24 * days:
        raise InputError(
            f"{weather.source} with {len(records)} houses does not hold the {days} days from "
            f"{first:%Y-%m-%d} on; take days and houses that are there."
        )
    hours = ((local[shown] - first) / pd.Timedelta(hours=1)).to_numpy()
    figure, (axis,) = panels(1, 1, 2.9)
    kinds = KINDS[facing]
    for record in records:
        colour, dash = LOOKS[kinds[record.kind]]
        axis.plot(
            hours, record.output[shown], color=colour, linestyle=dash, linewidth=0.9, alpha=0.6
        )
    dates = pd.date_range(first, periods=days)
    axis.set_xticks(24 * np.arange(days + 1), [""] * (days + 1))
    axis.set_xticks(
        24 * np.arange(days) + 12, [f"{date.day} {date.month_name()}" for date in dates], minor=True
    )
    axis.tick_params(axis="x", which="minor", length=0)
    axis.set(xlim=(0, 24 * days), xlabel=str(first.year), ylabel="output (kW)")
    axis.set_ylim(bottom=0)
    grid(axis)
    handles = [
        Line2D([], [], color=LOOKS[kind][0], linestyle=LOOKS[kind][1], label=f"facing {kind}")
        for kind in kinds
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(kinds), handlelength=3)
    return figure


def _first_of_june(weather: Weather) -> pd.Timestamp:
    local = weather.local
    june = local[(local.month == MONTHS[0]) & (local.day == 1)]
    if not len(june):
        raise InputError(f"{weather.source} holds no June; say from which day to draw.")
    return june[0].normalize()
