"""Every code block of docs/python-api.md runs, in the order of the page."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import pytest
import sklearn

from pacpfl.defaults import defaults
from pacpfl.types import Form

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


def form(clients: int, rows: int, features: int) -> Form:
    names = tuple(f"x{number}" for number in range(features))
    return Form(names, clients=clients, sizes=(rows // clients,) * clients)


def test_the_table_of_defaults_is_true():
    text = PAGE.read_text(encoding="utf-8")
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
