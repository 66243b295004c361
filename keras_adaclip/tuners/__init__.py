"""Searches for clipping thresholds and for the other choices of private training, on keras-tuner.

What needs keras-tuner is loaded when it is first asked for: the rest of the package works without.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_adaclip.tuners.clipping_hypermodel import ClippingHyperModel
    from keras_adaclip.tuners.strategy_choices import clipping_choices

# Where each public name stands.
_MODULES: dict[str, str] = {
    "ClippingHyperModel": "clipping_hypermodel",
    "clipping_choices": "strategy_choices",
}

__all__ = [
    "ClippingHyperModel",
    "clipping_choices",
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
