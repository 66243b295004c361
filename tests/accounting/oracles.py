"""The exact epsilon of Gaussian mechanisms, by another road than `dp_accounting`."""

import math

from scipy import optimize, special


def gaussian_epsilon(noise_multiplier, delta, *, releases=1, sensitivity=1.0):
    """Epsilon of composed Gaussian mechanisms (Balle & Wang 2018, theorem 8).

    delta(epsilon) = Phi(m/2 - epsilon/m) - exp(epsilon) Phi(-m/2 - epsilon/m),
    with m = sensitivity sqrt(releases) / noise_multiplier.
    """
    m = sensitivity * math.sqrt(releases) / noise_multiplier

    def log_ratio(epsilon):
        first = special.log_ndtr(m / 2 - epsilon / m)
        second = epsilon + special.log_ndtr(-m / 2 - epsilon / m)
        return first + math.log(-math.expm1(second - first)) - math.log(delta)

    if log_ratio(1e-9) < 0:
        return 0.0
    return optimize.brentq(log_ratio, 1e-9, m * m / 2 + 40 * m, xtol=1e-12, rtol=1e-13)
