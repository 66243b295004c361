"""Clipping strategies as hyperparameters: which one, and what only that one has.

clipping                  the strategy
clip_norm                 its norm, or the one it begins with; all but "adaclip"
target_quantile           "quantile"
clip_norm_learning_rate   "quantile"
decay_rate                "exponential", what the norm is divided by over the whole run
decay_power               "power"
mean_norm_factor          "mean_norm"
max_variance              "adaclip", whose floor is a hundredth of it, as in Lin et al. 2022
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from keras_adaclip.accounting import check_integer, check_real
from keras_adaclip.clipping import (
    AdaClip,
    AutomaticClipping,
    ClippingStrategy,
    FixedClipping,
    MeanNormClipping,
    QuantileClipping,
    ScheduledClipping,
)
from keras_adaclip.schedules import ExponentialDecay, LinearDecay, PowerDecay

STRATEGIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "fixed": ("clip_norm",),
        "quantile": ("clip_norm", "target_quantile", "clip_norm_learning_rate"),
        "linear": ("clip_norm",),
        "exponential": ("clip_norm", "decay_rate"),
        "power": ("clip_norm", "decay_power"),
        "automatic": ("clip_norm",),
        "mean_norm": ("clip_norm", "mean_norm_factor"),
        "adaclip": ("max_variance",),
    }
)
DEFAULT_STRATEGIES = ("fixed", "quantile", "power", "automatic")
_NEED_TOTAL_STEPS = ("linear", "exponential")

# Least and greatest value, and how the values between are drawn.
_RANGES: Mapping[str, tuple[float, float, str]] = MappingProxyType(
    {
        "clip_norm": (0.05, 5.0, "log"),
        "target_quantile": (0.1, 0.9, "linear"),
        "clip_norm_learning_rate": (0.05, 1.0, "log"),
        "decay_rate": (1.2, 8.0, "log"),
        "decay_power": (0.3, 0.6, "linear"),
        "mean_norm_factor": (0.25, 2.0, "log"),
        "max_variance": (1e-4, 1.0, "log"),
    }
)
_VARIANCES = 100.0


def clipping_choices(
    hp: Any,
    strategies: Iterable[str] = DEFAULT_STRATEGIES,
    *,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    total_steps: int | None = None,
    statistics_noise_stddev: float | None = None,
) -> ClippingStrategy:
    """Lets keras-tuner choose a clipping strategy and what belongs to it.

    Call it where a hypermodel builds its optimizer. The hyperparameters are named `clipping` (the
    strategy), `clip_norm`, `target_quantile`, `clip_norm_learning_rate`, `decay_rate`,
    `decay_power`, `mean_norm_factor` and `max_variance`; only those that the chosen strategy has
    are active in a trial.

    Args:
        hp: the `keras_tuner.HyperParameters` of the trial.
        strategies: names of the strategies to choose from: `"fixed"`, `"quantile"`, `"linear"`,
            `"exponential"`, `"power"`, `"automatic"`, `"mean_norm"`, `"adaclip"`.
        ranges: by hyperparameter, the least and the greatest value, where they are to differ from
            the usual ones (`clip_norm`: 0.05 to 5). Two equal values fix it.
        total_steps: int from 1, the steps of a run, which `"linear"` and `"exponential"` need.
        statistics_noise_stddev: positive float, the standard deviation of the noise on the
            statistics of `"quantile"` and `"mean_norm"`, in units; None means the expected number
            of units divided by 20. It must be above half of the noise multiplier.

    Returns:
        The strategy, for `DPOptimizer(clipping=...)`.

    Raises:
        TypeError: where an argument is of the wrong type.
        ValueError: where a name is not known, a range is none, or `total_steps` is needed.

    Example:

    >>> import keras_tuner
    >>> hp = keras_tuner.HyperParameters()
    >>> type(clipping_choices(hp, ["quantile", "power"])).__name__
    'QuantileClipping'
    >>> sorted(hp.values)
    ['clip_norm', 'clip_norm_learning_rate', 'clipping', 'target_quantile']
    """
    names = checked_strategies(strategies)
    bounds = checked_ranges(ranges)
    needy = [name for name in names if name in _NEED_TOTAL_STEPS]
    if needy and total_steps is None:
        raise ValueError(
            f"Argument `total_steps` must be given for the strategy {needy[0]!r}: the steps of a "
            "run. Received: total_steps=None"
        )
    if total_steps is not None:
        total_steps = check_integer(total_steps, "total_steps", minimum=1)
    strategy = hp.Choice("clipping", list(names))
    values = {name: _number(hp, name, bounds[name], names) for name in bounds}
    return _built(strategy, values, total_steps, statistics_noise_stddev)


def checked_strategies(strategies: Iterable[str]) -> tuple[str, ...]:
    """The names, each of which must be known and stand there once."""
    if isinstance(strategies, str) or not isinstance(strategies, Iterable):
        raise TypeError(
            "Argument `strategies` must be a sequence of names. "
            f"Received: strategies={strategies!r}"
        )
    names = tuple(strategies)
    if not names or len(set(names)) < len(names) or not set(names) <= set(STRATEGIES):
        raise ValueError(
            "Argument `strategies` must hold one or more of "
            f"{', '.join(map(repr, STRATEGIES))}, each once. Received: strategies={names!r}"
        )
    return names


def checked_ranges(
    ranges: Mapping[str, tuple[float, float]] | None,
) -> dict[str, tuple[float, float, str]]:
    """All ranges and how each is drawn from, the given ones in the place of the usual ones."""
    bounds = dict(_RANGES)
    for name, pair in (ranges or {}).items():
        if name not in _RANGES:
            raise ValueError(
                f"Argument `ranges` must name some of {', '.join(map(repr, _RANGES))}. "
                f"Received: ranges={dict(ranges or {})!r}"
            )
        if isinstance(pair, str) or not isinstance(pair, Iterable) or len(tuple(pair)) != 2:
            raise TypeError(
                "Argument `ranges` must hold pairs of the least and the greatest value. "
                f"Received: ranges[{name!r}]={pair!r}"
            )
        low, high = (check_real(end, f"ranges[{name!r}]") for end in pair)
        if not 0.0 < low <= high:
            raise ValueError(
                "Argument `ranges` must hold positive numbers, the least one first. "
                f"Received: ranges[{name!r}]={pair!r}"
            )
        bounds[name] = (low, high, _RANGES[name][2])
    return bounds


def _number(
    hp: Any, name: str, bounds: tuple[float, float, str], strategies: tuple[str, ...]
) -> Any:
    """The value of a hyperparameter; None where the chosen strategy has none of that name."""
    having = [strategy for strategy in strategies if name in STRATEGIES[strategy]]
    if not having:
        return None
    low, high, drawn = bounds
    with hp.conditional_scope("clipping", having):
        if low == high:
            return hp.Fixed(name, low)
        return hp.Float(name, low, high, sampling=drawn)


def _built(
    strategy: str, values: Mapping[str, Any], total_steps: Any, stddev: float | None
) -> ClippingStrategy:
    """The strategy of a name, from the values of the hyperparameters that it has."""
    clip_norm = values["clip_norm"]
    if strategy == "fixed":
        return FixedClipping(clip_norm)
    if strategy == "quantile":
        return QuantileClipping(
            target_quantile=values["target_quantile"],
            initial_clip_norm=clip_norm,
            learning_rate=values["clip_norm_learning_rate"],
            count_noise_stddev=stddev,
        )
    if strategy == "linear":
        return ScheduledClipping(LinearDecay(clip_norm, total_steps))
    if strategy == "exponential":
        return ScheduledClipping(ExponentialDecay(clip_norm, values["decay_rate"], total_steps))
    if strategy == "power":
        return ScheduledClipping(PowerDecay(clip_norm, values["decay_power"]))
    if strategy == "automatic":
        return AutomaticClipping(clip_norm)
    if strategy == "mean_norm":
        return MeanNormClipping(clip_norm, values["mean_norm_factor"], mean_noise_stddev=stddev)
    max_variance = values["max_variance"]
    return AdaClip(min_variance=max_variance / _VARIANCES, max_variance=max_variance)
