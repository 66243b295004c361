"""Models whose private step can be computed by hand, and recorders of their steps.

*Pure noise*: zero inputs, zero kernels, no bias. Every gradient is zero, so with plain SGD at
learning rate 1 a step changes the weights by minus the noise over the expected batch size.

*Line*: one kernel, no bias, the loss is minus the output: the gradient of an example is minus its
inputs times its sample weight, whatever the weights are.
"""

import itertools

import keras
import numpy as np

import keras_adaclip as ka

SIDE = 100
NUM_DRAWS = 2 * SIDE * SIDE

_MODES = {
    "tensorflow": {
        "graph": {"jit_compile": False},
        "xla": {"jit_compile": True},
        "eager": {"run_eagerly": True},
        "several": {"jit_compile": False, "steps_per_execution": 2},
    },
    "jax": {"jit": {}, "eager": {"run_eagerly": True}, "several": {"steps_per_execution": 2}},
    "torch": {"eager": {}},
}
MODES = _MODES[keras.backend.backend()]
# The fastest mode, for promises that do not depend on it.
COMPILED = {
    mode: options
    for mode, options in MODES.items()
    if keras.backend.backend() == "torch" or mode in ("graph", "jit")
}


def dp_sgd(clipping=1.0, noise_multiplier=1.0, learning_rate=1.0, **options):
    options |= {"clipping": clipping, "noise_multiplier": noise_multiplier}
    return ka.optimizers.DPOptimizer(keras.optimizers.SGD(learning_rate), **options)


def minus_output(y_true, y_pred):
    return -keras.ops.sum(y_pred, axis=-1)


def pure_noise_model(optimizer, **compile_options):
    """A compiled model whose clipped sums are zero; two kernels of `SIDE` times `SIDE`."""
    layers = [keras.layers.Dense(SIDE, use_bias=False, kernel_initializer="zeros") for _ in "ab"]
    model = ka.PrivateSequential([keras.Input((SIDE,)), *layers])
    model.compile(optimizer=optimizer, loss="mse", **without_xla(compile_options))
    return model


def pure_noise_data(num_examples=12):
    zeros = np.zeros((num_examples, SIDE), np.float32)
    return zeros, zeros


def line_model(optimizer, num_inputs=1, layers=(), start=0.0, **compile_options):
    """A compiled model whose example gradients are minus the inputs."""
    constant = keras.initializers.Constant(start)
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer=constant)
    model = ka.PrivateSequential([keras.Input((num_inputs,)), *layers, dense])
    model.compile(optimizer=optimizer, loss=minus_output, **without_xla(compile_options))
    return model


def without_xla(compile_options):
    """Sets `jit_compile=False` on TensorFlow unless it is given: XLA takes seconds a model."""
    if keras.backend.backend() == "tensorflow":
        return {"jit_compile": False, **compile_options}
    return compile_options


def line_data(values):
    """Inputs of shape `(num_examples, 1)` and targets that play no part."""
    x = np.asarray(values, np.float32).reshape(len(values), -1)
    return x, np.zeros((len(x), 1), np.float32)


def steps_and_noise(model):
    return [(row.noise_multiplier, row.steps) for row in model.privacy_ledger]


def key_of(optimizer):
    (key,) = optimizer.secret_variables
    return np.array(keras.ops.convert_to_numpy(key.value)).tobytes()


def load(path):
    return keras.models.load_model(path, custom_objects={"minus_output": minus_output})


def assert_all_different(draws):
    """Asserts that normal vectors are independent; false alarm 2e-9 for a pair."""
    for one, other in itertools.combinations(draws, 2):
        assert np.mean(one == other) < 0.01
        assert abs(np.corrcoef(one, other)[0, 1]) < 6.0 / np.sqrt(len(one))


class Recorder(keras.callbacks.Callback):
    """The weights, flat, and the clip norm, before training and after every epoch."""

    def __init__(self):
        super().__init__()
        self.weights, self.clip_norms, self.fractions = [], [], []

    def record(self):
        self.weights.append(flat_weights(self.model))
        self.clip_norms.append(self.model.optimizer.clip_norm)
        self.fractions.append(self.model.optimizer.unclipped_fraction)

    def on_train_begin(self, logs=None):
        self.record()

    def on_epoch_end(self, epoch, logs=None):
        self.record()

    @property
    def updates(self):
        """What each epoch added to the weights, an array of shape `(epochs, num_weights)`."""
        return np.diff(np.stack(self.weights), axis=0)


def flat_weights(model):
    values = [np.ravel(keras.ops.convert_to_numpy(v.value)) for v in model.trainable_variables]
    return np.concatenate(values).astype(np.float64)


def recorded_fit(model, x, y, batch_size, num_epochs=1, steps_per_epoch=1, **options):
    """Fits quietly, one step an epoch unless told otherwise; returns the `Recorder`."""
    recorder = Recorder()
    options.setdefault("callbacks", []).append(recorder)
    options |= {"batch_size": batch_size, "epochs": num_epochs, "steps_per_epoch": steps_per_epoch}
    recorder.history = model.fit(x, y, verbose=0, **options).history
    return recorder


def fix_draws(monkeypatch, draws):
    """Makes every `PoissonDataset` draw these rows, over and over.

    With TensorFlow, Keras looks at some batches before it begins: see `rolled_to`.
    """
    remaining = itertools.cycle([np.asarray(rows, np.int64) for rows in draws])
    monkeypatch.setattr(ka.sampling.PoissonDataset, "draw", lambda dataset: next(remaining))


def rolled_to(values, first, tolerance=1e-5):
    """The expected `values` of a cycle of draws, begun at the one that equals `first`."""
    (matching,) = np.flatnonzero(np.isclose(values, first, rtol=tolerance, atol=1e-9))
    return np.roll(values, -matching)


def spread(values, expected, false_alarm=1e-6):
    """Asserts that centred Gaussian `values` have the standard deviation `expected`.

    Raises no more often than `false_alarm` where they have it.
    """
    from scipy import stats

    values = np.ravel(values)
    ratio = np.sum((values / expected) ** 2)
    low, high = stats.chi2.ppf([false_alarm / 2, 1 - false_alarm / 2], values.size)
    assert low < ratio < high, (
        f"standard deviation {np.sqrt(np.mean(values**2)):.6g} instead of {expected:.6g}"
    )
