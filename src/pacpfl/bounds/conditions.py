"""What theorems ask of their numbers, and what they return: bounds, and the conditions behind them.

A wrong number is refused, never turned into a bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from pacpfl.errors import InputError

Status = Literal["holds", "does not hold", "assumed", "contradicted"]
Kind = Literal["premise", "world", "use"]
# Sums of float64 risks may leave [a, b] by rounding; anything beyond this is a mistake.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Bound:
    """An upper bound on a risk as the sum of named terms, all in units of the loss.

    The names are those of `docs/theory.md`: `empirical` (what the samples say), `divergence`
    (KL terms), `deviation` (how far finite samples may lie), `privacy` (the price of a prior
    that has seen the client's data) and `confidence` (ln(1/delta)).
    """

    terms: Mapping[str, float]

    @property
    def value(self) -> float:
        return float(sum(self.terms.values()))


@dataclass(frozen=True)
class Condition:
    """One condition behind a bound, whether it is met, and the reason with its numbers.

    `kind`: a `premise` is needed for the bound to be valid; so is what concerns the `world`,
    but no computation on the samples can decide that; what concerns `use` is not needed for
    validity, only for the bound to say something, or for the paper's own proof.
    """

    name: str
    status: Status
    reason: str
    kind: Kind = "premise"


def decided(name: str, met: bool, reason: str) -> Condition:
    """Return a condition for use, which a computation has decided."""
    return Condition(name, "holds" if met else "does not hold", reason, "use")


def non_vacuous_loss(beta: float, samples: int, a: float, b: float) -> Condition:
    r"""Check what is necessary for a client-level bound below b (appendix, non-vacuousness):

    $$b - a < 8 M / \beta, \qquad M = m + \tilde m,$$

    for beta = M the paper's b - a < 8.
    """
    width = loss_width(a, b)
    limit = 8 * count(samples, "the number of samples") / positive(beta, "beta")
    return decided(
        "deviation term below b - a",
        width < limit,
        f"b - a = {width:.4g}, and 8 M / beta = {limit:.4g} "
        f"(M = {samples} samples, beta = {beta:.4g})",
    )


def non_vacuous_privacy(epsilon: float, beta: float, m: int, a: float, b: float) -> Condition:
    r"""Check the paper's second necessary condition, from $m \epsilon^2 / (2 \beta) < b - a$:

    $$\epsilon < \sqrt{2 \beta (b-a) / m},$$

    for beta = m the paper's epsilon < sqrt(2 (b-a)). It is necessary for
    the printed I(epsilon, m, delta) only: where m epsilon or a client-wide epsilon is the smaller price, a
    bound can be below b without it.
    """
    width = loss_width(a, b)
    not_negative(epsilon, "epsilon")
    limit = math.sqrt(2 * positive(beta, "beta") * width / count(m, "the number of samples m"))
    return decided(
        "privacy term below b - a",
        epsilon < limit,
        f"epsilon = {epsilon:.4g}, and sqrt(2 beta (b - a) / m) = {limit:.4g} "
        f"(m = {m}, beta = {beta:.4g}, b - a = {width:.4g})",
    )


def later_weight(lambda_: float, n_2: int, upsilon: float) -> float:
    """Return (n_2 + upsilon) / lambda, the part of the divergence's weight that lambda adds."""
    if not lambda_ > 0:
        raise InputError(f"lambda is {lambda_}, but it must be above zero.")
    return (count(n_2, "n_2", 0) + positive(upsilon, "upsilon")) / lambda_


def lambda_condition(lambda_: float, n_2: int, upsilon: float) -> Condition:
    """Check lambda > n_2 + upsilon, as the paper asks, so that Jensen's inequality applies in its proof.

    The corrected bounds are valid without it.
    """
    later_weight(lambda_, n_2, upsilon)  # refuses what these numbers must not be
    limit = n_2 + upsilon
    return decided(
        "lambda > n_2 + upsilon",
        lambda_ > limit,
        f"lambda = {lambda_:.4g}, and n_2 + upsilon = {limit:.4g}",
    )


def beta_condition(beta: float, clients: int) -> Condition:
    """Check beta >= 1/n, as the paper asks, for the same reason and with the same remark."""
    limit = 1 / count(clients, "the number of clients")
    return decided(
        "beta >= 1/n", positive(beta, "beta") >= limit, f"beta = {beta:.4g}, and 1/n = {limit:.4g}"
    )


def consistency(
    beta_power: float, lambda_power: float, n_2_power: float | None, *, printed: bool = False
) -> tuple[Condition, ...]:
    """Check whether the gaps of the bounds close as m_i and n grow (paper, appendix on asymptotics).

    For the rules beta ~ m^p, lambda ~ n^q and n_2 ~ n^s (None: n_2 = 0) the four conditions are

        a) beta -> infinity:       p > 0        the KL and confidence terms are divided by beta
        b) beta in o(m):           p < 1        the deviation term is beta (b-a)^2 / (8m)
        c) (n_2 + 1) in o(lambda): q > s        weight of the hyper-posterior's divergence
        d) lambda in o(n (n_2+1)): q < 1 + s    the new-client and the printed later term

    The paper prints Omega in a) and c), that is p >= 0 and q >= s, which leaves gaps of
    ln(1/delta)/beta and of KL (n_2 + upsilon)/lambda that do not close. d) is sufficient.
    """
    for value, name in ((beta_power, "beta's power"), (lambda_power, "lambda's power")):
        if not math.isfinite(value):
            raise InputError(f"{name} is {value}, but it must be a finite number.")
    if n_2_power is not None and not 0 <= n_2_power <= 1:
        raise InputError(f"n_2's power is {n_2_power}, but n_2 <= n asks for one in [0, 1].")
    s = 0.0 if n_2_power is None else n_2_power
    p, q = beta_power, lambda_power
    grows, dominates = (p >= 0, q >= s) if printed else (p > 0, q > s)
    order = "at least as fast as" if printed else "faster than"
    return (
        decided("a) beta grows", grows, f"beta ~ m^{p:g} must grow {order} a constant"),
        decided("b) beta grows slower than m", p < 1, f"beta ~ m^{p:g} must stay below m^1"),
        decided(
            "c) lambda outgrows n_2",
            dominates,
            f"lambda ~ n^{q:g} must grow {order} n_2 + upsilon ~ n^{s:g}",
        ),
        decided(
            "d) lambda grows slower than n (n_2 + upsilon)",
            q < 1 + s,
            f"lambda ~ n^{q:g} must stay below n (n_2 + upsilon) ~ n^{1 + s:g}",
        ),
    )


# What bounds ask of their numbers.


def probability(value: float, name: str = "delta") -> float:
    """Check a failure probability, strictly between 0 and 1."""
    if not 0 < value < 1:
        raise InputError(
            f"{name} is {value}, but a failure probability lies strictly between 0 and 1: "
            "give for instance 0.05."
        )
    return float(value)


def positive(value: float, name: str) -> float:
    """Check a finite number above zero."""
    return _checked(value, name, value > 0, "a finite number above zero")


def not_negative(value: float, name: str) -> float:
    """Check a finite number that is zero or more."""
    return _checked(value, name, value >= 0, "a finite number, zero or more")


def count(value: int, name: str, least: int = 1) -> int:
    """Check a whole number of at least `least`."""
    whole = math.isfinite(value) and value == int(value) and value >= least
    return int(_checked(value, name, whole, f"a whole number of at least {least}"))


def _checked(value: float, name: str, fine: bool, wanted: str) -> float:
    if not (fine and math.isfinite(value)):
        raise InputError(f"{name} is {value}, but it must be {wanted}.")
    return float(value)


def loss_width(a: float, b: float) -> float:
    """Return b - a of a loss with values in [a, b]."""
    if not (math.isfinite(a) and math.isfinite(b) and a < b):
        raise InputError(
            f"The loss is said to lie in [{a}, {b}], but the bounds need finite a < b: "
            "clip the loss to such an interval."
        )
    return float(b) - float(a)


def risk(value: float, a: float, b: float, name: str) -> float:
    """Check an average of losses, which cannot leave [a, b]."""
    slack = ROUNDING * max(1.0, abs(a), abs(b))
    if not a - slack <= value <= b + slack:
        raise InputError(
            f"{name} is {value}, outside the loss's interval [{a}, {b}]: "
            "compute it with the loss that is being bounded."
        )
    return float(value)


def finite(
    values: ArrayLike, name: str, least: float | None = None, above: float | None = None
) -> np.ndarray:
    """Return a float64 array of finite numbers, of any shape, that are within limits."""
    array = np.asarray(values, dtype=np.float64)
    if not np.all(np.isfinite(array)):
        raise InputError(f"The {name} holds a value that is not finite.")
    if least is not None and np.any(array < least):
        raise InputError(
            f"The {name} holds {array.min():g}: every value must be {least:g} or more."
        )
    if above is not None and np.any(array <= above):
        raise InputError(f"The {name} holds {array.min():g}: every value must be above {above:g}.")
    return array


def vector(values: ArrayLike, name: str, length: int | None = None) -> np.ndarray:
    """Return a non-empty one-dimensional float64 array of finite numbers, of the given length."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0 or (length is not None and array.size != length):
        wanted = "one number per client" if length is None else f"{length} numbers"
        raise InputError(f"{name} has shape {array.shape}, but {wanted} are needed.")
    if not np.all(np.isfinite(array)):
        where = int(np.argmin(np.isfinite(array)))
        raise InputError(f"{name} is {array[where]} for entry {where}: every entry must be finite.")
    return array


def positive_vector(values: ArrayLike, name: str, length: int | None = None) -> np.ndarray:
    """Return a vector whose entries are all above zero."""
    array = vector(values, name, length)
    for where, value in enumerate(array):
        positive(float(value), f"{name} of entry {where}")
    return array
