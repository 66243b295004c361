"""The functions of `contract.py` that JAX overrides."""

from keras_adaclip.backend.jax.devices import *  # noqa: F403
from keras_adaclip.backend.jax.gradients import *  # noqa: F403
from keras_adaclip.backend.jax.steps import *  # noqa: F403
