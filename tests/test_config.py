"""Configurations: what is written can be read, and what is wrong is named with the way out."""

from __future__ import annotations

import tomllib
import typing
from dataclasses import fields
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pacpfl import svgd
from pacpfl.config import SECTIONS, Config, RunSettings, dump, identity, load, load_file, override
from pacpfl.data.settings import DataSettings
from pacpfl.errors import InputError
from pacpfl.methods import network
from pacpfl.methods.registry import named
from pacpfl.methods.settings import LocalTraining, TrainSettings
from pacpfl.priors import inference
from pacpfl.priors.gp import GPSettings
from pacpfl.priors.settings import Inference
from pacpfl.settings import rules_of

CHANGED = Config(
    seed=11,
    data=DataSettings(clients=5, noise=0.0, opposite=True, standardize="client"),
    prior=GPSettings(mean="linear+mlp", mean_widths=(), kernel="deep+ard", members=3),
    train=TrainSettings(rounds=7, lambda_=12.5, clients_per_round=5, batch=3, learning_rate=1e-7),
    run=RunSettings(methods=("pooled-deep", "pacpfl"), precision="float64"),
)
KEYS = [(section, f.name.rstrip("_")) for section, part in SECTIONS.items() for f in fields(part)]


def refused(text: str, *settings: str) -> str:
    """What `load` says, or `--set` where settings are given."""
    with pytest.raises(InputError) as found:
        override(load(text, "my.toml"), list(settings))
    message = str(found.value)
    assert "\n" not in message and message.endswith((".", "?"))
    assert ("--set" in message or "configuration" in message) if settings else "my.toml" in message
    return message


def test_settings_name_what_the_mathematics_offers() -> None:
    """They stand apart from it, so that reading them needs no JAX."""
    for owner, name, offered in (
        (TrainSettings, "svgd_kernel", svgd.KERNELS),
        (LocalTraining, "optimizer", network.OPTIMIZERS),
        (Inference, "optimizer", inference.OPTIMIZERS),
    ):
        assert set(rules_of(owner, name)["choices"]) == set(offered)


@pytest.mark.parametrize("config", [Config(), CHANGED], ids=["default", "changed"])
def test_what_is_dumped_loads_again(config: Config) -> None:
    assert load(dump(config), "again") == config


def test_a_dump_names_every_key_with_its_help() -> None:
    lines = dump(Config()).splitlines()
    table = tomllib.loads(dump(CHANGED))
    for section, part in SECTIONS.items():
        for f in fields(part):
            name = f.name.rstrip("_")
            ends = [li for li in lines if li.endswith(f"  # {f.metadata['help']}")]
            assert any(line.startswith((f"{name} =", f"# {name} =")) for line in ends)
            value = getattr(getattr(CHANGED, section), f.name)
            expected = list(value) if isinstance(value, tuple) else value
            assert table[section].get(name) == expected


@settings(max_examples=60, deadline=None)
@given(
    st.builds(
        TrainSettings,
        rounds=st.integers(1, 10**9),
        particles=st.integers(1, 10**4),
        tau=st.none() | st.floats(0, exclude_min=True, allow_infinity=False),
        learning_rate=st.floats(0, exclude_min=True, allow_infinity=False),
        optimizer=st.sampled_from(["adam", "sgd", "lion"]),
    ),
    st.integers(0, 2**31),
    st.lists(st.sampled_from(named()), min_size=1, unique=True).map(tuple),
)
def test_any_configuration_survives_the_round_trip(train, seed, methods):
    config = Config(seed=seed, train=train, run=RunSettings(methods=methods))
    assert load(dump(config), "again") == config


