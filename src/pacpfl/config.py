"""The configuration of a run: frozen records, read from and written to TOML.

A key that does not exist is an error that names the nearest one that does; a value of the wrong type
or out of range is an error that says what is allowed.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from pacpfl.data.settings import (
    CLASSIFICATION,
    DataSettings,
    ImageSettings,
    PVSettings,
    TableSettings,
)
from pacpfl.errors import InputError, explained
from pacpfl.files import parse_toml
from pacpfl.methods.registry import Sections, entries, entry, named
from pacpfl.settings import Settings, convert, key, nearest, rules_of


@dataclass(frozen=True)
class RunSettings(Settings):
    methods: tuple[str, ...] = key(("pacpfl", "vanilla", "pooled"), "what to run, in this order")
    precision: str = key("float32", "of all arithmetic", choices=("float32", "float64"))
    recalibration: str = key(
        "auto",
        "of pacpfl's predicted numbers by training rows: auto (where these say it helps), always, never",
        choices=("auto", "always", "never"),
    )
    checkpoint_rounds: int = key(500, "save at least every so many rounds", least=1)
    checkpoint_minutes: float = key(1.0, "and at least every so many minutes", above=0)

    @property
    def dtype(self) -> type:
        """The type of all numbers of the run."""
        return np.float64 if self.precision == "float64" else np.float32


@dataclass(frozen=True)
class Config(Sections):
    seed: int = key(
        0, "of everything random: data, particles, choice of clients", least=0, most=2**32 - 1
    )
    data: DataSettings = DataSettings()
    pv: PVSettings = PVSettings()
    images: ImageSettings = ImageSettings()
    tables: TableSettings = TableSettings()
    run: RunSettings = RunSettings()


DATA = ("data", "pv", "images", "tables")
SECTIONS = {
    f.name: f.default
    for f in sorted(fields(Config), key=lambda f: f.name not in DATA)  # the data come first
    if is_dataclass(f.default)
}


def load(text: str, origin: str, base: Config | None = None) -> Config:
    """Read a configuration from TOML.

    Errors name `origin`, a file. What the text does not say is as in `base`, or else the default.
    """
    values: dict[str, object] = {}
    for name, value in parse_toml(text, origin).items():
        if name not in SECTIONS:
            values[name] = value
        elif isinstance(value, dict):
            values |= {f"{name}.{inner}": item for inner, item in value.items()}
        else:
            raise InputError(f"{origin}: {name} is a section; write [{name}] above its keys.")
    return updated(base or Config(), values, origin)


def updated(config: Config, values: Mapping[str, object], origin: str) -> Config:
    """Return the configuration with other values, named by their keys, such as "train.tau".

    The first thing that is wrong is an InputError; `origin` says where it was written.
    """
    for name, value in values.items():
        config = _with(config, name, value, origin)
    check(config, origin)
    return config


def load_file(path: Path) -> Config:
    remedy = "give a configuration in TOML"
    with explained(f"{path} cannot be read", remedy, OSError, UnicodeDecodeError):
        return load(path.read_text(encoding="utf-8"), str(path))


def override(config: Config, settings: list[str]) -> Config:
    """Apply `key=value` settings; `particles` is short for `train.particles`."""
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise InputError(f"--set {setting}: write it as key=value, for instance particles=8.")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except (ValueError, RecursionError):
            value = text
        config = _with(config, name.strip(), value, f"--set {setting}")
    check(config, "the configuration")
    return config


def named_by(settings: Iterable[str]) -> frozenset[str]:
    """Return the keys, such as "train.tau", that `key=value` settings name."""
    found = (_find(setting.partition("=")[0].strip(), "--set") for setting in settings)
    return frozenset(f"{section}.{name.rstrip('_')}" for section, name in found)


def flat(config: Config) -> dict[str, Any]:
    """Return the values of all keys, named as "train.tau"; the seed is not among them."""
    return {
        f"{section}.{f.name.rstrip('_')}": getattr(getattr(config, section), f.name)
        for section, part in SECTIONS.items()
        for f in fields(part)
    }


def differing(one: Config, other: Config) -> frozenset[str]:
    """Return the keys whose values differ."""
    usual = flat(other)
    return frozenset(key for key, value in flat(one).items() if value != usual[key])


def dump(config: Config, base: Config | None = None, whole: Collection[str] = ()) -> str:
    """Return TOML, every key with its help; keys that are not set stand as comments.

    Keys with the same value in `base` are left out, but for the sections that are to be `whole`.
    """
    written = SECTIONS if base is None else differing(config, base)
    lines = []
    if base is None or config.seed != base.seed:
        lines.append(f"seed = {config.seed}  # {rules_of(Config, 'seed')['help']}")
    for section, part in SECTIONS.items():
        heading = ["", f"[{section}]"]
        for f in fields(part):
            name, value = f.name.rstrip("_"), getattr(getattr(config, section), f.name)
            if base is None or section in whole or f"{section}.{name}" in written:
                text = f"{name} = {_toml(value)}" if value is not None else f"# {name} ="
                lines += [*heading, f"{text}  # {f.metadata['help']}"]
                heading = []
    return "\n".join(lines) + "\n"


def identity(config: Config, sections: Iterable[str] | None = None, **more: Any) -> str:
    """Return the name of what results depend on: equal names, equal numbers.

    They depend on the `sections` (`methods.registry` knows them for every method) and on what `more`
    there is, such as the samples. By default these are all sections that any training depends on: not
    a client's inference, nor what a run does besides, and that of privacy only where there is some.
    """
    if sections is None:
        apart = {"posterior", "personal", "run"}
        apart |= {"privacy"} if config.privacy.mode == "none" else set()
        sections = SECTIONS.keys() - apart
    parts: dict[str, Any] = {section: asdict(getattr(config, section)) for section in sections}
    parts |= {"seed": config.seed, "precision": config.run.precision, **more}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def method_identity(config: Config, method: str, **more: Any) -> str:
    """Return the name of a method's results: what other methods are set to does not change it."""
    return identity(config, (*DATA, *entry(method).settings), method=method, **more)


