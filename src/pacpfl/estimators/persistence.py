"""A fitted estimator as one file: safetensors, with a JSON header that says what the arrays are.

No pickle: reading a file never runs code that it brings.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from pacpfl import __version__, files
from pacpfl import config as configuration
from pacpfl.data.standardize import Scaler
from pacpfl.errors import InputError
from pacpfl.estimators.clients import Name, Owner
from pacpfl.estimators.errors import InvalidInput, as_invalid_input
from pacpfl.studies.build import build_prior
from pacpfl.types import Form, Samples

if TYPE_CHECKING:
    from pacpfl.estimators.base import FederatedEstimator

FORMAT = "pacpfl-estimator-1"
Estimator = TypeVar("Estimator", bound="FederatedEstimator")


def save(estimator: FederatedEstimator, path: Any, clients: list[Name]) -> None:
    """Particles and parameters, and of these clients their rows and units."""
    owners = [estimator._owners[name] for name in clients]
    width = estimator.n_features_in_
    nothing = Samples(np.zeros((0, width)), np.zeros(0))
    parts = [owner.samples for owner in owners] or [nothing]
    scalers = [estimator._common_scaler, *(owner.scaler for owner in owners)]
    classes = getattr(estimator, "classes_", None)
    names = getattr(estimator, "feature_names_in_", None)
    arrays = {
        "particles": estimator.particles_,
        "x": np.concatenate([part.x for part in parts]),
        "y": np.concatenate([part.y for part in parts]),
        "lengths": np.array([len(owner.samples) for owner in owners], np.int64),
        # The first row is everybody's.
        "x_mean": np.stack([scaler.x_mean for scaler in scalers]),
        "x_std": np.stack([scaler.x_std for scaler in scalers]),
        "y_moments": np.array([[scaler.y_mean, scaler.y_std] for scaler in scalers]),
        **{f"history/{name}": values for name, values in estimator.history_.items()},
    }
    if estimator._draw_seed is not None:
        arrays["draw_seed"] = estimator._draw_seed
    header = {
        "format": FORMAT,
        "pacpfl": __version__,
        "class": type(estimator).__name__,
        "parameters": estimator.get_params(deep=False),
        "config": configuration.dump(estimator.config_),
        "standardize": estimator.standardize_,
        "grouped": estimator.grouped_,
        "clients": clients,
        "trained": [owner.trained for owner in owners],
        "classes": None if classes is None else classes.tolist(),
        "classes_dtype": None if classes is None else classes.dtype.str,
        "feature_names": None if names is None else list(names),
    }
    text = json.dumps(header, default=_plain)
    arrays = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
    about = {"header": text, "digest": _digest(arrays, text)}
    with as_invalid_input():
        files.write(Path(path), to_bytes(arrays, about))


def load(kind: type[Estimator], path: Any) -> Estimator:
    """The estimator in the file, with those clients that were saved."""
    path = Path(path)
    arrays, header = _read(path)
    if header["class"] != kind.__name__:
        raise InvalidInput(
            f"{path} holds a {header['class']}; load it with {header['class']}.load."
        )
    estimator = kind(**header["parameters"])
    try:
        config = configuration.load(header["config"], str(path))
    except InputError as error:
        raise InvalidInput(
            f"{path} was written by pacpfl {header['pacpfl']} and this version cannot use it ({error})"
        ) from error
    estimator.config_ = config
    estimator.standardize_, estimator.grouped_ = header["standardize"], header["grouped"]
    estimator.n_features_in_ = arrays["x"].shape[1]
    if header["feature_names"] is not None:
        estimator.feature_names_in_ = np.array(header["feature_names"], object)
    if header["classes"] is not None:
        estimator.classes_ = np.array(header["classes"], header["classes_dtype"])
    estimator.particles_ = arrays["particles"]
    estimator.history_ = {
        name.removeprefix("history/"): values
        for name, values in arrays.items()
        if name.startswith("history/")
    }
    estimator._draw_seed = arrays.get("draw_seed")
    classes = None if header["classes"] is None else len(header["classes"])
    names = tuple(f"x{number}" for number in range(estimator.n_features_in_))
    estimator.prior_ = build_prior(config, Form(names, classes=classes))
    scalers = [
        Scaler(x_mean, x_std, float(y_mean), float(y_std))
        for x_mean, x_std, (y_mean, y_std) in zip(
            arrays["x_mean"], arrays["x_std"], arrays["y_moments"], strict=True
        )
    ]
    estimator._common_scaler = scalers[0]
    ends = np.cumsum(arrays["lengths"])
    estimator._owners = {
        name: Owner(
            Samples(arrays["x"][end - length : end], arrays["y"][end - length : end]), *more
        )
        for name, length, end, *more in zip(
            header["clients"], arrays["lengths"], ends, scalers[1:], header["trained"], strict=True
        )
    }
    estimator._models = {}
    return estimator


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    try:
        with safe_open(path, framework="numpy") as file:
            about = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        reason = " ".join(str(error).split())
        raise InvalidInput(f"{path} is no readable model ({reason}); save it again.") from error
    text = about.get("header", "")
    if not text or about.get("digest") != _digest(arrays, text):
        raise InvalidInput(f"{path} is no model, or is damaged; save it again.")
    header = json.loads(text)
    if header["format"] != FORMAT:
        raise InvalidInput(
            f"{path} has the format {header['format']}, and this version of pacpfl reads {FORMAT}; save "
            "it again."
        )
    return arrays, header


def _digest(arrays: dict[str, np.ndarray], text: str) -> str:
    total = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        total.update(f"{name} {arrays[name].dtype} {arrays[name].shape} ".encode())
        total.update(arrays[name].tobytes())
    return total.hexdigest()


def _plain(value: Any) -> Any:
    """Parameters that JSON does not know: NumPy's numbers; of a generator, that there was one."""
    return value.item() if isinstance(value, np.generic) else None
