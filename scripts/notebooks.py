"""Runs the notebooks of docs/notebooks and stores what they print and draw.

    python scripts/notebooks.py [NAME ...]

It needs no Jupyter: a cell is executed as Jupyter would do it, in one namespace for the whole notebook,
with the value of its last line shown, every open figure drawn, and lines `!pacpfl ...` given to the
command line (in this process). Figures are stored as small PNG files without a date.

The cell with the tag "parameters" sets what makes a notebook long; whoever runs it again may give other
values. A digest of the code in the notebook's metadata tells whether the outputs belong to it.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import hashlib
import io
import json
import os
import re
import shlex
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "notebooks"
WIDTH = 96  # of the tables that commands print
Notebook = dict[str, Any]


def load(path: Path) -> Notebook:
    notebook: Notebook = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def store(path: Path, notebook: Notebook) -> None:
    text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8")


def code_cells(notebook: Notebook) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def source(cell: Mapping[str, Any]) -> str:
    return "".join(cell["source"])


def digest(notebook: Notebook) -> str:
    """Of all code: outputs that were made by other code are out of date."""
    code = "\n\0".join(source(cell) for cell in code_cells(notebook))
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def run(notebook: Notebook, parameters: Mapping[str, Any] | None = None) -> Notebook:
    """The notebook with new outputs, executed in an empty folder. An error in a cell is raised."""
    import matplotlib

    namespace: dict[str, Any] = {"__name__": "__main__", "__shell__": shell}
    cells = []
    number = 0
    with tempfile.TemporaryDirectory() as folder, matplotlib.rc_context(), _inside(folder):
        matplotlib.use("agg")
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                number += 1
                outputs = execute(source(cell), namespace)
                if "parameters" in cell["metadata"].get("tags", ()):
                    unknown = set(parameters or {}) - set(namespace)
                    if unknown:
                        raise KeyError(f"the parameters cell does not set {sorted(unknown)}")
                    namespace.update(parameters or {})
                cell = {**cell, "execution_count": number, "outputs": outputs}
            cells.append(cell)
    metadata = {**notebook["metadata"], "executed": digest(notebook)}
    return {**notebook, "cells": cells, "metadata": metadata}


def execute(code: str, namespace: dict[str, Any]) -> list[dict[str, Any]]:
    """What one cell prints, shows and draws, in the form a notebook keeps it."""
    body = ast.parse(commands(code))
    last = None
    if body.body and isinstance(body.body[-1], ast.Expr) and not code.rstrip().endswith(";"):
        last = ast.Expression(body.body.pop().value)  # type: ignore[attr-defined]
    text = io.StringIO()
    outputs = []
    with contextlib.redirect_stdout(text):
        exec(compile(body, "<cell>", "exec"), namespace)
        value = eval(compile(last, "<cell>", "eval"), namespace) if last is not None else None
    if text.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": _lines(text.getvalue())})
    if value is not None and not _is_drawing(value):
        outputs.append({"data": shown(value), "metadata": {}, "output_type": "display_data"})
    return outputs + figures()


def commands(code: str) -> str:
    """Jupyter's `!command {name}` lines as calls, names filled in."""
    return re.sub(r"(?m)^( *)!(.+)$", lambda m: f"{m[1]}__shell__(f{m[2]!r})", code)


def shell(line: str) -> None:
    """A `pacpfl` command, in this process: starting Python and JAX anew takes longer than most of them."""
    words = shlex.split(line)
    if words[0] != "pacpfl":
        raise ValueError(f"notebooks run pacpfl only, not {words[0]}")
    from pacpfl.cli.app import app

    app(words[1:], standalone_mode=False)


def shown(value: Any) -> dict[str, list[str]]:
    data = {"text/plain": _lines(repr(value))}
    html = getattr(value, "_repr_html_", lambda: None)()
    return {**data, "text/html": _lines(html)} if html else data


def figures() -> list[dict[str, Any]]:
    """Every open figure, drawn and closed."""
    from matplotlib import pyplot

    outputs = []
    for number in pyplot.get_fignums():
        drawn = {"image/png": base64.b64encode(picture(pyplot.figure(number))).decode() + "\n"}
        drawn["text/plain"] = _lines("<Figure>")  # type: ignore[assignment]
        outputs.append({"data": drawn, "metadata": {}, "output_type": "display_data"})
        pyplot.close(number)
    return outputs


def picture(figure: Any) -> bytes:
    """A PNG of at most 64 colours, a third of the size of the full one."""
    from PIL import Image

    full, small = io.BytesIO(), io.BytesIO()
    figure.savefig(full, format="png", dpi=110, facecolor="white", metadata={"Software": None})
    image = Image.open(full).convert("RGB")
    image.quantize(64, dither=Image.Dither.NONE).save(small, "png", optimize=True)
    return small.getvalue()


def _is_drawing(value: Any) -> bool:
    """Axes, lines and the like: the figure itself is shown."""
    first = value[0] if isinstance(value, (list, tuple)) and value else value
    return type(first).__module__.startswith("matplotlib")


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


@contextlib.contextmanager
def _inside(folder: str) -> Iterator[None]:
    before, columns = os.getcwd(), os.environ.get("COLUMNS")
    os.chdir(folder)
    os.environ["COLUMNS"] = str(WIDTH)
    try:
        yield
    finally:
        os.chdir(before)
        os.environ.pop("COLUMNS")
        if columns is not None:
            os.environ["COLUMNS"] = columns


def main(names: list[str]) -> None:
    for path in sorted(FOLDER.glob("*.ipynb")):
        if not names or path.stem in names:
            print(path.name, flush=True)
            try:
                store(path, run(load(path)))
            except Exception:
                traceback.print_exc()
                sys.exit(f"{path.name} was left as it was.")


if __name__ == "__main__":
    main(sys.argv[1:])