def test_what_is_not_given_has_its_default() -> None:
    assert load("", "my.toml") == Config()
    changed = Config(train=TrainSettings(particles=9))
    assert load("[train]\nparticles = 9", "my.toml") == changed


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("[train]\nparticels = 8", "train.particles"),
        ("[data]\nclient = 8", "data.clients"),
        ("[prior]\nkernal = 'ard'", "prior.kernel"),
        ("[run]\nmethod = ['pacpfl']", "run.methods"),
        ("[train]\nlambda_ = 1.0", "train.lambda"),
        ("sead = 3", "seed"),
        ("[trian]\nparticles = 8", "train"),
    ],
)
def test_unknown_keys_get_the_nearest_name(wrong: str, right: str) -> None:
    message = refused(wrong)
    assert f"did you mean '{right}" in message
    unknown = wrong.split("\n")[-1].split(" = ")[0]
    assert unknown in message or "trian" in message
    assert "did you mean" not in refused("[train]\nqqqqqqqqqqqqqq = 1"), "unlike any other"


def test_every_key_refuses_every_wrong_type() -> None:
    allowed = {int: {"int"}, float: {"int", "float"}, bool: {"bool"}, str: {"str"}}
    texts = {
        "int": "3", "float": "0.5", "bool": "true", "str": '"word"', "list": "[1]",
        "words": '["word"]', "table": "{a = 1}", "mixed": '[1, "a"]',
    }  # fmt: skip
    for section, name in KEYS:
        field_name = "lambda_" if name == "lambda" else name
        default = getattr(SECTIONS[section], field_name)
        kind = type(default)
        if default is None:
            kind = int if name in ("clients_per_round", "batch") else float
        hints = typing.get_type_hints(type(SECTIONS[section]))
        lists = {"words"} if hints[field_name] == tuple[str, ...] else {"list"}
        fitting = lists if kind is tuple else allowed[kind]
        for wrong in texts.keys() - fitting:
            message = refused(f"[{section}]\n{name} = {texts[wrong]}")
            assert f"{name} must be" in message, (section, name, wrong)


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_refuses_values_out_of_its_range(section: str) -> None:
    for f in fields(SECTIONS[section]):
        name = f.name.rstrip("_")
        rules, is_float = f.metadata, isinstance(getattr(SECTIONS[section], f.name), float)
        least = rules.get("least", 0)
        wrong = {
            "least": [least - 1, least - 5, *(["nan", "inf", "-inf"] if is_float else [])],
            "above": [rules.get("above"), "-0.5", "inf", "nan"],
            "most": [rules.get("most", 0) + 1],
            "choices": ['"nonsense"', '""'],
        }
        for value in chain(*(wrong[rule] for rule in wrong.keys() & rules.keys())):
            assert name in refused(f"[{section}]\n{name} = {value}"), (section, name, value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((f"seed = {value}", ("seed",)) for value in ("-1", "1.5", "true", '"a"', 2**70)),
        ("train = 5", ("[train]",)),
        ("[seed]\nx = 1", ("seed",)),
        ("[train.data]\nnoise = 1", ("train.data",)),
        ("seed = 1\nseed = = 2", ("my.toml", "line 2")),
        ("seed = 1\nseed = 2", ("my.toml",)),
        (f"seed = {'9' * 400}", ("my.toml", "seed", "digits")),
        (f"[train]\ntau = {'9' * 400}", ("my.toml", "tau", "digits")),
        (f"seed = {'9' * 5000}", ("my.toml", "digits")),
        (f"seed = {'[' * 5000}{']' * 5000}", ("my.toml", "recursion")),
        ('[train]\noptimizer = "adan"', ("'adam'",)),
        ('[run]\nmethods = ["vanila"]', ("'vanilla'",)),
        ("[train]\ntau = 1.0\nlambda = 2.0", ("tau", "lambda")),
        ("[data]\nclients = 4\n[train]\nclients_per_round = 5", ("5", "4", "clients_per_round")),
        ("[data]\nsamples = 1", ("samples", "at least 2")),
        ('[prior]\nmean = "mlp+magic"', ("mlp+magic", "linear")),
        ('[prior]\nmean = ""', ("mean",)),
        ('[prior]\nkernel = "deep+"', ("deep+", "ard")),
        ("[prior]\nmean_widths = [4, 0]", ("mean_widths", "at least 1")),
        ("[prior]\nkernel_widths = [-3]", ("kernel_widths", "-3")),
        ("[run]\nmethods = []", ("method",)),
    ],
)
def test_what_makes_no_sense(text: str, words: tuple[str, ...]) -> None:
    message = refused(text)
    for word in words:
        assert word in message


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "none.toml", tmp_path, binary):
        with pytest.raises(InputError, match=path.name):
            load_file(path)
    good = tmp_path / "good.toml"
    good.write_text(dump(CHANGED), encoding="utf-8")
    assert load_file(good) == CHANGED


