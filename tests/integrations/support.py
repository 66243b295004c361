"""A small population and a model whose rounds a query of TensorFlow Privacy aggregates."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import keras_adaclip as ka
from keras_adaclip.federated import ClientData, FederatedSequential
from tests.federated.support import weights  # noqa: F401

NUM_CLIENTS, SIZE, FEATURES, CLASSES = 12, 5, 4, 3
SHAPES = [(FEATURES, CLASSES), (CLASSES,)]
SPECS = [tf.TensorSpec(shape) for shape in SHAPES]
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def arrays(seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(NUM_CLIENTS * SIZE, FEATURES)).astype("float32")
    y = generator.integers(0, CLASSES, len(x))
    return x, y, np.repeat(np.arange(NUM_CLIENTS), SIZE)


def population(seed=0):
    return ClientData.from_arrays(*arrays(seed))


def stack():
    return [keras.Input((FEATURES,)), layers.Dense(CLASSES)]


def compiled(query, *, server=None, client_rate=0.5, chunk=None, made_of=None, **options):
    keras.utils.set_random_seed(0)
    model = FederatedSequential(made_of or stack())
    server = server or keras.optimizers.SGD(1.0)
    kind = ka.integrations.tensorflow_privacy.QueryOptimizer
    # One step on all of a client's examples: the same whatever order they come in.
    options |= {"client_optimizer": keras.optimizers.SGD(client_rate), "client_batch_size": None}
    model.compile(kind(server, query, microbatch_size=chunk), loss=LOSS, **options)
    return model
