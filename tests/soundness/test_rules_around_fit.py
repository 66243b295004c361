"""What happens before, after and instead of the steps of a `fit`."""

from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
from keras import ops

import keras_adaclip as ka
from keras_adaclip.accounting import Sampling
from keras_adaclip.backend import keras_private

X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
Y = X[:, :1]


def dense_model():
    return ka.PrivateSequential([keras.Input((4,)), keras.layers.Dense(1)])


def compiled(model=None, **options):
    model = model or dense_model()
    model.compile(ka.optimizers.DPOptimizer("sgd", noise_multiplier=1.0), "mse", **options)
    return model


def fit(model, x=X, y=Y, **options):
    return model.fit(x, y, **{"batch_size": 8, "verbose": 0, **options}).history


def test_a_row_is_closed_after_fit_so_that_stray_steps_count_in_full():
    model = compiled()
    fit(model)
    row = model.optimizer.open_row
    assert (row.sampling, row.steps) == (Sampling.STREAM, 0)
    assert model.privacy_ledger.steps == 8
    if keras.backend.backend() != "jax":
        data = (ops.convert_to_tensor(X), ops.convert_to_tensor(Y))
        with pytest.raises(ValueError, match="configure"):
            model.train_step(data)


class Broken(ka.callbacks.ClippingMonitor):
    """Fails before `fit` calls the first callback, or in that call."""

    def __init__(self, method):
        super().__init__()
        setattr(self, method, self.fail)

    def fail(self, *arguments):
        raise ValueError("broken")


@pytest.mark.parametrize("method", ["prepare", "on_train_begin"])
def test_a_row_is_closed_where_fit_fails_before_its_first_step(method):
    model = compiled()
    with pytest.raises(ValueError, match="broken"):
        fit(model, callbacks=[Broken(method)])
    assert (model.optimizer.is_in_a_run, model.privacy_ledger.steps) == (False, 0)
    fit(model)
    assert model.privacy_ledger.steps == 8


