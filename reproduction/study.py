"""The page of a study (several methods or settings, several seeds), from table.csv and study.json.

Next to the page stands the same as README.md, for those who read the folder where it is hosted.
"""

from __future__ import annotations

from pathlib import Path

from pacpfl.errors import InputError
from pacpfl.report.page import write_whole
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
    try:
        (folder / "figures").mkdir(exist_ok=True)
        for figure in drawn:
            write_whole(folder / "figures" / f"{figure.name}.png", figure.png)
            write_whole(folder / "figures" / f"{figure.name}.svg", figure.svg.encode())
        write_whole(folder / "README.md", text.encode())
        write_whole(folder / "report.html", page.encode())
    except OSError as error:
        raise InputError(
            f"The report in {folder} cannot be written ({error.strerror or error}); "
            "make room or make the folder writable, and ask for the report again."
        ) from error
    return folder / "report.html"
