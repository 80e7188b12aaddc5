"""Shared by all tests: programs compiled once, files in order of their work; and by those of the
mathematics: float64, one compiled function, and an oracle in NumPy."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import programs as programs_kept
import pytest
from compiling import compiled
from jax.experimental.compilation_cache import compilation_cache

from pacpfl.priors.base import Prior
from pacpfl.priors.gp import GPPrior
from pacpfl.types import Data

# Most programs of the tests run a few times on a few numbers: compiling them is the work. With the
# older generator of XLA's loops a small training compiled in 0.6 s instead of 1.1, and without LLVM's
# dear passes as well in 0.2. Processes that tests start inherit the first. A newer JAX may not know
# it, and would stop at once. `make test-as-users` compiles as users do: with neither.
AS_USERS = bool(os.environ.get("PACPFL_TEST_AS_USERS"))
if jax.__version_info__[:2] == (0, 10) and not AS_USERS:
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")

# A core for each worker, where `make test` asks for it: XLA then starts no threads that wait for one
# another by counting, which takes the other worker's time (a tenth of all).
if os.environ.get("CORE_FOR_EACH_WORKER") and hasattr(os, "sched_setaffinity"):
    _cores = sorted(os.sched_getaffinity(0))
    _worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    if _worker.isdigit() and len(_cores) >= int(os.environ["PYTEST_XDIST_WORKER_COUNT"]):
        os.sched_setaffinity(0, {_cores[int(_worker)]})

# Tracing makes many small objects, few of them garbage: looking for it took a twentieth of the time.
gc.set_threshold(50_000, 20, 50)

# Where training is long, or where the engine promises the same bits: with LLVM's passes. Sites that a
# test plays in one process train for a few rounds: what they send is compared, not how fast.
OPTIMISED = {"engine", "sites", "test_polynomial_promises.py"}

# The files that take longest, longest first.
LONG = (
    "test_own_cli.py",
    "test_code_blocks.py",
    "test_resume.py",
    "test_cli.py",
    "test_devices.py",
    "test_race.py",
    "test_sites_secure.py",
    "test_tune_cli.py",
    "test_sites_segment.py",
    "test_certify_networks.py",
    "test_gp.py",
    "test_page.py",
    "test_notebooks.py",
    "test_regressor.py",
    "test_panel_browser.py",
    "test_site.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, so that workers who take files in turn end at about the same time."""
    place = {name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.name, len(LONG)))


