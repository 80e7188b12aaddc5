"""The examples of docs/secure-aggregation.md run and print what their comments say."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "secure-aggregation.md"


def test_the_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "('site-0', 'site-1', 'site-3', 'site-4')"
    total = np.fromstring(lines[1].strip("[]"), sep=" ")
    assert np.abs(total - 0.8).max() <= 4 * 2.0**-21 + 1e-8
    assert lines[2] == "5815 32"
    epsilon = float(re.findall(r"epsilon=([\d.]+)", lines[3])[0])
    assert 3.99 < epsilon <= 4
