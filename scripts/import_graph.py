"""Who imports whom in the package, and a picture of it: `python scripts/import_graph.py`.

The sources are parsed, not imported, so that an import inside of a function counts too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "pacpfl"
PICTURE = ROOT / "docs" / "assets" / "imports.svg"

Graph = Mapping[str, set[str]]  # from who imports to what is imported

# Of the picture, in pixels; text in a font of 12 is about 7.2 a letter.
WIDTH, ROW, CHIP, LETTER, GAP = 860, 62, 26, 7.2, 14


class Module(NamedTuple):
    """One source file: its dotted name below pacpfl ("" for the package itself) and its text."""

    name: str
    text: str
    is_package: bool = False

    @property
    def part(self) -> str:
        """The module or package right below pacpfl that it belongs to."""
        return self.name.split(".")[0] or "__init__"


def modules() -> Iterator[Module]:
    for path in sorted(PACKAGE.rglob("*.py")):
        names = path.relative_to(PACKAGE).with_suffix("").parts
        is_package = names[-1] == "__init__"
        name = ".".join(names[:-1] if is_package else names)
        yield Module(name, path.read_text(encoding="utf-8"), is_package)


def imports(module: Module) -> Iterator[tuple[int, str]]:
    """Yield line and absolute dotted name of all that is imported; of `from a import b` it is a.b."""
    package = ["pacpfl", *filter(None, module.name.split("."))]
    if not module.is_package:
        package.pop()
    for node in ast.walk(ast.parse(module.text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            origin = package[: len(package) - node.level + 1] if node.level else []
            origin = [*origin, *filter(None, (node.module or "").split("."))]
            for alias in node.names:
                yield node.lineno, ".".join([*origin, alias.name])


def without_types(module: Module) -> Module:
    """Leave out what is imported for annotations alone, and so never when the code runs."""
    text = re.sub(r"(?m)^if TYPE_CHECKING:\n((    .*)?\n)*", "", module.text)
    return module._replace(text=text)


def import_graph(of: list[Module]) -> dict[str, set[str]]:
    """Return which modules of the package each one imports, in its functions, too."""
    names = {module.name for module in of}

    def home(name: str) -> str | None:
        """Return the module that an absolute name stands in; None if it is not ours."""
        if name.split(".")[0] != "pacpfl":
            return None
        inner = name.removeprefix("pacpfl").removeprefix(".")
        while inner not in names:
            inner = inner.rpartition(".")[0]
        return inner

    return {
        module.name: {target for _, name in imports(module) if (target := home(name)) is not None}
        - {module.name}
        for module in of
    }


def part_graph(of: list[Module]) -> dict[str, set[str]]:
    """Return which parts of the package each part imports; the package itself re-exports the API."""
    graph: dict[str, set[str]] = {module.part: set() for module in of}
    for name, targets in import_graph(of).items():
        part = name.split(".")[0] or "__init__"
        graph[part] |= {target.split(".")[0] or "__init__" for target in targets} - {part}
    return graph


def cycle(graph: Graph) -> list[str]:
    """Return one cycle of a graph, its first module again at the end; empty where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def heights(graph: Graph) -> dict[str, int]:
    """Return how many imports lie between each part and one that imports nothing, at most."""
    found: dict[str, int] = {}
    for part in TopologicalSorter(graph).static_order():
        found[part] = max((found[target] + 1 for target in graph[part]), default=0)
    return found


def direct(graph: Graph) -> dict[str, set[str]]:
    """Leave out every import that a longer way through other parts implies."""
    below: dict[str, set[str]] = {}
    for part in TopologicalSorter(graph).static_order():
        below[part] = graph[part].union(*(below[target] for target in graph[part]))
    return {
        part: targets - set().union(*(below[target] for target in targets))
        for part, targets in graph.items()
    }


def places(graph: Graph) -> dict[str, tuple[float, float]]:
    """Return the centre of each part's chip: imports lead down, to what lies near."""
    height = heights(graph)
    top = max(height.values())
    found: dict[str, tuple[float, float]] = {}
    for level in range(top + 1):

        def across(part: str) -> tuple[float, str]:
            below = [found[target][0] for target in graph[part]]
            return (sum(below) / len(below) if below else 0.0, part)

        row = sorted((part for part in graph if height[part] == level), key=across)
        sizes = [chip_width(part) for part in row]
        spare = (WIDTH - sum(sizes)) / (len(row) + 1)
        x = spare
        for part, size in zip(row, sizes, strict=True):
            found[part] = (x + size / 2, (top - level) * ROW + CHIP)
            x += size + spare
    return found


def chip_width(part: str) -> float:
    return LETTER * len(part) + GAP


def picture(graph: Graph) -> str:
    """Return the graph as SVG, in colours that can be read on white and on black."""
    edges, at = direct(graph), places(direct(graph))
    bottom = max(y for _, y in at.values()) + CHIP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom}" role="img" '
        'font-family="ui-monospace, Consolas, monospace" font-size="12" text-anchor="middle">',
        "<title>Which parts of pacpfl import which: every line leads down</title>",
        '<g fill="none" stroke="#7d8b99" stroke-opacity="0.75">',
    ]
    for part in sorted(edges):
        x, y = at[part]
        for target in sorted(edges[part]):
            u, v = at[target]
            y0, y1 = y + CHIP / 2, v - CHIP / 2
            bend = (y0 + y1) / 2
            path = f"M{x:.0f} {y0:.0f}C{x:.0f} {bend:.0f} {u:.0f} {bend:.0f} {u:.0f} {y1:.0f}"
            lines.append(f'<path d="{path}"/>')
    lines.append("</g>")
    packages = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    for part in sorted(at):
        (x, y), width = at[part], chip_width(part)
        colour = "#bfe0f5" if part in packages else "#f3e3c3"
        lines.append(
            f'<rect x="{x - width / 2:.0f}" y="{y - CHIP / 2:.0f}" width="{width:.0f}" '
            f'height="{CHIP}" rx="5" fill="{colour}" stroke="#55636f"/>'
            f'<text x="{x:.0f}" y="{y + 4:.0f}" fill="#10202c">{escape(part)}</text>'
        )
    return "\n".join([*lines, "</svg>", ""])


def drawn() -> str:
    """Return the picture of the package as it is now, without the two files at its door."""
    graph = part_graph([without_types(module) for module in modules()])
    door = {"__init__", "__main__"}
    return picture({part: to - door for part, to in graph.items() if part not in door})


if __name__ == "__main__":
    PICTURE.write_text(drawn(), encoding="utf-8")
