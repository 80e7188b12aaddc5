"""The notation page names every symbol of the paper's table, and only code that exists."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest

from pacpfl import config

# The paper's own table of parameters, its algorithms, and its measures.
SYMBOLS = """
n; n_2; T (script); m_i; D_i; S_i; m~_i; S~_i; H; l; P; Q*_i; beta; delta; epsilon_i; P (script); sigma_P;
Q* (script); upsilon; lambda; tau; eta; k; T; c; b; L; phi; Z^C_beta(P, S); Z^S_tau; alpha_kappa; k_SVGD;
G_i; G; gamma; epsilon; m_phi; k_phi; f_phi; sigma_phi; RSMSE; CE; H; q_h; h; a; x; y
"""


def rows(text: str) -> list[list[str]]:
    found = [line for line in text.splitlines() if re.match(r"\| (?!---|paper|symbol)", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found]


@pytest.fixture(scope="module")
def table(pages) -> list[list[str]]:
    return rows((pages.root / "docs" / "notation.md").read_text(encoding="utf-8"))


def resolve(name: str) -> Any:
    """A key of the configuration, or an attribute below `pacpfl`, fields of records included."""
    section, _, key = name.partition(".")
    if section in config.SECTIONS and {key, f"{key}_"} & set(vars(config.SECTIONS[section])):
        return key
    words = name.split(".")
    for count in range(len(words), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(["pacpfl", *words[:count]]))
        except ModuleNotFoundError:
            continue
        for word in words[count:]:
            if word in fields_of(found):
                return word
            found = getattr(found, word)
        return found
    raise AttributeError(f"pacpfl has no {name}")


def fields_of(found: Any) -> set[str]:
    """The annotated fields of a class, those of its bases included."""
    bases = found.__mro__ if isinstance(found, type) else ()
    return {name for base in bases for name in vars(base).get("__annotations__", ())}


def test_every_symbol_of_the_paper_has_a_row(table):
    listed = {symbol.strip() for row in table for symbol in re.split(r", (?![^(]*\))", row[0])}
    missing = {symbol.strip() for symbol in SYMBOLS.replace("\n", " ").split(";")} - listed
    assert not missing


def test_every_name_exists(table):
    names = [name for row in table for name in re.findall(r"`([^`]+)`", row[2])]
    names = [name for name in names if not name.startswith("pacpfl ")]  # a command
    assert len(names) > 60
    for name in names:
        resolve(name)


def test_every_row_has_three_cells_and_a_name(table):
    assert all(len(row) == 3 and all(row) and "`" in row[2] for row in table)


@pytest.mark.parametrize("name", ["train.tua", "hyper.Tau", "priors.gp.GPPrior.kernle", "nothing"])
def test_a_wrong_name_is_noticed(name):
    with pytest.raises(AttributeError):
        resolve(name)
