"""Every code block of docs/python-api.md runs, in the order of the page."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import pytest
import sklearn

from pacpfl.estimators.settings import Size, regression_defaults, standardize_default

PAGE = Path(__file__).parents[2] / "docs" / "python-api.md"


@pytest.fixture
def settings_restored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The page sets what a notebook would: the compiler's cache, and scikit-learn's routing."""
    monkeypatch.setenv("PACPFL_CACHE_DIR", str(tmp_path / "programs"))
    names = ("jax_enable_x64", "jax_num_cpu_devices", "jax_compilation_cache_dir")
    names = (*names, "jax_persistent_cache_min_compile_time_secs")
    before = {name: jax.config.values[name] for name in names}
    with sklearn.config_context():
        yield
    for name, value in before.items():
        if jax.config.values[name] != value:
            jax.config.update(name, value)


def test_the_blocks_run(settings_restored):
    text = PAGE.read_text(encoding="utf-8")
    blocks = list(re.finditer(r"```python\n(.*?)```", text, re.DOTALL))
    assert len(blocks) >= 10
    names: dict[str, object] = {}
    for block in blocks:
        line = text[: block.start()].count("\n") + 1
        # Empty lines before it, so that an error names the page's line.
        exec(compile("\n" * line + block[1], str(PAGE), "exec"), names)


def test_the_table_of_defaults_is_true():
    text = PAGE.read_text(encoding="utf-8")
    few, many = (regression_defaults(Size(n, 100 * n, 100, 3)) for n in (9, 10))
    for row in (
        f"`{few['mean']}`, `{few['kernel']}` with learned scales | `{many['mean']}`, `{many['kernel']}`",
        f"{few['rounds']}, {few['learning_rate']} | {many['rounds']}, {many['learning_rate']}",
        f"{few['noise_spread']} | {many['noise_spread']}",
    ):
        assert row in text
    assert [standardize_default(Size(2, rows, 30, 3)) for rows in (58, 60)] == ["global", "client"]
