"""`PrivateSequential`: a stack of layers whose `fit` is private."""

import keras

from keras_adaclip.models.private_training import PrivateTraining


@keras.saving.register_keras_serializable(package="keras_adaclip")
class PrivateSequential(PrivateTraining, keras.Sequential):
    """A `keras.Sequential` that trains on clipped and noised gradients of single examples.

    Args:
        layers: list of layers, as for `keras.Sequential`.
        trainable: whether the weights are trained.
        name: name of the model.

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
