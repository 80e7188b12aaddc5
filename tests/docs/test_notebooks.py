"""The notebooks: stored outputs that belong to their code, and code that runs."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patience

from scripts import notebooks

# What makes each quick: the values of its parameters cell.
OPTIONS = "--set rounds=2 --set prior.mean=zero --set 'methods=[\"pacpfl\"]'"
TINY = {
    "polynomial": {"clients": 4, "rounds": 2, "particles": 2},
    "pv": {"houses": 3, "newcomers": 1, "hours": 20, "rounds": 2},
    "own_data": {"sites": 3, "rows": 12, "options": OPTIONS},
}
LARGEST = 100_000  # bytes of a notebook
AGAIN = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from scripts import notebooks
for name, parameters in json.loads(sys.argv[2]).items():
    made = notebooks.run(notebooks.load(notebooks.FOLDER / f"{name}.ipynb"), parameters)
    print(name, json.dumps([len(cell["outputs"]) for cell in notebooks.code_cells(made)]))
"""


@pytest.fixture(params=sorted(TINY))
def path(request: pytest.FixtureRequest) -> Path:
    return notebooks.FOLDER / f"{request.param}.ipynb"


def test_there_are_no_others():
    assert {path.stem for path in notebooks.FOLDER.glob("*.ipynb")} == set(TINY)


def test_it_was_executed_in_order_by_the_code_it_holds(path):
    notebook = notebooks.load(path)
    cells = notebooks.code_cells(notebook)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {output["output_type"] for cell in cells for output in cell["outputs"]}
    assert kinds == {"stream", "display_data"}  # and no error
    assert notebook["metadata"]["executed"] == notebooks.digest(notebook), "run: make notebooks"


def test_it_is_small_and_names_no_folder_of_a_machine(path):
    assert path.stat().st_size < LARGEST
    notebook = notebooks.load(path)
    outputs = [o for cell in notebooks.code_cells(notebook) for o in cell["outputs"]]
    figures = [o["data"].pop("image/png") for o in outputs if "image/png" in o.get("data", {})]
    assert figures
    assert all(base64.b64decode(figure).startswith(b"\x89PNG") for figure in figures)
    words = json.dumps(notebook)
    assert not re.search(r"/(home|root|work|tmp|var|opt|Users)/|[A-Z]:\\\\", words)


def test_every_figure_is_told_in_words(path):
    """Its cell begins with a comment: the page's text for those who do not see it."""
    for cell in notebooks.code_cells(notebooks.load(path)):
        if any("image/png" in output.get("data", {}) for output in cell["outputs"]):
            assert notebooks.source(cell).startswith("# ")


def test_all_cells_run_again():
    root = notebooks.FOLDER.parents[1]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", AGAIN, str(root), json.dumps(TINY)],
        env=os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
        capture_output=True,
        text=True,
        timeout=patience(240),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for line in done.stdout.splitlines():
        name, counts = line.split(" ", 1)
        stored = notebooks.code_cells(notebooks.load(notebooks.FOLDER / f"{name}.ipynb"))
        assert json.loads(counts) == [len(cell["outputs"]) for cell in stored], name
    assert len(done.stdout.splitlines()) == len(TINY)


def test_a_cell_shows_what_jupyter_would():
    names: dict[str, object] = {"__shell__": lambda line: print(f"<{line}>")}
    (printed, value) = notebooks.execute("a = 2\nprint('one')\na + 1", names)
    assert printed == {"name": "stdout", "output_type": "stream", "text": ["one\n"]}
    assert value["data"] == {"text/plain": ["3"]}
    assert notebooks.execute("a + 1;", names) == []
    (said,) = notebooks.execute("!pacpfl run --set rounds={a}", names)
    assert said["text"] == ["<pacpfl run --set rounds=2>\n"]
    with pytest.raises(ZeroDivisionError):
        notebooks.execute("1 / 0", names)
    with pytest.raises(ValueError, match="pacpfl only"):
        notebooks.shell("rm -r folder")


def test_parameters_that_no_cell_sets_are_refused():
    cell = {"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": ["rounds = 9"]}
    notebook = {"cells": [cell, {**cell, "metadata": {}, "source": ["rounds"]}], "metadata": {}}
    made = notebooks.run(notebook, {"rounds": 3})
    assert made["cells"][1]["outputs"][0]["data"]["text/plain"] == ["3"]
    with pytest.raises(KeyError, match="round"):
        notebooks.run(notebook, {"round": 3})
