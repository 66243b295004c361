"""`fit(augmentation=...)`: new copies at every step, all copies of an example one unit."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_adaclip as ka
from tests.models import helpers
from tests.soundness.setups import COMPILED, dp_sgd, fix_draws, line_data, line_model, recorded_fit


@keras.saving.register_keras_serializable(package="tests")
class Shift(keras.layers.Layer):
    """Adds a random number between 0 and `size` to each row."""

    def __init__(self, size=1.0, seed=3):
        super().__init__()
        self.size = size
        self.seed_generator = keras.random.SeedGenerator(seed)

    def call(self, x, training=None):
        if not training:
            return x
        shape = (ops.shape(x)[0], 1)
        return x + keras.random.uniform(shape, 0.0, self.size, seed=self.seed_generator)


def shifted_fit(multiplicity, values, mode, num_epochs=1, size=1.0, clip_norm=100.0, **options):
    """The gradient of an example is minus its input; no noise, learning rate 1."""
    optimizer = dp_sgd(clip_norm, 0.0, **options)
    model = line_model(optimizer, **COMPILED[mode])
    x, y = line_data(values)
    arguments = {"augmentation": Shift(size), "augmentation_multiplicity": multiplicity}
    return recorded_fit(model, x, y, len(values) // 2, num_epochs, **arguments).updates[:, 0]


@pytest.mark.parametrize("mode", COMPILED)
@pytest.mark.parametrize("microbatch_size", [None, 3])
def test_the_mean_of_many_copies_is_clipped_and_added(mode, microbatch_size, monkeypatch):
    """4,000 uniform numbers: their mean is off by less than six standard errors, 0.027."""
    fix_draws(monkeypatch, [range(4)])
    (update,) = shifted_fit(1000, [1.0] * 8, mode, microbatch_size=microbatch_size)
    assert update == pytest.approx(1.5, abs=0.03)
    (update,) = shifted_fit(16, [10.0] * 8, mode, clip_norm=0.5, microbatch_size=microbatch_size)
    assert update == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize("mode", COMPILED)
def test_every_step_chunk_example_and_copy_has_its_own_numbers(mode, monkeypatch):
    fix_draws(monkeypatch, [range(4)])
    one_by_one = shifted_fit(1, [1.0] * 8, mode, num_epochs=6, microbatch_size=1)
    # The same numbers would give the same to the last digit.
    assert len(np.unique(one_by_one)) == 6
    # Equal numbers for all examples, or all copies, would spread means of 4 or of 64 like one.
    spread = np.std(shifted_fit(1, [1.0] * 8, mode, num_epochs=40))
    assert spread < 0.29 * 0.8
    assert np.std(shifted_fit(16, [1.0] * 8, mode, num_epochs=40)) < spread / 2
    assert np.std(shifted_fit(16, [1.0] * 8, mode, num_epochs=40, microbatch_size=1)) < spread / 2


def test_an_augmentation_that_has_changed_since_the_last_fit_is_examined_again():
    class Switched(keras.layers.Layer):
        mixes = False

        def call(self, x):
            return x + ops.mean(x, axis=0) if self.mixes else x

    model, layer = helpers.compiled(run_eagerly=True), Switched()
    options = {"batch_size": 6, "augmentation": layer}
    helpers.quiet_fit(model, helpers.features(), helpers.labels(), **options)
    layer.mixes = True
    with pytest.raises(ValueError, match="It mixes examples"):
        helpers.quiet_fit(model, helpers.features(), helpers.labels(), **options)


def test_images_in_a_dict_with_layers_of_keras():
    inputs = keras.Input((6, 6, 1), name="image")
    hidden = keras.layers.Conv2D(2, 3, activation="tanh")(inputs)
    outputs = keras.layers.Dense(3)(keras.layers.Flatten()(hidden))
    options = {"jit_compile": False} if keras.backend.backend() == "tensorflow" else {}
    model = helpers.compiled(ka.PrivateModel({"image": inputs}, outputs), **options)
    flip, move = keras.layers.RandomFlip("horizontal"), keras.layers.RandomTranslation(0.1, 0.1)
    fit = {"augmentation": keras.Sequential([flip, move]), "augmentation_multiplicity": 2}
    x = {"image": helpers.features(shape=(6, 6, 1))}
    history = helpers.quiet_fit(model, x, helpers.labels(), batch_size=6, epochs=2, **fit)
    assert np.isfinite(history["loss"]).all()
    assert model.gradient_plan.is_layerwise
    assert model.privacy_ledger.steps == 8


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"augmentation": keras.layers.Reshape((2, 2))}, ValueError, r"shape .*2, 2.* of .*4,"),
        ({"augmentation": keras.layers.Dense(4)}, ValueError, "has trainable weights"),
        ({"augmentation": lambda x: x}, TypeError, "must be a Keras layer"),
        ({"augmentation_multiplicity": 2}, ValueError, "needs an `augmentation`"),
        ({"augmentation_multiplicity": 0}, ValueError, "must be at least 1"),
    ],
)
def test_what_is_refused_before_anything_changes(arguments, error, message):
    model = helpers.compiled()
    before = helpers.weights_of(model)
    with pytest.raises(error, match=message):
        helpers.quiet_fit(model, helpers.features(), helpers.labels(), batch_size=6, **arguments)
    helpers.assert_same_weights(model, before)
    assert model.privacy_ledger.steps == 0


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="nothing is compiled there")
def test_layers_that_keras_does_not_compile_are_compiled_on_jax():
    """Operation by operation a step is many times slower, and its loops are compiled in each."""
    calls, counts = [], []
    noting = keras.layers.Lambda(lambda x: calls.append(None) or x)
    noting.supports_jit = False
    stack = [noting, keras.layers.RandomZoom(0.2), keras.layers.Flatten(), keras.layers.Dense(3)]
    model = helpers.compiled(ka.PrivateSequential([keras.Input((6, 6, 1)), *stack]))
    callback = keras.callbacks.LambdaCallback
    note = callback(on_train_batch_end=lambda *_, **__: counts.append(len(calls)))
    x = helpers.features(shape=(6, 6, 1))
    helpers.quiet_fit(model, x, helpers.labels(), batch_size=6, epochs=2, callbacks=[note])
    assert len(counts) > 4
    assert counts[-1] == counts[2]
    assert model.jit_compile is False
