"""How every figure looks: ink, colours per method, and how a figure becomes a file.

Figures are drawn on nothing (transparent), and everything that is not data in the one colour
`INK`, which stands for "the colour of the text around". The page replaces it by
`currentColor` and the methods' colours by variables, so that one drawing serves light and dark.
"""

from __future__ import annotations

import io
import itertools
import re
import textwrap
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any, Literal, NamedTuple

from markupsafe import Markup
from matplotlib import style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter, StrMethodFormatter

INK = "#20262e"
WIDTH = 6.6  # inches; at 600 pixels the 9 point text is still 11 pixels high

# At least 3:1 against the page, and at least 14 CIELAB units apart with normal, protan, deutan
# and tritan sight. More than five methods share colours but not markers and dashes. The page
# shows the second row instead of the first where it is dark.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#9340e8", "#7d7480")
DARK_COLOURS = ("#45a6dc", "#f0904e", "#40dba4", "#9a78fa", "#b2969c")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")
Dash = Literal["-", "--", "-.", ":"] | tuple[float, tuple[float, ...]]
DASHES: tuple[Dash, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))

# These methods look the same in every report, whichever others a run holds.
KNOWN_METHODS = ("pacpfl", "vanilla", "pooled", "pfedgp", "fedavg", "mtl", "maml", "pfedbayes")

AXES_IN_INK = ("axes.edgecolor", "axes.labelcolor", "axes.titlecolor")
SETTINGS: dict[str, Any] = {
    **dict.fromkeys(("text.color", "xtick.color", "ytick.color", *AXES_IN_INK), INK),
    **dict.fromkeys(("axes.facecolor", "figure.facecolor", "savefig.facecolor"), "none"),
    **dict.fromkeys(("axes.linewidth", "xtick.major.width", "ytick.major.width"), 0.7),
    **dict.fromkeys(("font.size", "axes.labelsize"), 9.0),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 8.5),
    "font.family": "DejaVu Sans",
    "legend.frameon": False,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.formatter.useoffset": False,
    "axes.axisbelow": True,
    "text.parse_math": False,  # names may hold dollar signs
    "svg.fonttype": "none",  # text stays text: small, sharp, and any script can be shown
    "svg.hashsalt": "pacpfl",
}


class Look(NamedTuple):
    """What makes a method recognisable in every figure."""

    colour: str
    marker: str
    dash: Dash


def looks(methods: Collection[str]) -> dict[str, Look]:
    """Give each method a look: the known ones have their own, others take what is left."""
    taken = {name: KNOWN_METHODS.index(name) for name in methods if name in KNOWN_METHODS}
    free = (number for number in itertools.count() if number not in taken.values())
    numbers = [taken[name] if name in taken else next(free) for name in methods]
    each = ([kind[n % len(kind)] for n in numbers] for kind in (COLOURS, MARKERS, DASHES))
    return dict(zip(methods, map(Look, *each), strict=True))


@contextmanager
def drawing() -> Iterator[None]:
    """Make and save figures inside this block in the report's style, whatever the user has set."""
    with warnings.catch_warnings(), style.context(["default", SETTINGS]):
        # A name in a script the bundled font lacks shows boxes in the PNG, and fine in the page.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def panels(rows: int, columns: int, height: float, **options: object) -> tuple[Figure, list[Axes]]:
    """Make a figure of the report's width, with its axes in reading order."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, **options)  # type: ignore[call-overload]
    return figure, list(grid.flat)


def grid(axes: Axes, axis: str = "both") -> None:
    """Draw faint lines that guide the eye and survive both themes."""
    axes.grid(True, axis=axis, color=INK, alpha=0.12, linewidth=0.6)  # type: ignore[arg-type]


def logarithmic(axes: Axes, symmetric: bool = False) -> None:
    """Make the horizontal axis logarithmic, with few and plain labels; its label says so.

    A symmetric axis is straight between -1 and 1.
    """
    axes.set_xscale("symlog" if symmetric else "log", **{"linthresh": 1} if symmetric else {})
    axes.locator_params("x", numticks=5)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    label = axes.get_xlabel()
    bracket = ")" * label.endswith(")")
    axes.set_xlabel(f"{label.removesuffix(')')}, logarithmic{bracket}")


def legend(figure: Figure, handles: Sequence[Artist], length: float = 2.5) -> None:
    """Explain what is drawn, below the panels."""
    figure.legend(
        handles=handles, loc="outside lower center", ncols=min(4, len(handles)), handlelength=length
    )


def key(label: str, look: Look | None = None, **changes: Any) -> Line2D:
    """Make a line for the legend: a method's, or one in ink."""
    style: dict[str, Any] = {"color": INK, "markersize": 3.2, "linewidth": 1.5}
    if look is not None:
        style |= {"color": look.colour, "linestyle": look.dash, "marker": look.marker}
    return Line2D([], [], label=short(label), **(style | changes))


