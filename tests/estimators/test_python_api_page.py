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
    few, one, some, many = (
        regression_defaults(Size(clients, rows, 100, features))
        for clients, rows, features in ((9, 900, 3), (10, 1200, 1), (10, 299, 3), (10, 300, 3))
    )
    at_most, less, least = (
        regression_defaults(Size(10, rows, 100, 3))["tau"] for rows in (1200, 1300, 10**6)
    )
    assert many["tau"] == at_most > less > least
    assert many | {"mean": some["mean"]} == some
    scales = {"learned": ", learned scales", "fixed": ""}
    kernels = [f"`{each['kernel']}`{scales[each['output_scale']]}" for each in (few, one, many)]
    rates = [f"{each['rounds']}, {each['learning_rate']}" for each in (few, one, many)]
    falling = f"{at_most}; from 1,200 rows on less, down to {least}"
    means = f"`{many['mean']}`; `{some['mean']}` below 100 rows for each feature"
    for row in (
        f"| `mean` | `{few['mean']}` | `{one['mean']}` | {means} |",
        f"| `kernel` | {' | '.join(kernels)} |",
        f"| `tau` | {few['tau']:g} | {one['tau']:g} | {falling} |",
        f"| `hyper_std` | {few['hyper_std']} | {one['hyper_std']} | {many['hyper_std']} |",
        f"| `rounds`, `learning_rate` | {' | '.join(rates)} |",
        f"hyper-prior | {few['noise_spread']} | {one['noise_spread']} | {many['noise_spread']} |",
    ):
        assert row in text
    assert [standardize_default(Size(2, rows, 30, 3)) for rows in (58, 60)] == ["global", "client"]
