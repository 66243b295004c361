"""`privatize`: a private model with the layers and weights of a Keras model."""

from typing import Any

import keras

from keras_adaclip.models.private_model import PrivateModel
from keras_adaclip.models.private_sequential import PrivateSequential
from keras_adaclip.models.private_training import PrivateTraining
from keras_adaclip.training import converted


def privatize(model: keras.Model, replace_batch_normalization: bool = False) -> Any:
    """A private model that shares the layers and weights of a Functional or Sequential model.

    What the model was compiled with is not taken over: compile the new one.

    Args:
        model: the model; it is not changed, but its weights are those of the new model too.
        replace_batch_normalization: whether every `BatchNormalization` is replaced by a new
            `GroupNormalization`. The weights of the other layers stay shared.

    Returns:
        A `PrivateModel` or a `PrivateSequential`, to be compiled with a `DPOptimizer`.

    Raises:
        TypeError: where `model` is a subclassed model, or no Keras model; where its class replaces
            methods of Keras (`compute_loss`, `fit`), which the new model would not have.

    Example:

    >>> import keras
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> type(privatize(model)).__name__
    'PrivateSequential'
    """
    if isinstance(model, PrivateTraining):
        raise TypeError("The model is private already. Received: a private model")
    return converted(
        model, PrivateSequential, PrivateModel, "privatize", replace_batch_normalization
    )