def test_settings_are_found_by_short_and_full_names() -> None:
    settings = ["particles=8", "prior.kernel=ard", "mean_widths=[4, 4]", "seed=5", "lambda=2"]
    assert override(Config(), settings) == Config(
        seed=5,
        train=TrainSettings(particles=8, lambda_=2.0),
        prior=GPSettings(kernel="ard", mean_widths=(4, 4)),
    )
    assert override(Config(), [" particles = 3 "]).train.particles == 3
    assert override(Config(), ["methods=['vanilla']"]).run.methods == ("vanilla",)
    assert override(Config(), ["opposite=true", "opposite=false"]).data.opposite is False


def test_ambiguous_settings_are_refused_with_all_their_meanings() -> None:
    assert "data.noise or prior.noise" in refused("", "noise=0.3")
    assert override(Config(), ["data.noise=0.3"]).data.noise == 0.3


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ("particles", "key=value"),
        ("particles=", "particles"),
        ("particels=8", "'particles'"),
        ("particles=many", "whole number"),
        ("particles=0", "at least 1"),
        ("=8", "key"),
    ],
)
def test_settings_that_cannot_be_used(setting: str, word: str) -> None:
    assert word in refused("", setting)


def test_settings_are_checked_together() -> None:
    assert "tau" in refused("[train]\ntau = 1", "lambda=2")
    assert "clients_per_round" in refused("", "clients=3", "clients_per_round=4")
    assert override(Config(), ["clients_per_round=30", "clients=40"]).data.clients == 40


@pytest.mark.parametrize("name", ["beta", "train.beta"])
def test_a_symbol_of_the_paper_leads_to_its_key(name: str) -> None:
    assert f"no key '{name}'; give train.temperature, which is beta" in refused("", f"{name}=5")


def test_an_identity_names_what_training_depends_on() -> None:
    base = identity(Config())
    assert identity(load(dump(Config()), "again")) == base
    for setting in ("particles=5", "data.noise=0.7", "pv.skip=150", "prior.noise=0.7", "seed=1",
                    "rounds=9", "precision=float64", "batch=4", "temperature=0.5", "bnn.draws=3",
                    "network.hidden=9", "pfedbayes.zeta=3", "pfedgp.features=9"):  # fmt: skip
        assert identity(override(Config(), [setting])) != base, setting
    inference = [f"posterior.{k}" for k in ("steps=9", "inference=laplace", "temperature=0.5")]
    for setting in ("checkpoint_rounds=3", "weights=uniform", 'methods=["pacpfl"]', *inference):
        assert identity(override(Config(), [setting])) == base, setting
    assert identity(Config(), samples="a") != identity(Config(), samples="b")


def test_only_what_differs_is_written_by_section_and_key() -> None:
    """A value that is the default of a key with the same name in another section differs, too."""
    rate = Config().train.learning_rate
    assert rate != Config().local.learning_rate
    config = override(Config(), [f"local.learning_rate={rate}", "prior.members=2"])
    text = dump(config, Config(), whole=("mtl",))
    keys = [line.partition(" =")[0] for line in text.splitlines() if "=" in line]
    assert keys == ["members", "learning_rate", *vars(config.mtl)]
    assert load(text, "again") == config
    assert dump(Config(), Config()) == "\n"
