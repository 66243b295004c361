"""Searches for clipping thresholds and other choices of private training, on keras-tuner.

Each name is imported when it is first used, since the rest of the package works without
keras-tuner.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_adaclip.tuners.choices import clipping_choices
    from keras_adaclip.tuners.clipping_hypermodel import ClippingHyperModel
    from keras_adaclip.tuners.greedy_clip_tuner import GreedyClipTuner
    from keras_adaclip.tuners.private_search import PrivateSearch

__all__ = ["ClippingHyperModel", "GreedyClipTuner", "PrivateSearch", "clipping_choices"]

# The module of each public name.
_MODULES = ("clipping_hypermodel", "greedy_clip_tuner", "private_search", "choices")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{_MODULES[__all__.index(name)]}")
    except ImportError as error:
        if error.name is None or not error.name.startswith("keras_tuner"):
            raise
        raise ImportError(
            "keras-tuner is needed for `keras_adaclip.tuners`: pip install keras-adaclip[tuner]"
        ) from error
    return getattr(module, name)


def __dir__() -> list[str]:
    return [*__all__]
