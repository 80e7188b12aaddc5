"""What CONTRIBUTING shows how to add, as files of a package that is not ours."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PAGE = Path(__file__).parents[1] / "CONTRIBUTING.md"
BLOCK = re.compile(r"(?ms)^```\w+\n# (\S+)\n(.*?)^```$")


def install(folder: Path) -> None:
    """Write all recipes into the folder, which then holds a distribution with their entry points."""
    files = dict(BLOCK.findall(PAGE.read_text(encoding="utf-8")))
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    about = folder / "their_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    points = tomllib.loads(files["pyproject.toml"])["project"]["entry-points"]
    lines = [
        line
        for group, names in points.items()
        for line in (f"[{group}]", *(f"{name} = {place}" for name, place in names.items()))
    ]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