def test_a_step_is_counted_before_it_is_applied(monkeypatch):
    if keras.backend.backend() == "jax":
        pytest.skip("JAX steps are pure: an interrupted one changes nothing")
    model = compiled(dense_model(), run_eagerly=True)
    fit(model)

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(model.optimizer.inner_optimizer, "apply", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit(model)
    assert model.privacy_ledger.steps == 9


def test_models_on_shared_weights_have_one_ledger_and_save_it(tmp_path):
    base = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    first, second = compiled(ka.privatize(base)), compiled(ka.privatize(base))
    fit(first)
    without_optimizer = ka.privatize(base)
    for model in (first, second, without_optimizer, compiled(ka.privatize(base))):
        assert model.privacy_ledger.steps == 8
    without_optimizer.save(tmp_path / "model.keras")
    assert keras.models.load_model(tmp_path / "model.keras").privacy_ledger.steps == 8
    # In turns, each knows of the other's steps, and counts none of them twice.
    fit(second)
    assert first.privacy_ledger.steps == second.privacy_ledger.steps == 16
    fit(first)
    assert first.privacy_ledger.steps == second.privacy_ledger.steps == 24
    # Weights that are frozen now count too.
    base.layers[0].trainable = False
    head = ka.PrivateSequential([keras.Input((4,)), base.layers[0], keras.layers.Dense(1)])
    assert compiled(head).privacy_ledger.steps == 24


class OtherAxesFirst(ka.PrivateModel):
    """Takes rows, or sequences, whose layer it then calls with time in the place of examples."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        if len(inputs.shape) == 2:
            return self.dense(inputs)
        by_time = self.dense(keras.ops.transpose(inputs, (1, 0, 2)))
        return keras.ops.mean(by_time, axis=0)


@pytest.mark.parametrize("train", ["fit", "train_on_batch"])
def test_a_plan_for_inputs_of_one_rank_does_not_serve_those_of_another(train):
    if keras.backend.backend() == "jax":
        pytest.skip("what is tested is decided before any backend comes in")
    model = compiled(OtherAxesFirst())
    fit(model)
    assert model.gradient_plan.is_layerwise
    sequences = np.stack([X[:6]] * 6, axis=1)
    if train == "fit":
        fit(model, sequences, Y[:6], batch_size=6, sampling="shuffle")
    else:
        model.train_on_batch(sequences, Y[:6])
    # Layer by layer, the six moments would have been clipped in the place of the six examples.
    assert not model.gradient_plan.is_layerwise


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_pass_of_unknown_length_stops_before_the_target():
    if keras.backend.backend() != "tensorflow":
        pytest.skip("only tf.data has passes of unknown length that begin again")
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8).filter(lambda x, y: True)
    model = compiled()
    privacy = ka.callbacks.PrivacyCallback(delta=1e-3, target_epsilon=8.0)
    options = {"num_examples": 64, "once_per_pass": True, "epochs": 20, "verbose": 0}
    epsilons = model.fit(data, callbacks=[privacy], **options).history["epsilon"]
    assert 1 < len(epsilons) < 20
    assert max(epsilons) <= 8.0


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_monitoring_the_training_loss_is_warned_of():
    model = compiled()
    with pytest.warns(UserWarning, match="ReduceLROnPlateau"):
        fit(model, callbacks=[keras.callbacks.ReduceLROnPlateau(monitor="loss")])


def test_a_callback_list_does_not_carry_the_run_before_into_the_next():
    """A `fit` of no epochs leaves its counter behind, which would open the ledger for its data."""
    model = compiled()
    callbacks = keras.callbacks.CallbackList([], model=model, add_history=True)
    kept = list(callbacks.callbacks)
    fit(model, epochs=0, callbacks=callbacks)
    assert callbacks.callbacks == kept
    fit(model, batch_size=32, callbacks=callbacks)
    assert [(row.expected_batch_size, row.steps) for row in model.privacy_ledger] == [(32, 2)]


@pytest.mark.parametrize("inner", ["fit", "train_on_batch"])
def test_training_inside_of_training_is_refused(inner):
    """The steps that remain of the outer `fit` would be counted as the inner one's."""
    model = compiled()

    def train_again(epoch, logs):
        fit(model) if inner == "fit" else model.train_on_batch(X[:2], Y[:2])

    callback = keras.callbacks.LambdaCallback(on_epoch_end=train_again)
    with pytest.raises(RuntimeError, match="while a `fit` with the same optimizer is under way"):
        fit(model, batch_size=32, epochs=3, callbacks=[callback])
    assert [(row.expected_batch_size, row.steps) for row in model.privacy_ledger] == [(32, 2)]
    fit(model, batch_size=32)
    assert model.privacy_ledger.steps == 4


class Mixes(keras.layers.Layer):
    def call(self, x):
        return x - keras.ops.mean(x, axis=0, keepdims=True)


def test_a_fit_that_refuses_a_model_plans_nothing():
    x = np.random.default_rng(0).normal(size=(64, 2)).astype("float32")
    layers = [keras.Input((2,)), Mixes(name="mixes"), keras.layers.Dense(1)]
    model = ka.PrivateSequential(layers)
    optimizer = ka.optimizers.AutoDPOptimizer(3.0, delta=1e-3)
    model.compile(optimizer, loss="mse")
    data = ka.sampling.PoissonDataset(x, x[:, :1], expected_batch_size=16, max_batch_size="auto")
    with pytest.raises(ValueError, match="mixes: It mixes examples"):
        model.fit(data, verbose=0)
    assert data.max_batch_size == "auto"
    assert not optimizer._is_planned
    assert model.gradient_plan is None


def test_an_examination_changes_no_draws_of_other_threads():
    """Their steps would draw what the examination knows; and a thread may end after another."""

    def zeros(_):
        return lambda shape, **_options: ops.zeros(shape)

    with ThreadPoolExecutor(1) as pool, keras_private.replaced_draws(zeros):
        of_this_thread = keras.random.uniform((4,), 0.5)
        of_another = pool.submit(keras.random.uniform, (4,), 0.5).result()
    drawn = [of_this_thread, of_another, keras.random.uniform((4,), 0.5)]
    assert [bool(ops.convert_to_numpy(each).all()) for each in drawn] == [False, True, True]
