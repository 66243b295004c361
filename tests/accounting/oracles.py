"""Rows of a ledger, and the exact epsilon of Gaussian mechanisms without `dp_accounting`."""

import math

from scipy import optimize, special

from keras_adaclip.accounting import LedgerRow, Sampling


def row(sampling=Sampling.POISSON, batch=256, examples=60_000, noise=1.0, steps=0, **options):
    return LedgerRow(sampling, batch, examples, noise, **options).advance(steps)


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
