"""Gaussian differential privacy: an (epsilon, delta) as the shift of one Gaussian.

    delta(epsilon) = Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu)

for telling N(0, 1) from N(mu, 1) (Dong, Roth and Su 2022, "Gaussian differential privacy",
corollary 2.13; Balle and Wang 2018).
"""

import math

from scipy import optimize, special

from keras_adaclip.accounting import _validation

_LEAST_LOG_MU, _MOST_LOG_MU = math.log(1e-12), math.log(1e6)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The shift of the Gaussian mechanism that has just this epsilon at this delta.

    A single number to compare runs by. It is no bound at other deltas, unless all that ran were
    full releases, whose composition is a Gaussian.

    Args:
        epsilon: Epsilon, from 0; infinite gives infinity.
        delta: Delta, between 0 and 1.

    Returns:
        Mu: the shift in standard deviations between neighbouring data sets.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of range.

    Example:

    >>> print(f"{gaussian_mu(3.0, 1e-5):.3f}")
    0.719
    """
    delta = _validation.check_delta(delta)
    if math.isinf(epsilon) and epsilon > 0:
        return math.inf
    epsilon = _validation.check_real(epsilon, "epsilon")
    if epsilon < 0:
        raise ValueError(f"Argument `epsilon` must not be negative. Received: epsilon={epsilon}")

    def excess(log_mu: float) -> float:
        return _log_delta(epsilon, math.exp(log_mu)) - math.log(delta)

    if excess(_LEAST_LOG_MU) >= 0.0:
        return 0.0
    if excess(_MOST_LOG_MU) <= 0.0:
        return math.inf
    return math.exp(optimize.brentq(excess, _LEAST_LOG_MU, _MOST_LOG_MU, xtol=1e-10))


def _log_delta(epsilon: float, mu: float) -> float:
    upper = special.log_ndtr(mu / 2 - epsilon / mu)
    lower = epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)
    if not lower < upper:
        return -math.inf
    return float(upper + math.log1p(-math.exp(lower - upper)))
