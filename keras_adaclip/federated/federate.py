"""`federate`: a federated model with the layers and weights of a Keras model."""

from typing import Any

import keras

from keras_adaclip.federated.federated_model import FederatedModel
from keras_adaclip.federated.federated_sequential import FederatedSequential
from keras_adaclip.federated.federated_training import FederatedTraining
from keras_adaclip.training import converted


def federate(model: keras.Model, replace_batch_normalization: bool = False) -> Any:
    """A federated model that shares the layers and weights of a Functional or Sequential model.

    What the model was compiled with is not taken over: compile the new one.

    Args:
        model: the model; it is not changed, but its weights are those of the new model too.
        replace_batch_normalization: whether every `BatchNormalization` is replaced by a new
            `GroupNormalization`. The weights of the other layers stay shared.

    Returns:
        A `FederatedModel` or a `FederatedSequential`, to be compiled with a `DPOptimizer`.

    Raises:
        TypeError: where `model` is a subclassed model, or no Keras model; where its class replaces
            methods of Keras (`compute_loss`, `fit`), which the new model would not have.

    Example:

    >>> import keras
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> type(federate(model)).__name__
    'FederatedSequential'
    """
    if isinstance(model, FederatedTraining):
        raise TypeError("The model is federated already. Received: a federated model")
    return converted(
        model,
        FederatedSequential,
        FederatedModel,
        "federate",
        replace_batch_normalization,
    )
