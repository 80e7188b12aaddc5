"""Play small runs of every kind and reduce each to numbers that any change of behaviour would alter.

`python tests/golden/play.py` prints them as JSON, `make golden` stores them in numbers.json. The digests
are of the bits: they hold on the machine and with the versions that made them.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

HERE = Path(__file__).parent
Numbers = dict[str, list[float]]


def write_sites(folder: Path) -> None:
    """One table of five sites whose output depends on a number, a category and the hour."""
    rng = np.random.default_rng(17)
    lines = ["site,time,load,panel,output"]
    for number, site in enumerate(("alpha", "beta", "gamma", "delta", "eps")):
        for row in range(24):
            load, panel = rng.normal(number, 1 + number), ("old", "new")[rng.integers(2)]
            output = 2 * load + 3 * (panel == "new") + np.sin(row / 4) + rng.normal(0, 0.3)
            cell = "" if row == 5 else f"{load:.4f}"
            lines.append(
                f"{site},2026-03-{1 + row // 12:02d} {row % 12:02d}:00,{cell},{panel},{output:.4f}"
            )
    (folder / "sites.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    newcomer = [line.replace("eps,", "zeta,") for line in lines if line.startswith("eps,")]
    (folder / "newcomer.csv").write_text(
        "\n".join([lines[0], *newcomer[:10]]) + "\n", encoding="utf-8"
    )
    (folder / "questions.csv").write_text(
        "\n".join([lines[0], *newcomer[10:]]) + "\n", encoding="utf-8"
    )


def in_short(values: np.ndarray) -> list[float]:
    """Four sums of an array, one of them with weights that tell every place from every other."""
    flat = np.nan_to_num(np.asarray(values, np.float64).ravel(), posinf=1e6, neginf=-1e6)
    places = np.cos(1.0 + np.arange(flat.size) ** 1.1)
    return [
        float(flat.size),
        float(flat.sum()),
        float(np.sqrt((flat**2).sum())),
        float(flat @ places),
    ]


def columns(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """The columns of a CSV file, for each method apart; texts are left out."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for method in sorted({row.get("method", "") for row in rows}):
        own = [row for row in rows if row.get("method", "") == method]
        for name in own[0]:
            try:
                values = np.array([float(row[name] or "nan") for row in own])
            except ValueError:
                continue
            yield f"{path.stem}/{method}/{name}", values


def of_folder(folder: Path) -> dict[str, np.ndarray]:
    """Particles, curves and every client's measures of a run folder."""
    arrays: dict[str, np.ndarray] = {}
    for path in sorted(
        set(folder.glob("checkpoint*.safetensors")) - set(folder.glob("*.before.*"))
    ):
        for name, values in load_file(path).items():
            if name.startswith("history/") or "particles" in name:
                arrays[f"{path.stem}/{name.rpartition('.')[2]}"] = values
    return arrays | dict(columns(folder / "clients.csv"))


def of_certificates(folder: Path) -> dict[str, np.ndarray]:
    document = json.loads((folder / "certificates.json").read_text(encoding="utf-8"))
    numbers: list[float] = []

    def collect(value: Any) -> None:
        if isinstance(value, dict):
            for key in sorted(value):
                collect(value[key])
        elif isinstance(value, list):
            for item in value:
                collect(item)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            numbers.append(float(value))

    collect(document)
    return {"certificates": np.sort(np.array(numbers))}


def command(*arguments: str) -> None:
    """Call `pacpfl ...` in this process; what it prints is of no interest here."""
    from pacpfl.cli import main

    sys.argv = ["pacpfl", *arguments]
    with redirect_stdout(io.StringIO()):
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise


def play(name: str, folder: Path) -> dict[str, np.ndarray]:
    """Play one run in `folder` and return its arrays."""
    import jax

    from pacpfl import config
    from pacpfl.run import run

    out = folder / name
    settings = config.load_file(HERE / "runs" / f"{name}.toml")
    jax.config.update("jax_enable_x64", settings.run.precision == "float64")
    run(settings, out)
    arrays = of_folder(out)
    if name == "plain":
        command("certify", str(out))
        arrays |= of_certificates(out)
    if name == "tables":
        model, answers = str(folder / "zeta.safetensors"), folder / "predictions.csv"
        command("personalize", "--run", str(out), "--data", "newcomer.csv", "--out", model)
        command("predict", "--model", model, "--data", "questions.csv", "--out", str(answers))
        arrays |= dict(columns(answers))
    return arrays


def digest(arrays: dict[str, np.ndarray]) -> str:
    """One name for all bits of these arrays."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        total.update(
            f"{name} {arrays[name].shape} ".encode() + np.ascontiguousarray(arrays[name]).tobytes()
        )
    return total.hexdigest()[:16]


def everything(tell: Callable[[str], None] = lambda name: None) -> dict[str, Any]:
    """Play all runs in a folder that is gone afterwards."""
    runs: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        write_sites(Path(place))
        os.chdir(place)
        for path in sorted((HERE / "runs").glob("*.toml")):
            tell(path.stem)
            arrays = play(path.stem, Path(place))
            numbers = {key: in_short(values) for key, values in sorted(arrays.items())}
            runs[path.stem] = {"digest": digest(arrays), "numbers": numbers}
        os.chdir(HERE)
    return runs


def as_text(runs: dict[str, Any]) -> str:
    """Render numbers.json: a line for each array, so that a change is a readable diff."""
    blocks = []
    for name, run in runs.items():
        lines = [
            f"    {json.dumps(key)}: [{', '.join(f'{value:.10g}' for value in values)}]"
            for key, values in run["numbers"].items()
        ]
        numbers = ",\n".join(lines)
        blocks.append(
            f'{json.dumps(name)}: {{"digest": "{run["digest"]}", "numbers": {{\n{numbers}\n  }}}}'
        )
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def main(target: str | None = None) -> None:
    """Store the numbers in a file, or print them."""
    text = as_text(everything(lambda name: print(name, file=sys.stderr)))
    if target:
        Path(target).write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main(*(str(Path(argument).absolute()) for argument in sys.argv[1:2]))