@pytest.fixture(scope="session")
def programs_folder() -> Iterator[Path]:
    """Of this process and those that it starts: what others have compiled is linked into it."""
    programs_kept.prune(programs_kept.store())
    compilation_cache.reset_cache()  # what was compiled while tests were collected decided on none
    with (
        TemporaryDirectory(dir=programs_kept.CACHE) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in programs_kept.settings(Path(folder)).items():
            patch.setenv(name.upper(), str(value))
        yield Path(folder)


@pytest.fixture(scope="module", autouse=True)
def programs_compiled_once(programs_folder: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    """Most tests compile programs that another test or file has compiled: those are kept on disk.

    For each file anew, because commands that a test calls in its own process set these, too.
    """
    programs_kept.exchange(programs_folder, programs_kept.store())
    for name, value in programs_kept.settings(programs_folder).items():
        jax.config.update(name, value)
    quick = OPTIMISED.isdisjoint(request.path.parts) or request.path.name.startswith("test_sites")
    quick = quick and not AS_USERS
    if quick != jax.config.values["jax_disable_most_optimizations"]:
        jax.config.update("jax_disable_most_optimizations", quick)
        jax.clear_caches()  # the engine keeps programs: those compiled the other way must not be met
    yield
    programs_kept.exchange(programs_folder, programs_kept.store())


@pytest.fixture(scope="module")
def x64() -> Iterator[None]:
    """Double precision for the module that asks for it, and for no other."""
    with jax.enable_x64(True):
        yield


def _everything(
    prior: Prior, phi: jax.Array, data: Data, temperature: float, at: jax.Array
) -> dict[str, Any]:
    evidence, gradient = jax.value_and_grad(prior.log_evidence)(phi, data, temperature)
    posterior = prior.posterior(phi, data, temperature)
    weights, means, stds, *_ = prior.predict(phi, posterior, at)
    held_out = prior.leave_one_out(phi, posterior)
    return {
        "evidence": evidence,
        "gradient": gradient,
        "evidence_of": prior.log_evidence_of(phi, posterior),
        "weights": weights,
        "means": means,
        "stds": stds,
        "held_out": held_out.density,
        "held_out_evidence": held_out.evidence,
        "responsibilities": prior.responsibilities(phi, posterior),
    }


@pytest.fixture(scope="session")
def everything() -> Callable[..., dict[str, Any]]:
    """All a family of priors answers for one particle, compiled once for each family and shape."""
    answers = compiled(_everything, static_argnums=0)

    def call(
        prior: Prior,
        phi: np.ndarray,
        data: Data,
        temperature: float = 1.0,
        at: np.ndarray | None = None,
    ) -> dict[str, Any]:
        at = data.x if at is None else at
        phi = jnp.asarray(phi)
        return jax.tree.map(np.asarray, answers(prior, phi, data, jnp.asarray(temperature), at))

    return call


def _network(parameters: np.ndarray, sizes: tuple[int, ...], x: np.ndarray) -> np.ndarray:
    """A tanh network whose flat parameters are, layer by layer, the weights by rows and the biases."""
    values, rest = x, list(parameters)
    for depth, outputs in enumerate(sizes[1:]):
        inputs = values.shape[1]
        weight = np.array([[rest.pop(0) for _ in range(outputs)] for _ in range(inputs)])
        bias = np.array([rest.pop(0) for _ in range(outputs)])
        values = np.dot(values, weight) + bias
        if depth < len(sizes) - 2:
            values = np.tanh(values)
    assert not rest
    return values


def _pieces(prior: GPPrior, phi: np.ndarray) -> dict[str, np.ndarray]:
    """The particle cut up in the documented order: means, kernels, scales, what changes the noise,
    and its level."""
    d, made = prior.features, prior.settings

    def network_size(widths: tuple[int, ...], outputs: int) -> int:
        sizes = (d, *widths, outputs)
        return sum(a * b + b for a, b in pairwise(sizes))

    lengths = {
        "zero": 0,
        "constant": 1,
        "linear": d + 1,
        "mlp": network_size(made.mean_widths, 1),
        "kernel deep": network_size(made.kernel_widths, made.kernel_outputs),
        "kernel ard": d,
        "kernel linear": d + 1,
        "kernel matern": d,
        "kernel periodic": 2 * d,
        "scale": len(_kernels(prior)) if made.output_scale == "learned" else 0,
        "noise": 1,
    }
    noise = {"constant": 0, "linear": d + 1, "mlp": network_size(made.noise_widths, 1)}
    lengths["noise change"] = noise[made.noise_model]
    pieces, start = {}, 0
    kernels = [f"kernel {part}" for part in _kernels(prior)]
    for name in (*made.mean.split("+"), *kernels, "scale", "noise change", "noise"):
        pieces[name] = np.asarray(phi)[start : start + lengths[name]]
        start += lengths[name]
    assert start == len(phi)
    return pieces


def _mean(prior: GPPrior, phi: np.ndarray, x: np.ndarray) -> np.ndarray:
    pieces, total = _pieces(prior, phi), np.zeros(len(x))
    if "constant" in prior.settings.mean:
        total = total + pieces["constant"][0]
    if "linear" in prior.settings.mean:
        total = total + x @ pieces["linear"][:-1] + pieces["linear"][-1]
    if "mlp" in prior.settings.mean:
        sizes = (prior.features, *prior.settings.mean_widths, 1)
        total = total + _network(pieces["mlp"], sizes, x)[:, 0]
    return total


def _kernels(prior: GPPrior) -> list[str]:
    return prior.settings.kernel.split("+")


def _kernel(prior: GPPrior, phi: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    pieces, total = _pieces(prior, phi), np.zeros((len(a), len(b)))
    learned = prior.settings.output_scale == "learned"
    for index, part in enumerate(_kernels(prior)):
        scale, own = np.exp(pieces["scale"][index]) if learned else 1.0, pieces[f"kernel {part}"]
        u, v = a, b
        if part == "deep":
            sizes = (prior.features, *prior.settings.kernel_widths, prior.settings.kernel_outputs)
            u, v = (_network(own, sizes, x) for x in (a, b))
        elif part in ("ard", "matern"):
            u, v = a / np.exp(own), b / np.exp(own)
        difference = u[:, None, :] - v[None, :, :]
        distance = np.sqrt(np.sum(difference**2, axis=2))
        if part == "linear":
            *slopes, intercept = np.exp(2 * own)
            value = a @ np.diag(slopes) @ b.T + intercept
        elif part == "matern":
            value = (1 + 5**0.5 * distance + 5 / 3 * distance**2) * np.exp(-(5**0.5) * distance)
        elif part == "periodic":
            lengths, periods = np.exp(own).reshape(2, -1)
            sines = np.sin(np.pi * difference / periods) / lengths
            value = np.exp(-2 * np.sum(sines**2, axis=2))
        else:
            value = np.exp(-(distance**2) / 2)
        total = total + scale**2 * value
    return total


def _noise(prior: GPPrior, phi: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Standard deviation at every row: s exp(g), |g| below 1.5."""
    pieces = _pieces(prior, phi)
    level = np.full(len(x), np.log1p(np.exp(pieces["noise"][0])))
    if prior.settings.noise_model == "constant":
        return level
    widths = prior.settings.noise_widths if prior.settings.noise_model == "mlp" else ()
    change = _network(pieces["noise change"], (prior.features, *widths, 1), x)[:, 0]
    return level * np.exp(1.5 * np.tanh(change / 1.5))


def _log_evidence(
    prior: GPPrior, phi: np.ndarray, x: np.ndarray, y: np.ndarray, t: float = 1.0
) -> float:
    """ln of the integral over h of N(h | m, K) prod_j N(y_j | h_j, s^2)^t, the square completed:
    -(t / 2) sum_j ln(2 pi s_j^2) - 1/2 ln|I + t S^-2 K| - 1/2 r^T (K + S^2/t)^-1 r."""
    residual, variance = y - _mean(prior, phi, x), _noise(prior, phi, x) ** 2
    kernel, eye = _kernel(prior, phi, x, x), np.eye(len(y))
    determinant = np.linalg.slogdet(eye + t * kernel / variance[:, None])[1]
    quadratic = residual @ np.linalg.solve(kernel + np.diag(variance) / t, residual)
    return float(-0.5 * (t * np.log(2 * np.pi * variance).sum() + determinant + quadratic))


def _predict(
    prior: GPPrior, phi: np.ndarray, x: np.ndarray, y: np.ndarray, at: np.ndarray, t: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and std of a new observation at every row of `at`, conditioned by textbook formulas."""
    variance, cross = np.diag(_noise(prior, phi, x) ** 2), _kernel(prior, phi, at, x)
    gain = np.linalg.solve(_kernel(prior, phi, x, x) + variance / t, cross.T).T
    mean = _mean(prior, phi, at) + gain @ (y - _mean(prior, phi, x))
    spread = np.diag(_kernel(prior, phi, at, at)) - np.sum(gain * cross, axis=1)
    return mean, np.sqrt(spread + _noise(prior, phi, at) ** 2)


def _central(function: Callable[[np.ndarray], float], at: np.ndarray) -> np.ndarray:
    """Gradient by central differences of fourth order: the error is about 1e-10."""
    step, gradient = 1e-3, []
    for one in step * np.eye(len(at)):
        near = function(at + one) - function(at - one)
        far = function(at + 2 * one) - function(at - 2 * one)
        gradient.append((8 * near - far) / (12 * step))
    return np.array(gradient)


@pytest.fixture(scope="session")
def oracle() -> SimpleNamespace:
    """A Gaussian process written again, in NumPy, from the formulas alone."""
    return SimpleNamespace(
        network=_network,
        mean=_mean,
        kernel=_kernel,
        noise=_noise,
        log_evidence=_log_evidence,
        predict=_predict,
        central_differences=_central,
    )


@pytest.fixture(scope="module")
def programs(programs_compiled_once: None) -> Iterator[Counter[str]]:
    """Counts the programs that were looked for on disk: those found (hits) and not (misses)."""
    counts: Counter[str] = Counter()

    def listen(event: str, **more: Any) -> None:
        if event.startswith("/jax/compilation_cache/cache_"):
            counts[event.rpartition("cache_")[2]] += 1

    jax.monitoring.register_event_listener(listen)
    yield counts
    jax.monitoring.unregister_event_listener(listen)
