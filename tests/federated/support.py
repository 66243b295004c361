"""Small populations and models of clients."""

import keras
import numpy as np
from keras import layers, ops

import keras_adaclip as ka
from keras_adaclip.federated import ClientData, FederatedSequential

FROM_LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def clients_of(sizes, x_shape=(4,), y_shape=(), num_classes=3, seed=0):
    """Return a client for each number of examples."""
    generator = np.random.default_rng(seed)
    ids = np.repeat(np.arange(len(sizes)), sizes)
    x = generator.normal(size=(len(ids), *x_shape)).astype("float32")
    y = generator.integers(0, num_classes, (len(ids), *y_shape))
    return ClientData.from_arrays(x, y, ids, population=range(len(sizes)))


def mlp():
    return [keras.Input((4,)), layers.Dense(5, activation="tanh"), layers.Dense(3)]


def compiled(model=None, server=None, client=0.3, **options):
    """Return a compiled model; without noise and with a clipping norm of 1,000 by default.

    Args:
        model: A federated model, or the layers of one.
        server: The server's optimizer.
        client: The clients' optimizer, or the learning rate of SGD.
        **options: Arguments of `DPOptimizer` and `compile`.
    """
    keras.utils.set_random_seed(0)
    if not isinstance(model, keras.Model):
        model = FederatedSequential(model or mlp())
    private = {"clipping": 1e3, "noise_multiplier": 0.0, "microbatch_size": None, "seed": 1}
    private = {name: options.pop(name, value) for name, value in private.items()}
    model.compile(
        optimizer=ka.optimizers.DPOptimizer(server or keras.optimizers.SGD(1.0), **private),
        client_optimizer=keras.optimizers.SGD(client) if isinstance(client, float) else client,
        **{"client_batch_size": 4, "loss": FROM_LOGITS, **options},
    )
    return model


def weights(model):
    """Return the trainable weights in one vector."""
    parts = [ops.convert_to_numpy(each).ravel() for each in model.trainable_variables]
    return np.concatenate(parts)


def assert_close(found, expected, tolerance=1e-5):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