def check(config: Config, origin: str) -> None:
    """Check the rules that involve several keys, and raise at the first that is broken."""
    parts = (getattr(config, section) for section in SECTIONS)
    for problem in chain(*(part.problems() for part in parts), _problems(config)):
        raise InputError(f"{origin}: {problem}")


def _problems(config: Config) -> Iterator[str]:
    """Yield what is wrong with several sections together, as sentences."""
    data, methods, per_round = config.data, config.run.methods, config.train.clients_per_round or 0
    if data.name == "tables":  # how many clients there are, the files tell
        if not (config.tables.source and config.tables.target):
            yield (
                "tables need a source (file or folder) and a target (column); pacpfl init FOLDER "
                "writes both."
            )
    elif per_round > data.clients:
        yield f"clients_per_round = {per_round} is more than the {data.clients} clients there are."
    if not methods:
        yield f"methods is empty; name at least one of {', '.join(entries())}."
    able = named("classes") if data.name in CLASSIFICATION else entries()
    for name in methods:
        if name not in entries():
            yield f"there is no method {name!r}{nearest(name, entries())}"
        elif name not in able:
            yield (
                f"{name} is not made for classes, which {data.name} has; choose among "
                f"{', '.join(able)}."
            )
    if config.privacy.mode != "none":
        yield from (sentence for sentence, holds in _leaks(config).items() if holds)


def _leaks(config: Config) -> dict[str, bool]:
    """Return what a private run may not do, and whether this one does.

    In a strict one, whoever does not say that nothing unaccounted for leaves the clients is refused.
    """
    data, privacy, methods = config.data, config.privacy, config.run.methods
    loud = ", ".join(name for name in methods if entry(name).releases == "more")
    imputed = data.name == "tables" and config.tables.missing == "impute"
    unmeasured = data.name != "tables" and data.new_clients == 0
    return {
        f"privacy.mode = {privacy.mode} is for the method pacpfl, which is not among the methods; add "
        "it.": "pacpfl" not in methods,
        "standardize = global uses all clients' data without noise, which no budget covers; choose "
        "client or none.": data.standardize == "global",
        "missing = impute uses the medians of all clients' rows without noise, which no budget "
        "covers; set tables.missing to drop, or privacy.mode to none.": imputed,
        f"privacy.strict releases nothing that is not accounted for, but {loud} would learn from all "
        "clients without noise; leave them out of run.methods, or set privacy.strict to false.": loud
        != ""
        and privacy.strict,
        "privacy.strict measures new clients only, and there are none; set new_clients, or privacy.strict "
        "to false.": unmeasured and privacy.strict,
    }


def _with(config: Config, name: str, value: Any, origin: str) -> Config:
    section, inner = _find(name, origin)
    owner: Any = getattr(config, section) if section else config
    changed: Any = replace(owner, **{inner: convert(type(owner), inner, value, origin)})
    return replace(config, **{section: changed}) if section else changed


def _find(name: str, origin: str) -> tuple[str, str]:
    """(section, field) of a key given as `section.key`, or as `key` where that is unambiguous.

    A short key that the training has, too, is the training's: `batch` is `train.batch`.
    """
    known: dict[str, list[tuple[str, str]]] = {"seed": [("", "seed")]}
    symbols: dict[str, str] = {}
    for section, part in SECTIONS.items():
        for f in fields(part):
            plain = f.name.rstrip("_")
            known[f"{section}.{plain}"] = [(section, f.name)]
            known.setdefault(plain, []).append((section, f.name))
            if symbol := f.metadata.get("symbol"):
                hint = f"; give {section}.{plain}, which is {symbol}."
                symbols |= dict.fromkeys(
                    (symbol.split()[0], f"{section}.{symbol.split()[0]}"), hint
                )
    found = known.get(name, [])
    found = [place for place in found if place[0] == "train"] or found
    if len(found) == 1:
        return found[0]
    if found:
        choices = " or ".join(f"{section}.{name}" for section, _ in found)
        raise InputError(f"{origin}: {name} could be {choices}; write one of them.")
    raise InputError(
        f"{origin}: there is no key {name!r}{symbols.get(name) or nearest(name, known)}"
    )


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
