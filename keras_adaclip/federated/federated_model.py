"""The federated models: functional, sequential or subclassed Keras models that train on clients."""

from typing import Any

import keras

from keras_adaclip.federated.fit import FederatedTraining
from keras_adaclip.training import SequentialForm, SubclassedForm, converted


@keras.saving.register_keras_serializable(package="keras_adaclip")
class FederatedFunctional(FederatedTraining, keras.Model):
    """The functional model that `FederatedModel(inputs, outputs)` returns."""


class FederatedModel(SubclassedForm, FederatedTraining, keras.Model):
    """A Keras model that trains on clipped and noised contributions of clients.

    `FederatedModel(inputs, outputs)` makes a functional model; a subclass with `call` makes a
    subclassed one. One step of `fit` is one round: the drawn clients train on their own examples,
    starting from the server's weights, and contribute the change. Clipping, noise, the server's
    optimizer and the accounting are those of `DPOptimizer`.

    Args:
        inputs: Symbolic inputs, as for `keras.Model`.
        outputs: Symbolic outputs, as for `keras.Model`.
        name: The name of the model.
        public_preprocessing: As for `privatize`.

    Guarantees:
        The weights after `fit` are (epsilon, delta)-differentially private for adding or removing
        one *client* with all of its examples, with the epsilon that `privacy_spent` returns. The
        losses and metrics of the clients are not covered. `fit` sees every client's data; where
        these are on other machines, `integrations.flower` trains the model.

    Example:

    >>> import keras
    >>> inputs = keras.Input((4,))
    >>> model = FederatedModel(inputs, keras.layers.Dense(3)(inputs))
    >>> model.privacy_unit
    'client'

    References:
        McMahan et al. 2018, "Learning differentially private recurrent language models"; Reddi et
        al. 2021, "Adaptive federated optimization"; Andrew et al. 2021, "Differentially private
        learning with adaptive clipping", algorithm 1.
    """

    _functional = FederatedFunctional
    stands_for = FederatedTraining


@keras.saving.register_keras_serializable(package="keras_adaclip")
class FederatedSequential(SequentialForm, FederatedTraining, keras.Sequential):
    """A `keras.Sequential` that trains on clipped and noised contributions of clients.

    Args:
        layers: The list of layers, as for `keras.Sequential`.
        trainable: Whether the weights are trained.
        name: The name of the model.
        public_preprocessing: As for `privatize`.

    Guarantees:
        Those of `FederatedModel`.

    Example:

    >>> import keras
    >>> model = FederatedSequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> model.count_params()
    15
    """


def federate(
    model: keras.Model,
    replace_batch_normalization: bool = False,
    *,
    public_preprocessing: bool = False,
) -> Any:
    """Return a federated model that shares the layers and weights of a Keras model.

    The new model must be compiled: the settings of `model.compile` are not taken over.

    Args:
        model: A Functional or Sequential model. It is not changed, but shares its weights.
        replace_batch_normalization: Whether every `BatchNormalization` is replaced by a new
            `GroupNormalization`. The weights of the other layers stay shared.
        public_preprocessing: As for `privatize`.

    Returns:
        A `FederatedModel` or a `FederatedSequential`, to be compiled with a `DPOptimizer`.

    Raises:
        TypeError: If `model` is a subclassed model, a federated model or no Keras model, or if its
            class replaces methods of Keras (`compute_loss`, `fit`), which the new model would lack.

    Example:

    >>> import keras
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> type(federate(model)).__name__
    'FederatedSequential'
    """
    if isinstance(model, FederatedTraining):
        raise TypeError("Argument `model` must not be federated already.")
    federated = converted(model, FederatedSequential, FederatedModel, replace_batch_normalization)
    federated.public_preprocessing = public_preprocessing
    return federated
