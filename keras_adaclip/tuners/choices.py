"""Clipping strategies as hyperparameters: the strategy, and what only that strategy has.

clipping                  the strategy
clip_norm                 its norm, or its initial norm; all but "adaclip"
target_quantile           "quantile"
clip_norm_learning_rate   "quantile"
decay_rate                "exponential", the divisor of the norm over the whole run
decay_power               "power"
mean_norm_factor          "mean_norm"
max_variance              "adaclip", with a hundredth of it as the minimum, as in Lin et al. 2022
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from keras_adaclip import clipping
from keras_adaclip._checks import check_choice, check_integer, check_positive
from keras_adaclip.schedules import ExponentialDecay, LinearDecay, PowerDecay

_VARIANCE_RATIO = 100.0
# Strategies from the values of their hyperparameters, the steps of a run, and the standard
# deviation of the noise on statistics.
Maker = Callable[[Mapping[str, Any], Any, float | None], clipping.ClippingStrategy]
_MAKERS: Mapping[str, Maker] = {
    "fixed": lambda hp, *_: clipping.FixedClipping(hp["clip_norm"]),
    "quantile": lambda hp, _, stddev: clipping.QuantileClipping(
        hp["target_quantile"], hp["clip_norm"], hp["clip_norm_learning_rate"], stddev
    ),
    "linear": lambda hp, steps, _: clipping.ScheduledClipping(LinearDecay(hp["clip_norm"], steps)),
    "exponential": lambda hp, steps, _: clipping.ScheduledClipping(
        ExponentialDecay(hp["clip_norm"], hp["decay_rate"], steps)
    ),
    "power": lambda hp, *_: clipping.ScheduledClipping(
        PowerDecay(hp["clip_norm"], hp["decay_power"])
    ),
    "automatic": lambda hp, *_: clipping.AutomaticClipping(hp["clip_norm"]),
    "mean_norm": lambda hp, _, stddev: clipping.MeanNormClipping(
        hp["clip_norm"], hp["mean_norm_factor"], mean_noise_stddev=stddev
    ),
    "adaclip": lambda hp, *_: clipping.AdaClip(
        min_variance=hp["max_variance"] / _VARIANCE_RATIO, max_variance=hp["max_variance"]
    ),
}
STRATEGIES = tuple(_MAKERS)
DEFAULT_STRATEGIES = ("fixed", "quantile", "power", "automatic")

# Smallest and largest value, the sampling between them, and the strategies.
_RANGES: Mapping[str, tuple[float, float, str, tuple[str, ...]]] = {
    "clip_norm": (0.05, 5.0, "log", STRATEGIES[:-1]),
    "target_quantile": (0.1, 0.9, "linear", ("quantile",)),
    "clip_norm_learning_rate": (0.05, 1.0, "log", ("quantile",)),
    "decay_rate": (1.2, 8.0, "log", ("exponential",)),
    "decay_power": (0.3, 0.6, "linear", ("power",)),
    "mean_norm_factor": (0.25, 2.0, "log", ("mean_norm",)),
    "max_variance": (1e-4, 1.0, "log", ("adaclip",)),
}


def clipping_choices(
    hp: Any,
    strategies: Iterable[str] = DEFAULT_STRATEGIES,
    *,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    total_steps: int | None = None,
    statistics_noise_stddev: float | None = None,
) -> clipping.ClippingStrategy:
    """Let keras-tuner choose a clipping strategy and its parameters.

    Call it in a hypermodel, for its optimizer. The hyperparameters are `clipping` (the strategy),
    `clip_norm`, `target_quantile`, `clip_norm_learning_rate`, `decay_rate`, `decay_power`,
    `mean_norm_factor` and `max_variance`; only those of the chosen strategy are active in a trial.

    Args:
        hp: The `keras_tuner.HyperParameters` of the trial.
        strategies: The names of the strategies to choose from: `"fixed"`, `"quantile"`, `"linear"`,
            `"exponential"`, `"power"`, `"automatic"`, `"mean_norm"`, `"adaclip"`.
        ranges: The smallest and largest value by name of the hyperparameter, if they differ from
            the defaults (`clip_norm`: 0.05 to 5). Two equal values fix it.
        total_steps: An int from 1, the steps of a run, which `"linear"` and `"exponential"` need.
        statistics_noise_stddev: A positive float, the standard deviation of the noise on the
            statistics of `"quantile"` and `"mean_norm"`, in units; None means the expected number
            of units divided by 20. It must be above half of the noise multiplier.

    Returns:
        The strategy, for `DPOptimizer(clipping=...)`.

    Raises:
        TypeError: If an argument is of the wrong type, or `total_steps` is missing.
        ValueError: If a name is unknown, or a range is empty.

    Example:

    >>> import keras_tuner
    >>> hp = keras_tuner.HyperParameters()
    >>> type(clipping_choices(hp, ["quantile", "power"])).__name__
    'QuantileClipping'
    >>> sorted(hp.values)
    ['clip_norm', 'clip_norm_learning_rate', 'clipping', 'target_quantile']
    """
    names = [check_choice("strategies", name, STRATEGIES) for name in strategies]
    ranges = ranges or {}
    for name in ranges:
        check_choice("ranges", name, tuple(_RANGES))
    if "linear" in names or "exponential" in names:
        total_steps = check_integer("total_steps", total_steps, minimum=1)
    strategy = hp.Choice("clipping", names)
    values = {}
    for name, (low, high, sampling, strategies_with_it) in _RANGES.items():
        low, high = (
            check_positive(f"ranges[{name!r}]", end) for end in ranges.get(name, (low, high))
        )
        if owners := [each for each in names if each in strategies_with_it]:
            with hp.conditional_scope("clipping", owners):
                if low == high:
                    values[name] = hp.Fixed(name, low)
                else:
                    values[name] = hp.Float(name, low, high, sampling=sampling)
    return _MAKERS[strategy](values, total_steps, statistics_noise_stddev)
