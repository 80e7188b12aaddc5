"""What is written down is what was measured."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from benchmarks import harness
from benchmarks.results import Sheet, from_table, sheet_lines, write_results

TIMES = {"peer": np.array([1.5, 1.0, 2.0]), "ours": np.array([0.0125, 0.0125, 0.0125])}
SHEET = from_table(harness.summarise(TIMES, "peer", "k 4, c 24"), "A note.")


def test_times_become_milliseconds_and_ratios() -> None:
    assert SHEET.title == "k 4, c 24"
    assert SHEET.columns[-1] == "times faster than peer"
    assert SHEET.rows[0] == pytest.approx(("peer", 1500.0, 1250.0, 1750.0, 1.0))
    assert SHEET.rows[1] == pytest.approx(("ours", 12.5, 12.5, 12.5, 120.0))
    assert SHEET.note == "3 interleaved calls each. A note."


def test_tables_have_three_digits_and_whole_counts() -> None:
    values = {56.78: "56.8", 0.012345: "0.0123", 1.0: "1.00", 987654.0: "987,654", 0.0: "0"}
    sheet = Sheet("t", ("name", "n", "ms"), tuple(("a", 100_000, value) for value in values))
    expected = [f"| a | 100,000 | {text} |" for text in values.values()]
    assert sheet_lines(sheet) == ["| name | n | ms |", "| --- | ---: | ---: |", *expected]


def test_results_are_written_whole_with_date_machine_and_command(tmp_path: Path) -> None:
    machine = harness.describe_machine()
    date = datetime(2026, 11, 15, 7, 30, tzinfo=UTC)
    markdown, data = write_results(tmp_path / "new", [SHEET], machine, "make bench", date)
    text = markdown.read_text(encoding="utf-8")
    for words in (
        *("2026-11-15 07:30 UTC", "Command: `make bench`", f"numpy {np.__version__}"),
        f"{machine['processor']}, {machine['cores']} cores, {machine['device']}",
        "\n## k 4, c 24\n\n3 interleaved calls each. A note.\n\n| implementation |",
        "| ours | 12.5 | 12.5 | 12.5 | 120 |\n",
        "| peer | 1,500 | 1,250 | 1,750 | 1.00 |\n",
    ):
        assert words in text
    read = json.loads(data.read_text(encoding="utf-8"))
    assert read["date"] == "2026-11-15T07:30:00+00:00"
    assert read["machine"] == machine
    assert read["command"] == "make bench"
    assert read["tables"][0]["rows"][1]["times faster than peer"] == pytest.approx(120.0)
    assert {path.name for path in markdown.parent.iterdir()} == {"results.json", "results.md"}
