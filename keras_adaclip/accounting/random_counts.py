"""The laws of a random number of runs, and what the best of so many runs costs.

    geometric      P[K = k] = (1 - g)^(k - 1) g, mean 1 / g
    logarithmic    P[K = k] proportional to (1 - g)^k / k, mean (1 / g - 1) / log(1 / g)
    poisson        P[K = k] = e^-m m^k / k!, mean m

With e(a) the Rényi divergence of one run at the order a, that of the best of K is at most

    e(a) + (1 + s) min_b {(1 - 1 / b) e(b) + log(1 / g) / b} + log(mean) / (a - 1)

where s is 1 for the geometric law and 0 for the logarithmic one (theorem 2), and for Poisson's law

    e(a) + m d(log(1 + 1 / (a - 1))) + log(m) / (a - 1)

with d(epsilon) the delta of one run (theorem 6). `dp_accounting` has the same theorems for events;
here they stand for divergences, since the largest of several runs at every order is no event.

Reference:
    Papernot and Steinke 2022, "Hyperparameter tuning with Rényi differential privacy".
"""

import math
import random

import numpy as np
import numpy.typing as npt
from dp_accounting.rdp import rdp_privacy_accountant

from keras_adaclip.accounting.selection_cost import ORDERS

# The largest share by which `dp_accounting` makes the parameter of the logarithmic law smaller.
_SLACK = 1e-9
_ORDERS = np.array(ORDERS, dtype=np.float64)


def selected_divergences(
    divergences: npt.NDArray[np.float64], mean_trials: float, distribution: str
) -> npt.NDArray[np.float64]:
    """Rényi divergences of the best of a random number of runs.

    Args:
        divergences: Those of one run, at each of `accountants.ORDERS`.
        mean_trials: The mean of the number of runs.
        distribution: Its law.

    Returns:
        Upper bounds at the same orders.
    """
    share_of_mean = math.log(mean_trials) / (_ORDERS - 1.0)
    if distribution == "poisson":
        deltas = [
            rdp_privacy_accountant.compute_delta(ORDERS, divergences, math.log1p(1 / (order - 1)))[
                0
            ]
            for order in ORDERS
        ]
        return divergences + mean_trials * np.array(deltas) + share_of_mean
    shape = 1.0 if distribution == "geometric" else 0.0
    stop = stop_probability(mean_trials, distribution)
    second = np.min((1.0 - 1.0 / _ORDERS) * divergences - math.log(stop) / _ORDERS)
    bounds = divergences + (1.0 + shape) * second + share_of_mean
    # Divergences grow with the order: what bounds a later one bounds an earlier one.
    return np.minimum.accumulate(bounds[::-1])[::-1]


def stop_probability(mean_trials: float, distribution: str) -> float:
    """The parameter g of the geometric or the logarithmic law with this mean, not rounded up."""
    if distribution == "geometric":
        return 1.0 / mean_trials
    low, high = 1e-300, 1.0
    while high > low * (1.0 + _SLACK / 2):
        middle = math.sqrt(low * high)
        is_too_large = _logarithmic_mean(middle) < mean_trials
        low, high = (low, middle) if is_too_large else (middle, high)
    return low * (1.0 - _SLACK)


def drawn_count(mean_trials: float, distribution: str, source: random.Random) -> int:
    """A number of runs, drawn from the law.

    Args:
        mean_trials: The mean.
        distribution: The law.
        source: Where the randomness comes from.

    Returns:
        The number: from 1, or from 0 by Poisson's law.
    """
    if distribution == "poisson":
        # Arrivals within a time of `mean_trials`, one a unit of time on average.
        count, time = 0, source.expovariate(1.0)
        while time <= mean_trials:
            count, time = count + 1, time + source.expovariate(1.0)
        return count
    stop = stop_probability(mean_trials, distribution)
    if distribution == "logarithmic":
        # The logarithmic law is geometric with the parameter g^U, U uniform (Kemp 1981).
        stop = stop ** source.random()
    if stop >= 1.0:
        return 1
    # 1 - random() lies above 0 and reaches 1.
    return 1 + math.floor(math.log(1.0 - source.random()) / math.log1p(-stop))


def _logarithmic_mean(stop: float) -> float:
    return 1.0 if stop == 1.0 else (1.0 - stop) / (-math.log(stop) * stop)
