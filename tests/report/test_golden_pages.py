"""The wording of the page and the terminal: run folders, and what is said about them.

These pages are the only tests of wording: `make golden` writes them again, and their diff is reviewed.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from folders import changing, make_class_run, make_document, make_run
from reading import Element, read_page
from rich.console import Console
from safetensors.numpy import load_file, save_file

from pacpfl.report import page, terminal
from pacpfl.report.folder import read_run
from pacpfl.report.sentences import diversity, privacy

GOLDEN = Path(__file__).parents[1] / "golden" / "pages"
CLIENTS = 8  # whose panels are written out


def mixture(folder: Path) -> None:
    """Two kinds of clients, with certificates: nothing to warn of but single clients."""
    make_run(folder, components=2, clients=6)
    (folder / "certificates.json").write_text(json.dumps(make_document()))


def digits(folder: Path) -> None:
    """Classes, with an over-confident baseline."""
    make_class_run(folder)


def private(folder: Path) -> None:
    """Private, with noise from a seed, and everything that can be warned of."""
    facts = {
        "mode": "gaussian", "private": False, "epsilon": 1.9, "delta": 1e-5, "unit": "client",
        "adjacency": "add-remove", "accountant": "Renyi", "budget": 2.0, "rounds_released": 1503,
        "rounds_planned": 1600, "out_of_budget": True,
    }  # fmt: skip
    changes = {
        "privacy": facts, "skipped_steps": 7, "lambda_condition": False,
        "diversity": {"value": 0.0012, "at_start": 0.9, "collapsed": True},
    }  # fmt: skip
    make_run(folder, features=2, clients=5, test=12, changes=changes, methods=("pacpfl", "pooled"))
    with changing(folder / "run.json") as record:
        record["status"] = "stopped"
        record["clients"]["samples"] = {"min": 3, "median": 10, "max": 61}
    table = pd.read_csv(folder / "clients.csv")
    table.loc[:1, ["samples", "coverage_90"]] = 4, 0.25
    table.to_csv(folder / "clients.csv", index=False)


def worse(folder: Path) -> None:
    """Trained as the paper prints it, and worse than going alone."""
    make_run(folder, clients=9, methods=("pacpfl", "vanilla"), groups=("existing",))
    with changing(folder / "run.json") as record:
        record["methods"]["pacpfl"]["privacy"] = {
            "mode": "paper", "private": False, "epsilon": 4.0, "delta": 0.0, "unit": "client",
            "adjacency": "replace", "accountant": "none: no guarantee", "budget": 4.0,
            "rounds_released": 1500, "rounds_planned": 1500, "out_of_budget": False,
        }  # fmt: skip
    table = pd.read_csv(folder / "clients.csv")
    errors = 1 + 0.01 * np.arange(9)
    table["rsmse"] = np.concatenate([1.3 * errors, errors])
    table["coverage_90"] = 0.8
    table.to_csv(folder / "clients.csv", index=False)
    with changing(folder / "metrics.json") as measured:
        for method, factor in (("pacpfl", 1.3), ("vanilla", 1.0)):
            measured[method]["existing"]["rsmse"]["mean"] = factor * errors.mean()
            measured[method]["existing"]["coverage_90"]["mean"] = 0.8
    arrays = load_file(folder / "arrays.safetensors")
    arrays["gain/vanilla/existing"] = np.array([(60.0, -30.0, 30.0 + n) for n in range(9)])
    save_file(arrays, folder / "arrays.safetensors")


PAGES: dict[str, Callable[[Path], None]] = {
    made.__name__: made for made in (mixture, digits, private, worse)
}


def lines(element: Element) -> Iterator[str]:
    """What people read in an element, as Markdown."""
    for child in element.children:
        if isinstance(child, str) or child.tag in ("svg", "script", "button", "form", "noscript"):
            continue
        if child.attributes.get("id") in ("details", "chosen", "panel"):
            continue  # what run.json says, and what is empty until a client is opened
        if child.tag in ("h1", "h2", "h3"):
            yield f"\n{'#' * int(child.tag[1])} {child.text}\n"
        elif child.tag in ("p", "caption", "figcaption", "dd", "summary"):
            yield child.text + ("\n" if child.tag in ("p", "figcaption") else "")
        elif child.tag == "dt":
            yield f"**{child.text}**"
        elif child.tag == "figure":
            yield from lines(child)
            yield f"[{child.one('svg').attributes['aria-label']}]\n"
        elif child.tag == "tr":
            yield "| " + " | ".join(c.text for c in child.children if isinstance(c, Element)) + " |"
        else:
            yield from lines(child)


def panels(data: dict[str, Any]) -> Iterator[str]:
    yield "\n## Panels of clients\n"
    for client in data["clients"][:CLIENTS]:
        yield f"\n### {client['name']}\n"
        yield from (f"- {text}" for text in (*client["words"], *client["warnings"]))


@pytest.mark.parametrize("name", PAGES)
def test_the_page_reads_as_it_was_reviewed(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    PAGES[name](folder)
    run = read_run(folder)
    read = read_page(page.render(run, page.draw(run)))
    (data,) = read.all("script", type="application/json")
    text = [f"The page of a run: {PAGES[name].__doc__}", *lines(read.one("body"))]
    text += [*panels(json.loads(str(data.children[0]))), "\n## Terminal\n"]
    text += [text for entry in run.methods.values() for text in (diversity(entry), privacy(entry))]
    if run.certificates is not None:
        console = Console(width=200, record=True, file=io.StringIO(), highlight=False)
        terminal.print_certificates(run.certificates, console)
        text += ["```text", *(line.rstrip() for line in console.export_text().splitlines()), "```"]
    written = re.sub(r"\n{3,}", "\n\n", "\n".join(text) + "\n")
    path = GOLDEN / f"{name}.md"
    if os.environ.get("PACPFL_GOLDEN") == "write":
        path.write_text(written, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == written, "look at the diff of `make golden`"