def short(name: str, length: int = 28) -> str:
    """Shorten a name so that it fits on an axis: one line, cut where it is too long."""
    line = " ".join(name.split())
    line = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
    return line if len(line) <= length else line[: length - 1] + "\N{HORIZONTAL ELLIPSIS}"


def wrapped(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(short(text, 10_000), width)) or " "


def as_png(figure: Figure) -> bytes:
    """Return the figure on white, without the date or the program's name inside."""
    target = io.BytesIO()
    figure.savefig(target, format="png", dpi=200, facecolor="white", metadata={"Software": None})
    # What is saved after it looks the same: finding the places again takes as long as drawing.
    figure.set_layout_engine("none")
    return target.getvalue()


def as_svg(figure: Figure) -> str:
    """Return the figure on nothing, the same text for the same numbers."""
    target = io.StringIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    figure.savefig(target, format="svg", metadata=nothing)
    return target.getvalue()


class Shown(NamedTuple):
    """A figure, where it stands, how to read it, and what it shows for those who cannot see it."""

    name: str  # of its files
    section: str
    title: str
    caption: str
    alternative: str
    figure: Figure


@dataclass(frozen=True)
class Drawn:
    """A figure as files and as a piece of the page, with how to read it and what it shows."""

    name: str
    section: str
    title: str
    caption: str
    alternative: str
    png: bytes
    svg: str

    @property
    def markup(self) -> Markup:
        """Return the inline drawing; matplotlib has escaped every text in it."""
        return Markup(inline(self.svg, self.name, self.alternative))


def inline(svg: str, name: str, alternative: str) -> str:
    """The `<svg>` element for the page: ink follows the text, ids stay unique, and those who
    cannot see it are told `alternative`.

    Only ids that something refers to are kept, with `name` before them, because a page holds
    many figures and an id may occur once. The root loses its fixed size and rules: the page's
    own style sheet sets both, and a style inside an inline figure would reach the whole page.
    """
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<style[^>]*>.*?</style>", "", svg, flags=re.S)
    used = set(re.findall(r"(?:url\(#|href=\"#)([^\")]+)", svg))
    svg = re.sub(r' id="([^"]+)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", svg)
    svg = re.sub(r"(url\(#|href=\"#)", rf"\g<1>{name}-", svg)
    svg = svg.replace(INK, "currentColor").replace("'DejaVu Sans'", "var(--figure-font)")
    for number, colour in enumerate(COLOURS):
        svg = svg.replace(colour, f"var(--colour-{number})")
    svg = re.sub(r"<[a-z][^>]*>", lambda m: _slim(m[0]), svg)
    opening = svg.index(">")
    root = re.sub(r'\s(width|height|xmlns|xmlns:xlink|version)="[^"]*"', "", svg[:opening])
    label = f' role="img" aria-label="{escape(alternative)}"'
    return root + label + re.sub(r"\n\s*(?=<)", "\n", svg[opening:])


def _slim(tag: str) -> str:
    """Round a tag to hundredths of a point, which nobody sees, and drop turns by nothing."""
    tag = re.sub(r"(\.\d\d)\d+", r"\1", tag).replace("xlink:href", "href")
    tag = re.sub(r' transform="rotate\(-?0 [^"]*\)"', "", tag)
    return re.sub(r"\s+", " ", tag)
