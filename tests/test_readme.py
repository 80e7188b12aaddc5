"""What the README shows works."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_python_example_runs_and_its_interval_covers_most_points(capsys):
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(block, "README.md", "exec"), {})
    share = int(re.fullmatch(r"(\d+)% inside the 90% interval\n", capsys.readouterr().out)[1])
    assert 60 <= share <= 100
