"""The clipping methods that are compared, each one entry in `METHODS`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras_adaclip as ka

# Du et al. divide by `rate ** (step / total_steps)`; Lin et al. give no rate and call the norms
# "very close" to those of the linear decay, which ends at half of where it begins.
_EXPONENTIAL_DECAY_RATE = 2.0

Settings = dict[str, Any]
# From settings and a number of steps, downward where negative, to the settings with the
# hyperparameter moved by so many; None where it cannot be.
Knob = Callable[[Settings, int], Settings | None]
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
        knobs: the hyperparameters that the tuned table chooses, the main one first.
        activations: the two activations of the tuned table; the paper's table has the first.
        has_threshold: whether one clipping norm says what the method did.
        needs_search: whether it uses what the greedy search on public data finds.
        is_slow: whether a step takes several times as long as other methods'.
        is_adaptive: whether it follows the gradients; the paper draws their norms separately.
        is_in_paper: whether the paper's tables have it.
    """

    title: str
    settings: Callable[[dict[str, Settings], Transferred | None], Settings]
    build: Callable[[Settings, int], ka.clipping.ClippingStrategy]
    knobs: tuple[Knob, ...]
    activations: tuple[str, str] = RELU_OR_TANH
    has_threshold: bool = True
    is_adaptive: bool = False
    needs_search: bool = False
    is_slow: bool = False
    is_in_paper: bool = True


def _scheduled(schedule: Any) -> ka.clipping.ClippingStrategy:
    return ka.clipping.ScheduledClipping(schedule)


def _scaled(*names: str, factor: float = 2.0) -> Knob:
    """A knob that multiplies, several hyperparameters alike."""
    return lambda settings, steps: {
        **settings,
        **{name: float(f"{factor**steps * settings[name]:.4g}") for name in names},
    }


def _shifted(name: str, step: float) -> Knob:
    """A knob that adds, for a hyperparameter between 0 and 1."""

    def turned(settings: Settings, steps: int) -> Settings | None:
        value = round(settings[name] + steps * step, 4)
        return {**settings, name: value} if 0.0 < value < 1.0 else None

    return turned


def _needed(transferred: Transferred | None) -> Transferred:
    if transferred is None:
        raise ValueError(
            "The methods 'transfer' and 'power' need what the greedy search on public data finds: "
            "run the command `greedy` first."
        )
    return transferred


METHODS = {
    "fixed": Method(
        "fixed (Abadi)",
        settings=lambda paper, _: paper["fixed"],
        build=lambda settings, _: ka.clipping.FixedClipping(**settings),
        knobs=(_scaled("clip_norm"),),
    ),
    "tempered": Method(
        "tempered sigmoid (Papernot)",
        settings=lambda paper, _: paper["tempered"],
        build=lambda settings, _: ka.clipping.FixedClipping(**settings),
        knobs=(_scaled("clip_norm"),),
        activations=("tempered(1.58, 3, 0.71)", "tempered(2, 2, 1)"),
    ),
    "linear": Method(
        "linear decay (Yu)",
        settings=lambda paper, _: paper["linear"],
        build=lambda settings, steps: _scheduled(
            ka.schedules.LinearDecay(**settings, total_steps=steps)
        ),
        knobs=(_scaled("initial_value"),),
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
        knobs=(_scaled("min_variance", "max_variance", factor=10.0),),
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
        knobs=(_shifted("target_quantile", 0.2),),
        is_adaptive=True,
    ),
    "exponential": Method(
        "exponential decay (Du)",
        settings=lambda paper, _: {**paper["exponential"], "decay_rate": _EXPONENTIAL_DECAY_RATE},
        build=lambda settings, steps: _scheduled(
            ka.schedules.ExponentialDecay(**settings, total_steps=steps)
        ),
        knobs=(_scaled("initial_value"),),
    ),
    "transfer": Method(
        "transfer (Lin)",
        settings=lambda _, found: {"values": list(_needed(found).values), "scale": 1.0},
        build=lambda settings, _: _scheduled(
            ka.schedules.PiecewiseConstant([settings["scale"] * v for v in settings["values"]])
        ),
        knobs=(_scaled("scale"),),
        needs_search=True,
    ),
    "power": Method(
        "power decay (Lin)",
        settings=lambda _, found: {"initial_value": _needed(found).initial_norm, "power": 0.5},
        build=lambda settings, _: _scheduled(ka.schedules.PowerDecay(**settings)),
        # Downward the power is the slower decay.
        knobs=(_scaled("initial_value"), _shifted("power", 0.1)),
        needs_search=True,
    ),
    # Not in the paper. The norm is that of the fixed column, so a step's noise is the same.
    "automatic": Method(
        "AUTO-S (Bu)",
        settings=lambda paper, _: {"clip_norm": paper["fixed"]["clip_norm"], "stabilizer": 0.01},
        build=lambda settings, _: ka.clipping.AutomaticClipping(**settings),
        knobs=(_scaled("clip_norm"),),
        is_in_paper=False,
    ),
    # Not in the paper, which says of it only that it "does not perform well".
    "mean_norm": Method(
        "mean norm (van der Veen)",
        settings=lambda *_: {"initial_clip_norm": 1.0, "factor": 1.0, "norm_bound_factor": 4.0},
        build=lambda settings, _: ka.clipping.MeanNormClipping(**settings),
        knobs=(_scaled("factor"),),
        is_adaptive=True,
        is_in_paper=False,
    ),
}

PAPER_METHODS = tuple(name for name, method in METHODS.items() if method.is_in_paper)
