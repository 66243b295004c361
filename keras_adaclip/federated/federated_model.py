"""`FederatedModel`: functional or subclassed, a Keras model that trains over clients."""

from typing import Any

import keras

from keras_adaclip.federated.federated_training import FederatedTraining
from keras_adaclip.training import ModelType, is_functional, make_functional


@keras.saving.register_keras_serializable(package="keras_adaclip")
class FederatedFunctional(FederatedTraining, keras.Model):
    """What `FederatedModel(inputs, outputs)` returns."""


class FederatedModel(FederatedTraining, keras.Model, metaclass=ModelType):
    """A Keras model that trains on clipped and noised contributions of clients.

    `FederatedModel(inputs, outputs)` makes a functional model; a subclass with `call` makes a
    subclassed one. One step of `fit` is one round: every client takes part with one probability,
    trains on its own examples from the server's weights, and contributes the change. Clipping,
    noise, the server's optimizer and the accounting are those of `DPOptimizer`.

    Args:
        inputs: symbolic inputs, as for `keras.Model`.
        outputs: symbolic outputs, as for `keras.Model`.
        name: name of the model.

    Guarantees:
        The weights after `fit` are (epsilon, delta)-differentially private for adding or removing
        one *client*, with all of its examples, with the epsilon that `privacy_spent` tells. The
        losses and metrics of the clients are not covered. This simulates federated learning in
        one process: the server sees every client's data.

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

    stands_for = FederatedTraining

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A functional model where inputs and outputs are given, else one of this class."""
        if cls is FederatedModel and is_functional(args, kwargs):
            return FederatedFunctional(*args, **kwargs)
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if is_functional(args, kwargs):
            make_functional(type(self), FederatedModel, FederatedFunctional, FederatedTraining)
            FederatedFunctional.__init__(self, *args, **kwargs)
        else:
            super().__init__(*args, **kwargs)
