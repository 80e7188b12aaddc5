"""The page of a study (several methods or settings, several seeds), from table.csv and study.json.

Next to the page stands the same as README.md, for those who read the folder where it is hosted.
"""

from __future__ import annotations

from pathlib import Path

from pacpfl import files
from reproduction.study_folder import (
    read_study,
)
from reproduction.study_plots import draw
from reproduction.study_tables import markdown, render


def write_study(folder: Path) -> Path:
    """Make `figures/*.png`, `figures/*.svg`, `README.md` and `report.html` in a study folder.

    Everything is computed before the first byte is written, and each file appears whole or
    not at all. The same study gives the same bytes.
    """
    study = read_study(folder)
    drawn = draw(study)
    page, text = render(study, drawn), markdown(study, drawn)
    for figure in drawn:
        files.write(folder / "figures" / f"{figure.name}.png", figure.png)
        files.write(folder / "figures" / f"{figure.name}.svg", figure.svg.encode())
    files.write(folder / "README.md", text.encode())
    files.write(folder / "report.html", page.encode())
    return folder / "report.html"
