"""The functions of `contract.py` that TensorFlow overrides."""

from keras_adaclip.backend.tensorflow.devices import *  # noqa: F403
from keras_adaclip.backend.tensorflow.gradients import *  # noqa: F403
from keras_adaclip.backend.tensorflow.steps import *  # noqa: F403
