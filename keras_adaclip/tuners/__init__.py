"""Searches for clipping thresholds and for the other choices of private training, on keras-tuner.

What needs keras-tuner is loaded when it is first asked for: the rest of the package works without.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_adaclip.tuners.choices.clipping_hypermodel import ClippingHyperModel
    from keras_adaclip.tuners.choices.strategy_choices import clipping_choices
    from keras_adaclip.tuners.greedy.greedy_clip_tuner import GreedyClipTuner
    from keras_adaclip.tuners.greedy.initial_norm import initial_norm_from
    from keras_adaclip.tuners.greedy.power_trend import PowerTrend
    from keras_adaclip.tuners.private.private_search import PrivateSearch

# Where each public name stands.
_MODULES: dict[str, str] = {
    "ClippingHyperModel": "choices.clipping_hypermodel",
    "GreedyClipTuner": "greedy.greedy_clip_tuner",
    "PowerTrend": "greedy.power_trend",
    "PrivateSearch": "private.private_search",
    "clipping_choices": "choices.strategy_choices",
    "initial_norm_from": "greedy.initial_norm",
}

__all__ = [
    "ClippingHyperModel",
    "GreedyClipTuner",
    "PowerTrend",
    "PrivateSearch",
    "clipping_choices",
    "initial_norm_from",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    except ImportError as error:
        if error.name is None or not error.name.startswith("keras_tuner"):
            raise
        raise ImportError(
            "keras-tuner is needed for `keras_adaclip.tuners`: pip install keras-adaclip[tuner]"
        ) from error
    return getattr(module, name)


def __dir__() -> list[str]:
    return [*__all__]
