"""`PrivateModel`: functional or subclassed, a Keras model whose `fit` is private."""

from typing import Any

import keras

from keras_adaclip.models.private_training import PrivateTraining
from keras_adaclip.training import ModelType, is_functional, make_functional


@keras.saving.register_keras_serializable(package="keras_adaclip")
class PrivateFunctional(PrivateTraining, keras.Model):
    """What `PrivateModel(inputs, outputs)` returns."""


class PrivateModel(PrivateTraining, keras.Model, metaclass=ModelType):
    """A Keras model that trains on clipped and noised gradients of single examples.

    `PrivateModel(inputs, outputs)` makes a functional model; a subclass with `call` makes a
    subclassed one. Compile it with a `keras_adaclip.optimizers.DPOptimizer`; everything else is
    Keras: `fit`, `evaluate`, `predict`, callbacks, saving.

    Args:
        inputs: symbolic inputs, as for `keras.Model`.
        outputs: symbolic outputs, as for `keras.Model`.
        name: name of the model.

    Guarantees:
        The weights after `fit` are (epsilon, delta)-differentially private for adding or removing
        one training example (Poisson sampling) or for replacing one by a hole (other data), with
        the epsilon that `privacy_spent` tells. Training losses and metrics are not covered.

    Example:

    >>> import keras
    >>> inputs = keras.Input((4,))
    >>> model = PrivateModel(inputs, keras.layers.Dense(3)(inputs))
    >>> model.count_params()
    15

    Reference:
        Abadi et al. 2016, "Deep learning with differential privacy".
    """

    stands_for = PrivateTraining

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A functional model where inputs and outputs are given, else one of this class."""
        if cls is PrivateModel and is_functional(args, kwargs):
            return PrivateFunctional(*args, **kwargs)
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if is_functional(args, kwargs):
            make_functional(type(self), PrivateModel, PrivateFunctional, PrivateTraining)
            PrivateFunctional.__init__(self, *args, **kwargs)
        else:
            super().__init__(*args, **kwargs)
