"""Models on disk: one safetensors file each, checked as a whole when it is read; never a pickle.

The header tells format and version, client, configuration (TOML), schema and scaling (JSON), and a
digest of all of it and of the arrays. An array that is the same for every particle, such as the
client's rows, is stored once.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError, safe_open

from pacpfl import config as configuration
from pacpfl import files
from pacpfl.config import Config
from pacpfl.data.standardize import Scaler, fit_scalers
from pacpfl.data.tables.columns import Schema
from pacpfl.data.tables.read import load_own
from pacpfl.data.tables.settings import TableSettings
from pacpfl.errors import InputError
from pacpfl.personal import PersonalModel
from pacpfl.studies.build import build_prior
from pacpfl.studies.model import ClientModel, Shared, condition, dtype_of, precision
from pacpfl.trained import load_run
from pacpfl.types import Data

MODEL, SHARED = "pacpfl-model-1", "pacpfl-prior-1"
SHARED_NAME = "prior.safetensors"  # in the folder of a run


def save_model(path: Path, model: ClientModel) -> None:
    with precision(model.config):
        named = _named(model.personal)
        arrays, once = {}, []
        for name, array in named.items():
            if array.ndim > 1 and len(array) > 1 and (array == array[:1]).all():
                once.append(name)
                array = array[:1]
            arrays[name] = np.ascontiguousarray(array)
    about = _about(model.config, model.schema, model.scaler) | {
        "format": MODEL,
        "client": model.client,
        "stored_once": json.dumps(once),
    }
    _write(path, arrays, about)


def load_model(path: Path) -> ClientModel:
    arrays, about = _read(path, MODEL, "pacpfl personalize writes one")
    try:
        config, schema, scaler = _parse(about)
        assert scaler is not None
        prior = build_prior(config, schema.form)
        dtype, once = dtype_of(config), set(json.loads(about["stored_once"]))
        with precision(config):
            particles = arrays[".particles"]
            rows = next(a.shape[-1] for name, a in arrays.items() if name.endswith(".data.mask"))
            shapes = Data(
                jax.ShapeDtypeStruct((rows, len(schema.features)), dtype),  # type: ignore[arg-type]
                jax.ShapeDtypeStruct((rows,), dtype),  # type: ignore[arg-type]
                jax.ShapeDtypeStruct((rows,), bool),  # type: ignore[arg-type]
            )
            key = jax.random.key(0)
            template = jax.eval_shape(
                lambda phis, data, key: condition(
                    prior, config.personal.weights, phis, data, config.train.temperature, key
                ),
                jax.ShapeDtypeStruct(particles.shape, particles.dtype),
                shapes,
                key,
            )
            leaves = []
            for place, leaf in jax.tree_util.tree_leaves_with_path(template):
                name = jax.tree_util.keystr(place)
                array = arrays[name]
                if name in once:
                    array = np.broadcast_to(array, (len(particles), *array.shape[1:]))
                if array.shape != leaf.shape or array.dtype != leaf.dtype:
                    raise ValueError(f"{name} has shape {array.shape}, not {leaf.shape}")
                leaves.append(jax.device_put(array))
            personal: PersonalModel = jax.tree.unflatten(jax.tree.structure(template), leaves)
        return ClientModel(about["client"], config, schema, scaler, personal)
    except (KeyError, ValueError, TypeError, AssertionError, StopIteration) as error:
        raise _damaged(path, error) from error


def save_shared(path: Path, shared: Shared) -> None:
    arrays = {"particles": np.ascontiguousarray(shared.particles)}
    if shared.seed is not None:
        arrays["seed"] = np.ascontiguousarray(shared.seed)
    about = _about(shared.config, shared.schema, shared.scaler)
    _write(path, arrays, about | {"format": SHARED})


def load_shared(path: Path) -> Shared:
    arrays, about = _read(path, SHARED, "pacpfl fit writes one into its run folder")
    try:
        config, schema, scaler = _parse(about)
        size = build_prior(config, schema.form).size
        particles = arrays["particles"]
        if particles.ndim != 2 or particles.shape[1] != size:
            raise ValueError(f"particles of shape {particles.shape}, not (k, {size})")
        return Shared(config, schema, scaler, particles, arrays.get("seed"))
    except (KeyError, ValueError, TypeError) as error:
        raise _damaged(path, error) from error


def shared_of_run(folder: Path) -> Shared:
    """What a run on tables has learned; from its file, or else from checkpoint and tables."""
    if (folder / SHARED_NAME).is_file():
        return load_shared(folder / SHARED_NAME)
    trained = load_run(folder)
    config = trained.config
    if config.data.name != "tables":
        raise InputError(
            f"The run in {folder} is on {config.data.name}, not on tables; personalise from a run that "
            "pacpfl fit has made."
        )
    tables = load_own(config.tables, config.seed)
    scaler = None
    if config.data.standardize != "client":
        scaler = next(iter(fit_scalers(tables.federation, config.data.standardize).values()))
    seed = np.asarray(trained.state.seed) if len(jax.tree.leaves(trained.state.seed)) else None
    return Shared(config, tables.schema, scaler, np.asarray(trained.particles), seed)


def _named(tree: Any) -> dict[str, np.ndarray]:
    pairs = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(place): np.asarray(leaf) for place, leaf in pairs}


def _about(config: Config, schema: Schema, scaler: Scaler | None) -> dict[str, str]:
    # Where the tables lie, and who the other clients are, is nobody's business.
    kept = TableSettings(source="-", target=schema.target, most=config.tables.most)
    scales = None
    if scaler is not None:
        x_mean, x_std = scaler.x_mean.tolist(), scaler.x_std.tolist()
        scales = {"x_mean": x_mean, "x_std": x_std, "y_mean": scaler.y_mean, "y_std": scaler.y_std}
    return {
        "config": configuration.dump(replace(config, tables=kept)),
        "schema": schema.to_json(),
        "scaling": json.dumps(scales),
    }


def _parse(about: dict[str, str]) -> tuple[Config, Schema, Scaler | None]:
    config = configuration.load(about["config"], "the model's configuration")
    schema, scales = Schema.from_json(about["schema"]), json.loads(about["scaling"])
    if scales is None:
        return config, schema, None
    x_mean, x_std = np.array(scales["x_mean"], float), np.array(scales["x_std"], float)
    if x_mean.shape != (len(schema.features),) or x_std.shape != x_mean.shape:
        raise ValueError(f"scaling of {x_mean.size} features instead of {len(schema.features)}")
    return config, schema, Scaler(x_mean, x_std, float(scales["y_mean"]), float(scales["y_std"]))


def _write(path: Path, arrays: dict[str, np.ndarray], about: dict[str, str]) -> None:
    about = dict(about)
    files.save_arrays(path, about.pop("format"), arrays, about)


def _read(path: Path, form: str, way_out: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    if not path.is_file():
        raise InputError(f"There is no file {path}; {way_out}.")
    try:
        with safe_open(path, framework="numpy") as file:
            about = dict(file.metadata() or {})
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise _damaged(path, error) from error
    found = about.get("format", "")
    if found != form:
        family = form.rpartition("-")[0]
        if found.rpartition("-")[0] == family:
            raise InputError(f"{path} is of the format {found}, and this version reads {form}.")
        raise InputError(f"{path} is not what is wanted here (no {family}); {way_out}.")
    if about.pop("digest", None) != _digest(arrays, about):
        raise _damaged(path, ValueError("its content is not what was saved"))
    return arrays, about


def _damaged(path: Path, error: BaseException) -> InputError:
    said = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return InputError(f"{path} is damaged ({said}); make it again.")


def _digest(arrays: dict[str, np.ndarray], about: dict[str, str]) -> str:
    total = hashlib.sha256(repr(sorted(about.items())).encode())
    for name in sorted(arrays):
        total.update(f"{name} {arrays[name].dtype} {arrays[name].shape} ".encode())
        total.update(np.ascontiguousarray(arrays[name]).tobytes())
    return total.hexdigest()
