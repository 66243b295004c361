"""The clipping methods that are compared, each one entry in `METHODS`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras_adaclip as ka

# Du et al. divide by `rate ** (step / total_steps)`; Lin et al. give no rate and call the norms
# "very close" to those of the linear decay, which ends at half of where it begins.
_EXPONENTIAL_DECAY_RATE = 2.0

Settings = dict[str, Any]
RELU_OR_TANH = ("relu", "tanh")


@dataclass(frozen=True)
class Transferred:
    """What the greedy search on public data found.

    Args:
        values: the clipping norm of each epoch.
        initial_norm: the mean, over several runs, of the norm of the first epoch.
    """

    values: tuple[float, ...]
    initial_norm: float


@dataclass(frozen=True)
class Method:
    """A column of the comparison.

    Args:
        title: its name in tables and figures.
        settings: from the paper's entry for this column, all the columns' entries and what was
            transferred, to the hyperparameters of this method.
        build: from hyperparameters and the number of steps, to the clipping strategy.
        variants: the next lower and the next higher value of the main hyperparameter, tried in
            the tuned table.
        activations: the two activations of the tuned table; the paper's table has the first.
        has_threshold: whether one clipping norm says what the method did.
        needs_search: whether it uses what the greedy search on public data finds.
        is_slow: whether a step takes several times as long as other methods'.
        is_adaptive: whether it follows the gradients; the paper draws their norms separately.
    """

    title: str
    settings: Callable[[dict[str, Settings], Transferred | None], Settings]
    build: Callable[[Settings, int], ka.clipping.ClippingStrategy]
    variants: Callable[[Settings], list[Settings]]
    activations: tuple[str, str] = RELU_OR_TANH
    has_threshold: bool = True
    is_adaptive: bool = False
    needs_search: bool = False
    is_slow: bool = False


def _scheduled(schedule: Any) -> ka.clipping.ClippingStrategy:
    return ka.clipping.ScheduledClipping(schedule)


def _scaled(name: str, *factors: float) -> Callable[[Settings], list[Settings]]:
    return lambda settings: [
        {**settings, name: float(f"{factor * settings[name]:.4g}")} for factor in factors
    ]


def _others(name: str, *values: float) -> Callable[[Settings], list[Settings]]:
    return lambda settings: [{**settings, name: value} for value in values]


def _needed(transferred: Transferred | None) -> Transferred:
    if transferred is None:
        raise ValueError(
            "The methods 'transfer' and 'power' need what the greedy search on public data finds: "
            "run the command `greedy` first."
        )
    return transferred


_HALF_AND_DOUBLE = (0.5, 2.0)

METHODS = {
    "fixed": Method(
        "fixed (Abadi)",
        settings=lambda paper, _: paper["fixed"],
        build=lambda settings, _: ka.clipping.FixedClipping(**settings),
        variants=_scaled("clip_norm", *_HALF_AND_DOUBLE),
    ),
    "tempered": Method(
        "tempered sigmoid (Papernot)",
        settings=lambda paper, _: paper["tempered"],
        build=lambda settings, _: ka.clipping.FixedClipping(**settings),
        variants=_scaled("clip_norm", *_HALF_AND_DOUBLE),
        activations=("tempered(1.58, 3, 0.71)", "tempered(2, 2, 1)"),
    ),
    "linear": Method(
        "linear decay (Yu)",
        settings=lambda paper, _: paper["linear"],
        build=lambda settings, steps: _scheduled(
            ka.schedules.LinearDecay(**settings, total_steps=steps)
        ),
        variants=_scaled("initial_value", *_HALF_AND_DOUBLE),
    ),
    # Lin et al. do not say which of h1 > h2 is which: the floor of the variances must be h2.
    "adaclip": Method(
        "AdaClip (Pichapati)",
        settings=lambda paper, _: {
            "beta1": 0.9,
            "beta2": 0.99,
            "min_variance": paper["adaclip"]["h2"],
            "max_variance": paper["adaclip"]["h1"],
        },
        build=lambda settings, _: ka.clipping.AdaClip(**settings),
        # Both bounds, so that the floor never passes the ceiling.
        variants=lambda settings: [
            _scaled("min_variance", factor)(_scaled("max_variance", factor)(settings)[0])[0]
            for factor in (0.1, 10.0)
        ],
        has_threshold=False,
        is_slow=True,
    ),
    "quantile": Method(
        "quantile (Andrew)",
        settings=lambda paper, _: {
            **paper["quantile"],
            "initial_clip_norm": 0.1,
            "learning_rate": 0.2,
        },
        build=lambda settings, _: ka.clipping.QuantileClipping(**settings),
        variants=_others("target_quantile", 0.5, 0.9),
        is_adaptive=True,
    ),
    "exponential": Method(
        "exponential decay (Du)",
        settings=lambda paper, _: {
            **paper["exponential"],
            "decay_rate": _EXPONENTIAL_DECAY_RATE,
        },
        build=lambda settings, steps: _scheduled(
            ka.schedules.ExponentialDecay(**settings, total_steps=steps)
        ),
        variants=_scaled("initial_value", *_HALF_AND_DOUBLE),
    ),
    "transfer": Method(
        "transfer (Lin)",
        settings=lambda _, found: {"values": list(_needed(found).values), "scale": 1.0},
        build=lambda settings, _: _scheduled(
            ka.schedules.PiecewiseConstant([settings["scale"] * v for v in settings["values"]])
        ),
        variants=_scaled("scale", *_HALF_AND_DOUBLE),
        needs_search=True,
    ),
    "power": Method(
        "power decay (Lin)",
        settings=lambda _, found: {"initial_value": _needed(found).initial_norm, "power": 0.5},
        build=lambda settings, _: _scheduled(ka.schedules.PowerDecay(**settings)),
        variants=_scaled("initial_value", *_HALF_AND_DOUBLE),
        needs_search=True,
    ),
    # Not in the paper. The norm is that of the fixed column, so a step's noise is the same.
    "automatic": Method(
        "AUTO-S (Bu)",
        settings=lambda paper, _: {
            "clip_norm": paper["fixed"]["clip_norm"],
            "stabilizer": 0.01,
        },
        build=lambda settings, _: ka.clipping.AutomaticClipping(**settings),
        variants=_scaled("clip_norm", *_HALF_AND_DOUBLE),
    ),
    # Not in the paper, which says of it only that it "does not perform well".
    "mean_norm": Method(
        "mean norm (van der Veen)",
        settings=lambda *_: {"initial_clip_norm": 1.0, "factor": 1.0, "norm_bound_factor": 4.0},
        build=lambda settings, _: ka.clipping.MeanNormClipping(**settings),
        variants=_scaled("factor", *_HALF_AND_DOUBLE),
        is_adaptive=True,
    ),
}
