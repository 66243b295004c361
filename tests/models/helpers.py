"""Small data, small models and a short way to compile them, for the tests of models."""

import warnings
from contextlib import contextmanager

import keras
import numpy as np
import pytest

import keras_adaclip as ka

NUM_EXAMPLES, NUM_FEATURES, NUM_CLASSES = 24, 4, 3
DELTA = 1e-3


def features(num_examples=NUM_EXAMPLES, shape=(NUM_FEATURES,), seed=0):
    """Normal numbers, float32 of shape `(num_examples, *shape)`."""
    return np.random.default_rng(seed).normal(size=(num_examples, *shape)).astype("float32")


def labels(num_examples=NUM_EXAMPLES, num_classes=NUM_CLASSES, seed=1):
    """Class numbers, int32 of shape `(num_examples,)`."""
    return np.random.default_rng(seed).integers(0, num_classes, num_examples).astype("int32")


def dense_layers():
    hidden = keras.layers.Dense(5, activation="tanh", name="hidden")
    return [hidden, keras.layers.Dense(NUM_CLASSES, name="logits")]


def dense_model(cls=ka.PrivateModel):
    """A functional classifier."""
    inputs = keras.Input((NUM_FEATURES,))
    hidden, logits = dense_layers()
    return cls(inputs, logits(hidden(inputs)))


def model_with(layer, cls=ka.PrivateModel):
    """A functional classifier that begins with a layer."""
    inputs = keras.Input((NUM_FEATURES,))
    return cls(inputs, keras.layers.Dense(NUM_CLASSES)(layer(inputs)))


def sparse_crossentropy():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, name="crossentropy")


def dp_optimizer(noise_multiplier=1.0, clipping=1.0, optimizer=None, **options):
    """A `DPOptimizer` around SGD with momentum."""
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9) if optimizer is None else optimizer
    return ka.optimizers.DPOptimizer(
        optimizer, clipping=clipping, noise_multiplier=noise_multiplier, **options
    )


def compiled(model=None, noise_multiplier=1.0, clipping=1.0, optimizer=None, **options):
    """`model` (a dense classifier where None), compiled; `options` go to `compile`."""
    model = dense_model() if model is None else model
    names = {"seed", "microbatch_size", "memory_limit", "gradient_method"} & set(options)
    private = {name: options.pop(name) for name in names}
    optimizer = dp_optimizer(noise_multiplier, clipping, optimizer, **private)
    model.compile(optimizer=optimizer, **{"loss": sparse_crossentropy(), **options})
    return model


def quiet_fit(model, x=None, y=None, **options):
    """`fit` without a progress bar; returns the dict of the history."""
    return model.fit(x, y, verbose=0, **options).history


def planned(steps, noise_multiplier=1.0, sampling="poisson", **options):
    """Epsilon of steps on batches of 6."""
    options = {"delta": DELTA, "sampling": sampling, **options}
    return ka.accounting.compute_epsilon(noise_multiplier, NUM_EXAMPLES, 6, steps=steps, **options)


def weights_of(model):
    return [np.array(weight) for weight in model.get_weights()]


def assert_same_weights(model, before):
    np.testing.assert_equal(weights_of(model), list(before))


@contextmanager
def warns(match):
    """`pytest.warns(UserWarning)`, past which Keras's own `__array__` warnings do not get."""
    with pytest.warns(UserWarning, match=match), warnings.catch_warnings():  # noqa: PT031
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
        yield


def quick_groups(monkeypatch):
    """Replaces epsilon of groups in reports, which takes seconds and has tests of its own."""
    name = "keras_adaclip.accounting.report.group_epsilon"
    monkeypatch.setattr(name, lambda rows, delta, group_size: float(group_size))
