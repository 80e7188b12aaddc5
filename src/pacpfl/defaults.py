"""Settings that suit a federation: those `pacpfl init` writes, and what "auto" means in Python.

One table has one configuration, whoever asks. How long a training takes is estimated here as well,
because a comparison that would take longer than everything else is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from pacpfl.config import Config, updated
from pacpfl.engine.runtime import usable_cores
from pacpfl.types import Form, Samples

MANY_CLIENTS = 10  # from which networks in the prior have something to learn from
# Training rows for each feature, of all clients, from which the mean is a network, too.
PLENTY = 100
COUNTED = 360  # rows, of all clients together, that the evidence counts for
FULL = 400  # training rows above which a round sees a part of them
BATCH = 256
# Share of the target's variance between clients from which each is scaled alone: a unit from few rows is
# itself uncertain, which no prediction knows of, so that needs rows, or levels that are far apart.
LEVELS_APART, FAR_APART = 0.5, 0.98
OWN_UNIT = 20  # rows of the median client
PATIENCE = 60.0  # seconds for a GP fitted to every client alone, which is only to compare with

# Rows, and microseconds of one particle of one client in one round on two cores (make bench).
MEASURED = ((10, 12.0), (150, 193.0), (610, 4680.0))
COMPILING = 25.0  # seconds before the first round and for the report
RACE_COMPILING = 20.0  # seconds for the programs of a race
RACE_CLIENTS, RACE_ROWS = 32, 480  # that take part in it: as many as the larger of the two takes,
RACE_TOGETHER = 1280  # and so that a round sees at most so many rows of all,
RACE_BATCH = 64  # and of one client, at most
RACE_ROUNDS = 10_000  # of all its candidates, in all folds

# What a federation of numbers decides, and how: with networks a wide hyper-prior lets the noise collapse.
DECIDED = (
    *("prior.mean", "prior.kernel", "prior.output_scale", "prior.noise_spread"),
    *("train.tau", "train.hyper_std", "train.rounds", "train.learning_rate"),
)
FEW_CLIENTS = ("linear", "ard+linear", "learned", 0.4, 1.0, 0.5, 200, 0.03)
ONE_FEATURE = ("linear+mlp", "deep", "fixed", 0.1, 1.0, 0.5, 500, 0.02)
SEVERAL_FEATURES = ("linear", "ard+linear", "learned", 0.5, 0.3, 0.3, 500, 0.01)

# Classes: with few weights every client has a logistic regression of its own, and Laplace's evidence tells
# how far clients are apart, which one draw cannot (docs/theory.md).
LOGISTIC: dict[str, object] = {
    "network.widths": (), "bnn.objective": "laplace", "bnn.initial_std": 0.3,
    "posterior.inference": "laplace", "posterior.steps": 8, "posterior.networks": 16,
    "train.learning_rate": 0.03,
}  # fmt: skip
OWN_WEIGHTS = 64  # of such a regression, at most: its time grows with their cube


def defaults(form: Form, standardize: str = "global", given: Collection[str] = ()) -> Config:
    """Return the configuration that suits a federation of tables.

    Networks in the prior learn from clients, not from rows: with few clients they over-fit (diabetes
    data, one client: R^2 0.39 against 0.47 of the plain kernel). With many clients and several features
    a deep kernel is worse than ridge regression (0.42 against 0.26 in RSMSE on 30 simulated clients with
    5 features, and 0.22 with `ard+linear`).

    Parameters
    ----------
    form
        What the federation looks like, with the number of each client's training rows.
    standardize
        How features and target are scaled: see `scaling`.
    given
        Keys that somebody has set: who sets anything of a network has networks.
    """
    values = _numbers(form) if form.classes is None else network(form)
    if is_logistic(form) and not {"network", "bnn", "posterior"} & {
        key.split(".")[0] for key in given
    }:
        values |= LOGISTIC | {"train.rounds": 400}
    values |= {"data.name": "tables", "data.standardize": standardize}
    values |= {"tables.source": "-", "tables.target": form.target}
    config = updated(Config(), values, "defaults")
    if alone_seconds(config, form) <= PATIENCE:
        return config
    return updated(config, {"run.methods": ("pacpfl", "ridge")}, "defaults")


def _numbers(form: Form) -> dict[str, object]:
    assert form.sizes
    common = {
        "train.particles": 4,
        "train.batch": BATCH if max(form.sizes) > FULL else None,
        "run.methods": ("pacpfl", "ridge", "vanilla"),
    }
    if form.clients < MANY_CLIENTS:
        return common | dict(zip(DECIDED, FEW_CLIENTS, strict=True))
    if len(form.features) == 1:
        return common | dict(zip(DECIDED, ONE_FEATURE, strict=True))
    rows = sum(form.sizes)
    mean = {"prior.mean": "linear+mlp"} if rows >= PLENTY * len(form.features) else {}
    several = dict(zip(DECIDED, SEVERAL_FEATURES, strict=True))
    return common | several | mean | {"train.tau": tau_for(rows)}


def tau_for(rows: int) -> float:
    """Return tau for so many training rows of all clients: 0.3, and from 1,200 rows on down to 0.1.

    Rows of one client are rarely independent. With 0.3, 3,600 hours of 24 houses were fitted too
    well: RSMSE 0.48 with 85% in the 90% intervals, against 0.44 and 90% with 0.1. On independent
    rows 0.1 costs a little: 0.235 against 0.221 with 1,200 of them.
    """
    return float(f"{min(0.3, max(0.1, COUNTED / rows)):.2g}")


def is_logistic(form: Form) -> bool:
    """Return whether clients may have logistic regressions of their own."""
    return form.classes is not None and (len(form.features) + 1) * form.classes <= OWN_WEIGHTS


def network(form: Form) -> dict[str, object]:
    """Return what suits classes: two equal layers. With 32 and 16 rectified linear units and four draws of
    the evidence, the negative log-likelihood on six simulated tables was 0.85 instead of 0.82."""
    assert form.sizes
    width = 32 if len(form.features) < 32 else 64
    return {
        "network.kind": "mlp",
        "network.widths": (width, width),
        "train.rounds": 600,
        "train.particles": 3,
        "train.tau": 1.0,
        "train.learning_rate": 0.01,
        "train.clients_per_round": None if form.clients <= 20 else 20,
        "train.batch": BATCH if max(form.sizes) > BATCH else None,
        "local.steps": 5,
        "local.learning_rate": 0.1,
        "run.methods": ("pacpfl", "fedavg", "vanilla"),
    }


def scaling(parts: Sequence[Samples], classes: bool = False) -> tuple[str, float]:
    """Return how numbers are scaled, and the share of the target's variance between clients.

    All clients are scaled together ("global"), unless their targets lie so far apart that each needs
    a scale of its own ("client"). With 2 to 5 rows a client (exercise of girls, `python -m reproduction
    tables`) scales of their own gave a negative log density of 100 a row, and a common one 2. Where the
    target is a class, features are scaled together.

    Parameters
    ----------
    parts
        The training rows of every client.
    classes
        Whether the target is a class.
    """
    if classes:
        return "global", 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        count, first, second = np.array([[len(p), p.y.sum(), (p.y**2).sum()] for p in parts]).T
        total = second.sum() / count.sum() - (first.sum() / count.sum()) ** 2
        within = (second - first**2 / count).sum() / max(1.0, count.sum() - len(parts))
        share = max(0.0, float(1 - within / total)) if total > 0 else 0.0
    apart = LEVELS_APART if np.median(count) >= OWN_UNIT else FAR_APART
    return ("client" if share > apart else "global"), share


def expected_seconds(config: Config, form: Form) -> float:
    """Estimate a run's time from measured rounds, between the sizes measured and beyond them."""
    assert form.sizes
    train = config.train
    rows = min(max(form.sizes), train.batch or np.inf, config.tables.most or np.inf)
    clients = min(form.clients, train.clients_per_round or form.clients)
    if form.classes is not None:
        each = 3e-7 * rows * len(form.features) ** 0.5 * config.bnn.draws
    else:
        each = 1e-6 * _microseconds(rows) * config.prior.members
    round_ = max(5e-4, clients * train.particles * each * 2 / usable_cores())
    alone = alone_seconds(config, form) if "vanilla" in config.run.methods else 0.0
    return COMPILING + race_seconds(config, form) + train.rounds * round_ + alone


