"""Which hours of its own past a house looks at (paper, appendix "PV dataset", features).

The partial autocorrelation at lag h is the correlation of x_t and x_{t-h} that the hours between them do
not explain: the last coefficient phi_hh of the best linear prediction of x_t from x_{t-1}, ..., x_{t-h}.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pacpfl.errors import InputError

PAPER_LAGS = (1, 2, 4, 18, 20, 22, 43, 70, 74, 121, 145)
TWO_WEEKS = 14 * 24


def select_lags(
    series: Sequence[np.ndarray], count: int = len(PAPER_LAGS), longest: int = TWO_WEEKS
) -> tuple[int, ...]:
    """The `count` lags with the largest |PACF| on average over the series, in increasing order.

    Give TRAINING series only: what is chosen by looking at test data is no test.
    """
    if not series or not 1 <= count <= longest:
        raise InputError(
            f"{count} lags up to {longest} cannot be chosen from {len(series)} series; give at least "
            "one series and ask for 1 lag up to as many as there are."
        )
    size = np.mean([np.abs(partial_autocorrelation(each, longest)) for each in series], axis=0)
    largest = np.argsort(-size, kind="stable")[:count]
    return tuple(int(lag) for lag in np.sort(largest) + 1)


def partial_autocorrelation(series: np.ndarray, longest: int) -> np.ndarray:
    """phi_11, phi_22, ... up to the longest lag, by the recursion of Levinson and Durbin.

        phi_hh = (r_h - sum_j phi_{h-1,j} r_{h-j}) / (1 - sum_j phi_{h-1,j} r_j)
        phi_hj = phi_{h-1,j} - phi_hh phi_{h-1,h-j}

    with r the autocorrelations (sums over all pairs divided by the whole length, which keeps every
    |phi_hh| <= 1).
    """
    series = np.asarray(series, float)
    if series.ndim != 1 or len(series) <= longest or not np.isfinite(series).all():
        raise InputError(
            f"A series of shape {series.shape} has no partial autocorrelation up to lag {longest}; give "
            "one column of finite numbers that is longer than that."
        )
    correlation = _autocorrelation(series, longest)
    found = np.zeros(longest)
    coefficients = np.zeros(0)  # phi_{h-1, 1 .. h-1}
    unexplained = 1.0
    for lag in range(1, longest + 1):
        last = (correlation[lag] - coefficients @ correlation[lag - 1 : 0 : -1]) / unexplained
        coefficients = np.append(coefficients - last * coefficients[::-1], last)
        unexplained *= 1.0 - last**2
        found[lag - 1] = last
    return found


def _autocorrelation(series: np.ndarray, longest: int) -> np.ndarray:
    """r_0 = 1, r_1, ..., r_longest, by one Fourier transform padded against wrapping around."""
    if not np.ptp(series) > 0:
        raise InputError("A series that never changes has no autocorrelation; leave it out.")
    centred = series - series.mean()
    power = np.abs(np.fft.rfft(centred, 2 * len(series))) ** 2
    covariance = np.fft.irfft(power)[: longest + 1]
    return covariance / covariance[0]
