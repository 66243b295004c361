"""Keras models whose `fit` is private: functional, subclassed and sequential."""

import keras

from keras_adaclip.models.private_training import PrivateTraining
from keras_adaclip.training import SequentialForm, SubclassedForm


@keras.saving.register_keras_serializable(package="keras_adaclip")
class PrivateFunctional(PrivateTraining, keras.Model):
    """A private functional model, made by `PrivateModel(inputs, outputs)`."""


class PrivateModel(SubclassedForm, PrivateTraining, keras.Model):
    """A Keras model that trains on clipped and noised gradients of single examples.

    `PrivateModel(inputs, outputs)` makes a functional model; a subclass with `call` makes a
    subclassed one. Compile it with a `keras_adaclip.optimizers.DPOptimizer`; everything else is
    Keras: `fit`, `evaluate`, `predict`, callbacks, saving.

    Args:
        inputs: Symbolic inputs, as for `keras.Model`.
        outputs: Symbolic outputs, as for `keras.Model`.
        name: Name of the model.
        public_preprocessing: Your word that what `adapt` has made of data came from public data.

    Guarantees:
        The weights after `fit` are (epsilon, delta)-differentially private for adding or removing
        one training example (Poisson sampling) or for replacing one by a hole (other data), with
        the epsilon of `privacy_spent`. Training losses and metrics are not covered.

    Example:

    >>> import keras
    >>> inputs = keras.Input((4,))
    >>> model = PrivateModel(inputs, keras.layers.Dense(3)(inputs))
    >>> model.count_params()
    15

    Reference:
        Abadi et al. 2016, "Deep learning with differential privacy".
    """

    _functional = PrivateFunctional
    stands_for = PrivateTraining


@keras.saving.register_keras_serializable(package="keras_adaclip")
class PrivateSequential(SequentialForm, PrivateTraining, keras.Sequential):
    """A `keras.Sequential` that trains on clipped and noised gradients of single examples.

    Args:
        layers: List of layers, as for `keras.Sequential`.
        trainable: Whether the weights are trained.
        name: Name of the model.
        public_preprocessing: Your word that what `adapt` has made of data came from public data.

    Guarantees:
        Those of `PrivateModel`.

    Example:

    >>> import keras
    >>> model = PrivateSequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> model.count_params()
    15

    Reference:
        Abadi et al. 2016, "Deep learning with differential privacy".
    """
