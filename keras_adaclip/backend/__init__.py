"""The functions in which TensorFlow, JAX and PyTorch differ.

`contract.py` states each function once. The two modules of the backend that
`keras.backend.backend()` names override those that differ. No other folder imports a framework.
Private names of Keras are in `keras_private.py`.
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

for _part in ("gradients", "steps"):
    _module = importlib.import_module(f"keras_adaclip.backend.{keras.backend.backend()}_{_part}")
    globals().update({name: getattr(_module, name) for name in __all__ if hasattr(_module, name)})
