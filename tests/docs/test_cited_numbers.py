"""Numbers on the pages that give advice stand in the files that they link to or name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pacpfl.defaults import defaults
from pacpfl.types import Form

CONFIGURATIONS = (Path("src/pacpfl/configs"), Path("reproduction/configs"))
PAGES = ("README.md", "docs/index.md", "docs/choosing.md")


def sections(text: str) -> dict[str, str]:
    parts = re.split(r"(?m)^## (.+)$", text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def sources(section: str, page: Path, root: Path) -> list[Path]:
    """Pages that a section links to, and configurations that it names."""
    links = re.findall(r"\]\(([^)#\s]+\.md)[^)]*\)", section)
    named = re.findall(r"`(?:src/pacpfl/configs/|reproduction/configs/)?([\w/-]+\.toml)`", section)
    files = [root / folder / name for folder in CONFIGURATIONS for name in named]
    return [page.parent / link for link in links] + [file for file in files if file.exists()]


def numbers(section: str) -> set[str]:
    """Decimal numbers outside of code."""
    text = re.sub(r"`[^`]*`|```.*?```", "", section, flags=re.DOTALL)
    return set(re.findall(r"(?<![\d.\w])\d+\.\d+(?![\d.]*\w)", text))


def missing(section: str, files: list[Path]) -> set[str]:
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    return {n for n in numbers(section) if not re.search(rf"(?<![\d.]){re.escape(n)}(?!\d)", text)}


@pytest.mark.parametrize("page", PAGES)
def test_every_decimal_number_stands_in_a_file_that_is_cited(page, pages):
    path = pages.root / page
    checked = 0
    for title, section in sections(path.read_text(encoding="utf-8")).items():
        files = sources(section, path, pages.root)
        measured = {n for n in numbers(section) if len(n.partition(".")[2]) >= 3}
        assert files or not measured, f"{page}, {title}: {measured} without a source"
        if files:
            checked += len(numbers(section))
            assert not missing(section, files), f"{page}, {title}"
    assert checked >= 10


def test_a_number_of_nobody_is_noticed(tmp_path):
    (tmp_path / "results.md").write_text("| k = 1 | 0.454 | 12.34 |")
    section = "It is 0.454, 2.34 and 0.45 ([results](results.md)); `0.999` is code."
    files = sources(section, tmp_path / "page.md", tmp_path)
    assert files == [tmp_path / "results.md"]
    assert missing(section, files) == {"2.34", "0.45"}


def form(clients: int, rows: int, features: int) -> Form:
    names = tuple(f"x{number}" for number in range(features))
    return Form(names, clients=clients, sizes=(rows // clients,) * clients)


def test_the_table_of_defaults_of_the_estimators_is_true(pages):
    text = (pages.root / "docs" / "python-api.md").read_text(encoding="utf-8")
    few, one, some, many = (
        defaults(form(*sizes)) for sizes in ((9, 900, 3), (10, 1200, 1), (10, 290, 3), (10, 300, 3))
    )
    taus = [defaults(form(10, rows, 3)).train.tau for rows in (1200, 1300, 10**6)]
    assert many.train.tau == taus[0] > taus[1] > taus[2]
    scales = {"learned": ", learned scales", "fixed": ""}
    three = (few, one, many)
    kernels = [f"`{each.prior.kernel}`{scales[each.prior.output_scale]}" for each in three]
    rates = [f"{each.train.rounds}, {each.train.learning_rate}" for each in three]
    means = f"`{many.prior.mean}`; `{some.prior.mean}` below 100 rows for each feature"
    for row in (
        f"| `mean` | `{few.prior.mean}` | `{one.prior.mean}` | {means} |",
        f"| `kernel` | {' | '.join(kernels)} |",
        f"| `tau` | 1 | 1 | {taus[0]}; from 1,200 rows on less, down to {taus[2]} |",
        f"| `hyper_std` | {' | '.join(str(each.train.hyper_std) for each in three)} |",
        f"| `rounds`, `learning_rate` | {' | '.join(rates)} |",
        f"hyper-prior | {' | '.join(str(each.prior.noise_spread) for each in three)} |",
    ):
        assert row in text
    assert few.train.tau == one.train.tau == 1
