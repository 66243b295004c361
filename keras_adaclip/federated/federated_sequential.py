"""`FederatedSequential`: a stack of layers that trains over clients."""

import keras

from keras_adaclip.federated.federated_training import FederatedTraining


@keras.saving.register_keras_serializable(package="keras_adaclip")
class FederatedSequential(FederatedTraining, keras.Sequential):
    """A `keras.Sequential` that trains on clipped and noised contributions of clients.

    Args:
        layers: list of layers, as for `keras.Sequential`.
        trainable: whether the weights are trained.
        name: name of the model.

    Guarantees:
        Those of `FederatedModel`.

    Example:

    >>> import keras
    >>> model = FederatedSequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> model.count_params()
    15
    """
