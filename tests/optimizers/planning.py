"""Data, models and callbacks of the tests of planned budgets."""

import keras
import numpy as np

import keras_adaclip as ka

AutoDPOptimizer, PrivacyCallback = ka.optimizers.AutoDPOptimizer, ka.callbacks.PrivacyCallback
N, TARGET = 200, 3.0
DELTA = N**-1.1


def data(num_examples=N):
    x = np.random.default_rng(0).normal(size=(num_examples, 4)).astype("float32")
    return x, (x[:, 0] > 0).astype("int32")


def compile_with(model, optimizer):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def compiled(optimizer):
    stack = [keras.Input((4,)), keras.layers.Dense(2, name="dense")]
    return compile_with(ka.PrivateSequential(stack, name="model"), optimizer)


def fit(model, num_examples=N, callbacks=(), **options):
    options = {"verbose": 0, "callbacks": list(callbacks), **options}
    return model.fit(*data(num_examples), **options)


def spent(model, delta=DELTA):
    return model.privacy_spent(delta).epsilon


def assert_spent(model, target=TARGET, delta=DELTA):
    """Asserts that a plan has used its budget up, and no more."""
    assert 0.998 * target <= spent(model, delta) <= target


class Stops(keras.callbacks.Callback):
    """Ends training after an epoch, with most of the budget left."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = True


class Dies(keras.callbacks.Callback):
    """Is interrupted before an epoch."""

    def __init__(self, epoch=1):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            raise KeyboardInterrupt


def plan_of(model):
    """First step, number of steps and steps done of the plan of `PlannedMomentum`."""
    inner = model.optimizer.inner_optimizer
    values = {each.name: keras.ops.convert_to_numpy(each.value) for each in inner.variables}
    return tuple(int(values[name]) for name in ("first_step", "num_steps", "iteration"))
