"""BatchNormalization that does not mix, or that nothing can replace; SpectralNormalization."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_adaclip as ka
from tests.models import helpers

X, Y = helpers.features(), helpers.labels()


class Block(keras.layers.Layer):
    """Holds layers that `privatize` cannot reach."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        stack = [keras.layers.Dense(4), keras.layers.BatchNormalization(name="norm")]
        self.inner = keras.Sequential(stack, name="inner")

    def build(self, shape):
        self.inner.build(shape)

    def call(self, x):
        return self.inner(x)


class Normalized(keras.layers.Layer):
    """Calls a batch normalization in the mode that an attribute says."""

    def __init__(self, mode=False, **kwargs):
        super().__init__(**kwargs)
        self.norm, self.mode = keras.layers.BatchNormalization(name="norm"), mode

    def build(self, shape):
        self.norm.build(shape)

    def call(self, x, training=None):
        return self.norm(x, training=self.mode)


class WithExtractor(ka.PrivateModel):
    """A head on a feature extractor that is called for inference."""

    def __init__(self, base):
        super().__init__()
        self.base, self.head = base, keras.layers.Dense(3)

    def call(self, x):
        return self.head(self.base(x, training=False))


def clients():
    return ka.federated.ClientData.from_arrays(X, Y, np.arange(len(X)) % 6)


@pytest.mark.parametrize("convert", [ka.privatize, ka.federate])
def test_a_batch_normalization_out_of_reach_is_refused_with_what_to_do(convert):
    plain = helpers.model_with(Block(name="block"), keras.Model)
    model = helpers.compiled(convert(plain, True))
    message = r"norm: BatchNormalization.*if a class of your own creates it, use Group"
    data = (X, Y, 6) if convert is ka.privatize else (clients(), 2)
    with pytest.raises(ValueError, match=message):
        model.fit(*data, verbose=0)


@pytest.mark.parametrize(("how", "run_eagerly"), [("attribute", True), ("base", False)])
def test_a_batch_normalization_that_is_called_for_inference_is_accepted(how, run_eagerly):
    if how == "attribute":
        layer = Normalized()
        model, norm = helpers.model_with(layer), layer.norm
    else:
        norm = keras.layers.BatchNormalization(name="norm")
        base = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), norm])
        model = WithExtractor(base)
    helpers.compiled(model, run_eagerly=run_eagerly)
    before = helpers.weights_of(norm)
    helpers.quiet_fit(model, X, Y, batch_size=6, epochs=2)
    after = norm.get_weights()
    np.testing.assert_array_equal(after[2], before[2])  # the moving mean
    assert np.abs(after[0] - before[0]).max() > 0  # gamma is trained


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_a_batch_normalization_whose_mode_changes_meanwhile_is_refused(run_eagerly):
    layer = Normalized()
    model = helpers.compiled(helpers.model_with(layer), run_eagerly=run_eagerly)
    helpers.quiet_fit(model, X, Y, batch_size=6)
    layer.mode = True
    if not run_eagerly and keras.backend.backend() != "torch":
        # The compiled step goes on as it was.
        before = ops.convert_to_numpy(layer.norm.moving_mean)
        helpers.quiet_fit(model, X, Y, batch_size=6)
        np.testing.assert_array_equal(ops.convert_to_numpy(layer.norm.moving_mean), before)
        model.make_train_function(force=True)
    with pytest.raises(ValueError, match="norm: BatchNormalization"):
        helpers.quiet_fit(model, X, Y, batch_size=6)
    layer.mode = False
    change = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: setattr(layer, "mode", batch > 0)
    )
    model = helpers.compiled(helpers.model_with(layer), run_eagerly=run_eagerly)
    if run_eagerly or keras.backend.backend() == "torch":
        with pytest.raises(ValueError, match="norm: BatchNormalization"):
            helpers.quiet_fit(model, X, Y, batch_size=6, callbacks=[change])


@pytest.mark.parametrize(
    ("cls", "microbatch_size"), [(ka.PrivateModel, 2), (ka.FederatedModel, None)]
)
def test_spectral_normalization_is_trained(cls, microbatch_size):
    layer = keras.layers.SpectralNormalization(keras.layers.Dense(4, activation="tanh"))
    model = helpers.model_with(layer, cls=cls)
    # Small steps, which one power iteration each keeps up with.
    sgd = keras.optimizers.SGD(0.02)
    helpers.compiled(model, 0.1, optimizer=sgd, seed=1, microbatch_size=microbatch_size)
    before = np.array(ops.convert_to_numpy(layer.vector_u.value))
    if cls is ka.PrivateModel:
        helpers.quiet_fit(model, X, Y, batch_size=6, epochs=20)
    else:
        model.fit(clients(), cohort_size=2, epochs=8, verbose=0)
    kernel = ops.convert_to_numpy(layer.layer.kernel.value)
    np.testing.assert_allclose(np.linalg.svd(kernel)[1][0], 1.0, atol=0.05)
    assert np.abs(ops.convert_to_numpy(layer.vector_u.value) - before).max() > 1e-3


def test_spectral_normalization_does_not_depend_on_the_data():
    def state_after(x):
        keras.utils.set_random_seed(1)
        layer = keras.layers.SpectralNormalization(keras.layers.Dense(4))
        model = helpers.compiled(helpers.model_with(layer), optimizer=keras.optimizers.SGD(0.0))
        helpers.quiet_fit(model, x, Y, batch_size=6)
        return [ops.convert_to_numpy(each.value) for each in (layer.vector_u, layer.kernel)]

    np.testing.assert_equal(state_after(X), state_after(X[::-1] * 3))