def race_seconds(config: Config, form: Form) -> float:
    """Estimate the time of a race of settings: its programs, and the rounds of its candidates."""
    assert form.sizes
    tables = config.data.name == "tables" and config.tables.race
    if not tables or config.privacy.mode != "none":
        return 0.0
    rows = min(max(form.sizes), RACE_BATCH)
    rounds = (
        RACE_ROUNDS
        * racing(form.clients, max(form.sizes))
        * config.train.particles
        * 2
        / usable_cores()
    )
    return RACE_COMPILING + rounds * 1e-6 * _microseconds(rows)


def racing(clients: int, largest: int) -> int:
    """Return how many of the clients race, by the rows of the largest one."""
    rows = min(largest, RACE_BATCH)
    return min(clients, max(RACE_CLIENTS, RACE_ROWS // rows), RACE_TOGETHER // rows)


def alone_seconds(config: Config, form: Form) -> float:
    """Estimate the time of a Gaussian process fitted to every client alone.

    A step of a client's own fit costs what one particle does in a round, with all its rows.
    """
    assert form.sizes
    if form.classes is not None:
        return 0.0
    rows = min(max(form.sizes), config.tables.most or np.inf)  # all are padded to the longest
    fits = config.alone.steps * config.alone.restarts * form.clients
    return fits * 1e-6 * _microseconds(rows) * 2 / usable_cores()


def _microseconds(rows: float) -> float:
    sizes, times = (np.log(np.array(column)) for column in zip(*MEASURED, strict=True))
    at = np.log(max(rows, 1.0))
    if at > sizes[-1]:
        slope = (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])
        return float(np.exp(times[-1] + slope * (at - sizes[-1])))
    return float(np.exp(np.interp(at, sizes, times)))
