"""What every registered method promises, ours and those of other packages."""

from __future__ import annotations

import sys
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import compiled
from recipes import install

from pacpfl import config as configuration
from pacpfl.config import Config, method_identity, override
from pacpfl.errors import InputError
from pacpfl.methods.registry import build_method, entries, entry, named
from pacpfl.types import Data, Form, Probabilities

SMALL = ["particles=2", "data.clients=3", "network.widths=[4]", "prior.mean_widths=[3]",
         "prior.kernel_widths=[3]", "alone.steps=3", "train.rounds=4"]  # fmt: skip
CONFIG = override(Config(), SMALL)
FORMS = {
    "numbers": Form(("a", "b"), clients=3, sizes=(6, 6, 6)),
    "classes": Form(("a", "b"), classes=3, clients=3, sizes=(6, 6, 6)),
}
IMAGES = Form(tuple(map(str, range(20))), classes=3, shape=(5, 4), clients=3, sizes=(6, 6, 6))
CASES = [(task, name) for task in FORMS for name in named(task)]  # type: ignore[arg-type]
every_case = pytest.mark.parametrize(("task", "name"), CASES)
# PAC-PFL counts particles instead of clients: tests/methods/test_pacpfl.py.
BY_CLIENTS = [(t, n) for t, n in CASES if n in named(learns="in rounds") and n != "pacpfl"]
KEY = jax.random.key(0)
AT = np.linspace(-1, 1, 8).reshape(4, 2)


def make_data(task: str, dtype: Any = jnp.float32, seed: int = 0) -> Data:
    random = np.random.default_rng(seed)
    y = random.normal(size=6) if task == "numbers" else random.integers(0, 3, 6)
    x = random.normal(size=(6, 20 if task == "images" else 2))
    return Data(jnp.asarray(x, dtype), jnp.asarray(y, dtype), jnp.arange(6) < 5)


@every_case
def test_equal_settings_make_equal_methods(task: str, name: str) -> None:
    """The engine passes methods as static arguments: equal ones are compiled once."""
    one, two = (build_method(name, override(CONFIG, [f"seed={s}"]), FORMS[task]) for s in (1, 2))
    assert one == two and hash(one) == hash(two)
    assert one.central == (entry(name).learns == "from pooled data")


@pytest.mark.parametrize(
    ("task", "name"), [*CASES, *(("images", name) for name in ("pacpfl", "pfedgp", "vanilla"))]
)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_a_round_keeps_shapes_and_precision_and_predicts(task: str, name: str, dtype: Any) -> None:
    """Traced, not run: shapes alone tell whether network, likelihood and method fit together."""
    small = ["network.kind=cnn", "network.filters=[2, 3]", "network.hidden=4"]
    config = override(CONFIG, small if task == "images" else [])
    method = build_method(name, config, IMAGES if task == "images" else FORMS[task])

    def one_round(data: Data) -> Any:
        state = method.init(KEY, data)
        own = method.init_client(state, data, KEY)
        update, after = method.client_update(state, own, data, KEY)
        updates = jax.tree.map(lambda a: a[None], update)
        moved = method.server_update(state, updates, jnp.ones(1, dtype), KEY)
        curves = method.diagnostics(state, updates, jnp.ones(1, dtype))
        said = method.personalize(moved, after, data, KEY)(data.x[:4])
        return (state, own), (moved, after), said, curves

    with jax.enable_x64(True):  # float32 stays float32 where float64 is on
        before, after, said, curves = jax.eval_shape(one_round, make_data(task, dtype))
    kinds = (jax.tree.map(lambda a: (a.shape, a.dtype), part) for part in (before, after))
    assert next(kinds) == next(kinds)
    assert all(curve.shape == () for curve in curves.values())
    assert isinstance(said, Probabilities) == (task != "numbers")
    if isinstance(said, Probabilities):
        assert said.log_probabilities.shape == (4, 3)
    if dtype == jnp.float64:
        assert {leaf.dtype for leaf in jax.tree.leaves(said)} == {jnp.dtype(dtype)}


@partial(compiled, static_argnums=0)
def play(method: Any, data: Data, weights: jax.Array) -> Any:
    """Two rounds as an engine plays them, and what every client predicts at the first one's inputs."""
    first = jax.tree.map(lambda a: a[0], data)
    state = method.init(KEY, first._replace(x=jnp.ones_like(first.x)))
    own = jax.vmap(lambda d: method.init_client(state, d, KEY))(data)
    for _ in range(2):
        updates, own = jax.vmap(lambda o, d: method.client_update(state, o, d, KEY))(own, data)  # noqa: B023
        curves = method.diagnostics(state, updates, weights)
        state = method.server_update(state, updates, weights, KEY)
    predictions = jax.vmap(lambda o, d: method.personalize(state, o, d, KEY)(AT))(own, data)
    return (state, curves), (updates, predictions)


def make_clients(task: str) -> Data:
    parts = [make_data(task, np.float64, seed) for seed in range(3)]
    data = jax.tree.map(lambda *a: np.stack(a), *parts)
    return data._replace(mask=np.arange(6) < np.array([6, 4, 5])[:, None])


assert_close = partial(jax.tree.map, partial(np.testing.assert_allclose, rtol=1e-8, atol=1e-8))


