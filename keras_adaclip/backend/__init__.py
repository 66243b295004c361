"""The functions in which TensorFlow, JAX and PyTorch differ.

`contract.py` states each function once. The folder of the backend that `keras.backend.backend()`
names overrides those that differ. No other folder imports a framework, except for
`integrations/tensorflow_privacy/`. Private names of Keras are in `keras_private.py`.
"""

import importlib

import keras

from keras_adaclip.backend import contract
from keras_adaclip.backend.contract import *  # noqa: F403

__all__ = [
    name
    for name, member in vars(contract).items()
    if not name.startswith("_") and getattr(member, "__module__", None) == contract.__name__
]

_backend = importlib.import_module(f"keras_adaclip.backend.{keras.backend.backend()}")
globals().update({name: getattr(_backend, name) for name in __all__ if hasattr(_backend, name)})