@every_case
@pytest.mark.usefixtures("x64")
def test_rounds_repeat_and_know_no_padding_no_absent_client_and_no_order(
    task: str, name: str
) -> None:
    method, data = build_method(name, CONFIG, FORMS[task]), make_clients(task)
    weights = np.array([1.0, 0.0, 1.0])
    served, sent = play(method, data, weights)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((served, sent)))
    said = sent[1]
    if task == "classes":
        np.testing.assert_allclose(np.exp(said.log_probabilities).sum(-1), 1, rtol=1e-9)
    else:
        np.testing.assert_allclose(said.weights.sum(-1), 1, rtol=1e-9)
        assert (np.asarray(said.weights) >= 0).all() and (np.asarray(said.stds) > 0).all()
    jax.tree.map(np.testing.assert_array_equal, play(method, data, weights), (served, sent))
    absent = np.where(np.arange(3)[:, None] == 1, np.nan, data.y)
    harmed, _ = play(method, data._replace(y=absent), weights)
    jax.tree.map(np.testing.assert_array_equal, harmed, served)
    nonsense = Data(
        np.where(data.mask[..., None], data.x, 30.0), np.where(data.mask, data.y, -1e3), data.mask
    )
    assert_close(play(method, nonsense, weights), (served, sent))
    order = np.array([2, 0, 1])
    turned, turned_sent = play(method, Data(*(part[order] for part in data)), weights[order])
    assert_close(turned, served)
    assert_close(turned_sent, jax.tree.map(lambda a: a[order], sent))


@pytest.mark.parametrize(("task", "name"), BY_CLIENTS)
@pytest.mark.usefixtures("x64")
def test_a_client_that_is_not_finite_counts_as_absent_and_is_counted(task: str, name: str) -> None:
    method, data = build_method(name, CONFIG, FORMS[task]), make_clients(task)
    (state, curves), _ = play(method, data, np.array([1.0, 0.0, 1.0]))
    broken = data._replace(x=np.where(np.arange(3)[:, None, None] == 1, np.inf, data.x))
    (harmed, harmed_curves), _ = play(method, broken, np.ones(3))
    assert (int(state.skipped), int(harmed.skipped)) == (0, 2)
    assert_close((harmed._replace(skipped=state.skipped), harmed_curves), (state, curves))


def test_every_entry_names_sections_that_are_there() -> None:
    sections = {f.name for f in fields(Config) if is_dataclass(f.default)}
    for name, one in entries().items():
        assert one.name == name and one.tasks and set(one.settings) <= sections


@every_case
def test_what_a_method_is_built_from_is_in_its_identity(task: str, name: str) -> None:
    """A section that changes the method changes the name of its results; others do not."""
    changes = {
        "prior": "prior.kernel_widths=[7]", "network": "network.widths=[7]",
        "local": "local.steps=9", "mtl": "mtl.coupling=3", "maml": "maml.inner_steps=3",
        "bnn": "bnn.draws=3", "pfedbayes": "pfedbayes.zeta=3", "pfedgp": "pfedgp.features=9",
        "alone": "alone.steps=7", "posterior": "posterior.steps=7", "train": "learning_rate=0.5",
        "personal": "weights=stacking",
    }  # fmt: skip
    base, before = build_method(name, CONFIG, FORMS[task]), method_identity(CONFIG, name)
    for section, change in changes.items():
        config = override(CONFIG, [change])
        if build_method(name, config, FORMS[task]) != base:
            assert section in entry(name).settings, section
        other = method_identity(config, name) != before
        assert other == (section in entry(name).settings), section


def test_who_releases_what() -> None:
    """Strict privacy lets through who goes alone, and the one whose sums get noise."""
    assert {n for n, e in entries().items() if e.releases == "nothing"} == set(
        named(learns="alone")
    )
    assert [n for n, e in entries().items() if e.releases == "accounted"] == ["pacpfl"]
    strict = ["privacy.mode=gaussian", "epsilon=4", "privacy.strict=true"]
    for name in entries():
        settings = [*strict, f'methods=["pacpfl", "{name}"]']
        if entry(name).releases == "more":
            with pytest.raises(InputError, match=f"privacy.strict .*{name} would learn"):
                override(Config(), settings)
        else:
            override(Config(), settings)


def test_a_method_for_numbers_is_refused_for_classes() -> None:
    for name in set(named("numbers")) - set(named("classes")):
        with pytest.raises(InputError, match=f"{name} is not made for classes.*pacpfl"):
            build_method(name, CONFIG, FORMS["classes"])
        with pytest.raises(InputError, match=f"{name} is not made for classes.*pacpfl"):
            override(Config(), ["data.name=digits", f'methods=["{name}"]'])
    with pytest.raises(InputError, match="no method 'pacpfi'; did you mean 'pacpfl'"):
        entry("pacpfi")


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A folder with a distribution that brings a method: CONTRIBUTING's."""
    install(tmp_path)
    with open(tmp_path / "their_method.py", "a", encoding="utf-8") as file:
        file.write(
            'LOUD = Entry("loud", "Loud", lambda config, form: Mean(), releases="accounted")\n'
        )
    return tmp_path


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("mean = their_method:LOUD", "accounts for it"),
        ("pacpfl = their_method:ENTRY", "takes the name of a method"),
        ("mean = their_method:NOTHING", "cannot be loaded"),
        ("mean = their_method:FOREIGN_IS_NO_ENTRY", "cannot be loaded"),
        ("mean = their_method:Mean", "let it name an Entry"),
    ],
)
def test_an_entry_point_that_cannot_be_used_is_named(
    foreign: Path, line: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = foreign / "their_package-1.0.dist-info"
    (about / "entry_points.txt").write_text(f"[pacpfl.methods]\n{line}\n")
    monkeypatch.syspath_prepend(str(foreign))
    entries.cache_clear()
    try:
        with pytest.raises(InputError, match=f"{line.split(' = ')[0]}.*{words}"):
            configuration.load("", "my.toml")
    finally:
        monkeypatch.undo()
        entries.cache_clear()
        sys.modules.pop("their_method", None)
