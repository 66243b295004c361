"""DPOptimizer as a Keras optimizer: arguments, config, saving, delegation, read-outs."""

import inspect

import keras
import numpy as np
import pytest
from keras import ops

import keras_adaclip as ka
from tests.soundness.setups import dp_sgd, flat_weights, line_data, line_model, recorded_fit

DPOptimizer = ka.optimizers.DPOptimizer


def train(model, num_steps=3, num_examples=20):
    x, y = line_data(np.linspace(0.5, 2, num_examples))
    recorded_fit(model, x, y, 10, num_steps)
    return model


def around(inner, noise_multiplier=0.0, clipping=10.0, **options):
    return DPOptimizer(inner, clipping, noise_multiplier=noise_multiplier, **options)


@keras.saving.register_keras_serializable(package="tests")
class Tagged(DPOptimizer):
    def __init__(self, *args, tag="", **kwargs):
        super().__init__(*args, **kwargs)
        self.tag = tag

    def get_config(self):
        return {**super().get_config(), "tag": self.tag}


@pytest.mark.parametrize(
    ("make", "clipping", "further"),
    [(DPOptimizer, 0.5, {}), (DPOptimizer, "quantile", {}), (Tagged, 0.5, {"tag": "a"})],
)
def test_the_config_comes_back(make, clipping, further):
    """That of a subclass has the arguments that it passes on."""
    inner = keras.optimizers.AdamW(0.125, weight_decay=0.25)
    options = {"microbatch_size": 4, "seed": 9, "name": "private", **further}
    optimizer = make(inner, clipping, noise_multiplier=1.5, **options)
    config = optimizer.get_config()
    assert set(config) == {*inspect.signature(DPOptimizer).parameters, *further}
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(again) is make
    assert again.get_config() == config == make.from_config(config).get_config()


def test_a_config_from_another_backend_makes_the_inner_optimizer_of_this_one():
    config = DPOptimizer(keras.optimizers.Adam(0.5), noise_multiplier=1.0).get_config()
    module = "keras.src.backend.no_such_backend.optimizers.adam"
    config["optimizer"] = {**config["optimizer"], "module": module}
    again = DPOptimizer.from_config(config)
    assert type(again.inner_optimizer) is type(keras.optimizers.Adam(0.5))


def test_learning_rate_is_the_inner_ones_and_can_be_set():
    inner = keras.optimizers.SGD(0.5)
    optimizer = around(inner)
    assert float(ops.convert_to_numpy(optimizer.learning_rate)) == 0.5
    model = line_model(optimizer)
    before = flat_weights(train(model, 1))
    optimizer.learning_rate = 0.0
    assert float(ops.convert_to_numpy(inner.learning_rate)) == 0.0
    np.testing.assert_array_equal(flat_weights(train(model, 1)), before)


def test_moving_averages_of_weights_are_finalized():
    plain, averaging = {}, {"use_ema": True, "ema_momentum": 0.5}
    inner = [keras.optimizers.SGD(1.0, **options) for options in (plain, averaging)]
    plain, averaged = (flat_weights(train(line_model(around(each, seed=1)))) for each in inner)
    assert 0 < averaged[0] < plain[0]


def test_weights_excluded_from_decay_do_not_decay():
    optimizer = around(keras.optimizers.SGD(1.0, weight_decay=0.5))
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    ones = keras.layers.Dense(1, kernel_initializer="ones", bias_initializer="ones")
    kernel, bias, _ = train(line_model(optimizer, layers=[ones]), 1).get_weights()
    assert (kernel, bias) == (0.5, 1.0)


def test_weight_constraints_act_after_the_noise():
    dense = keras.layers.Dense(3, kernel_constraint=keras.constraints.NonNeg())
    model = ka.PrivateSequential([keras.Input((2,)), dense])
    model.compile(optimizer=dp_sgd(1.0, 50.0), loss="mse")
    model.fit(np.ones((8, 2)), np.ones((8, 3)), batch_size=4, verbose=0)
    assert (ops.convert_to_numpy(dense.kernel.value) >= 0).all()


def test_read_outs_before_and_after_training():
    optimizer = dp_sgd(ka.clipping.QuantileClipping(initial_clip_norm=0.75), 0.5)
    assert optimizer.clip_norm == 0.75
    assert optimizer.unclipped_fraction == 0.0
    assert optimizer.ledger.steps == 0
    train(line_model(optimizer))
    assert type(optimizer.clip_norm) is type(optimizer.unclipped_fraction) is float
    assert optimizer.clip_norm != 0.75
    assert dp_sgd(0.5).unclipped_fraction is None


def test_the_clip_norm_within_an_epoch_is_read_or_refused():
    optimizer = dp_sgd("quantile", 0.5)
    values = []
    reader = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: values.append(optimizer.clip_norm)
    )
    arguments = {"batch_size": 25, "verbose": 0, "callbacks": [reader]}
    model, data = line_model(optimizer), line_data([1.0] * 100)
    if keras.backend.backend() == "jax":
        with pytest.raises(RuntimeError, match="jax_state_sync"):
            model.fit(*data, **arguments)
    else:
        model.fit(*data, **arguments)
        assert len(set(values)) == 4
    assert optimizer.clip_norm > 0.0


def test_groups_have_clip_norms_once_the_weights_are_known():
    strategy = ka.clipping.QuantileClipping(initial_clip_norm=0.5, groups="per_layer")
    optimizer = dp_sgd(strategy)
    with pytest.raises(RuntimeError, match="one value for each group"):
        _ = optimizer.clip_norm
    model = line_model(optimizer, layers=[keras.layers.Dense(2)])
    before = optimizer.clip_norm
    assert before.shape == (2,)
    optimizer.build(model.trainable_variables)
    np.testing.assert_array_equal(optimizer.clip_norm, before)


def test_a_ledger_that_was_overwritten_is_said_to_be():
    model = train(line_model(dp_sgd()), 1)
    for variable in model.optimizer.variables:
        variable.assign(np.zeros(variable.shape))
    with pytest.raises(RuntimeError, match="something outside of this package has assigned"):
        model.privacy_spent(1e-3)


class Unpaid(ka.clipping.FixedClipping):
    """Has a statistic, and forgets to pay for it."""

    statistic_bound = 1.0

    def num_statistics(self, num_groups):
        return 1

    def statistics(self, state, norms, finite):
        return keras.ops.ones((keras.ops.shape(norms)[0], 1))


class Unbounded(Unpaid):
    """Pays for a statistic, and does not say how large it may be."""

    statistic_bound = None

    def noise_split(self, noise_multiplier, expected_units, num_groups=1):
        return 2.0 * noise_multiplier, 1e9


class Underpaid(Unbounded):
    """Pays with less noise than so large a statistic needs."""

    statistic_bound = 0.5

    def noise_split(self, noise_multiplier, expected_units, num_groups=1):
        return 1.01 * noise_multiplier, 1.0


class Cheap(ka.clipping.FixedClipping):
    """Takes less noise for the sum than there is."""

    def noise_split(self, noise_multiplier, expected_units, num_groups=1):
        return 0.5 * noise_multiplier, 0.0


class OneNorm(ka.clipping.FixedClipping):
    """One clipping norm, however many groups there are."""

    def initial_state(self, groups):
        return {"clip_norm": np.ones(1, np.float32)}


@pytest.mark.parametrize(
    ("clipping", "message"),
    [
        (Unpaid(1.0), r"`Unpaid.noise_split` does not pay .* 1 statistics a unit"),
        (Unbounded(1.0), r"state `statistic_bound`"),
        (Underpaid(1.0), r"`Underpaid.noise_split` does not pay"),
        (Cheap(1.0), r"`Cheap.noise_split` does not pay"),
        (OneNorm(1.0, groups="per_layer"), r"shape \(num_groups,\) .* here \(2,\)"),
        (ka.clipping.FixedClipping([1.0], groups="per_layer"), "must have one norm for each group"),
    ],
)
def test_a_strategy_that_does_not_keep_its_promise_is_refused(clipping, message):
    model = line_model(dp_sgd(clipping), layers=[keras.layers.Dense(2)])
    model.build((None, 1))
    before = model.get_weights()
    with pytest.raises(ValueError, match=message):
        train(model)
    for weight, other in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, other)
    assert model.privacy_ledger.steps == 0


def test_a_scope_of_custom_objects_reaches_the_clipping_strategy():
    class Own(ka.clipping.FixedClipping):
        pass

    config = ka.optimizers.DPOptimizer("sgd", Own(0.5), noise_multiplier=1.0).get_config()
    with keras.saving.custom_object_scope({"Own": Own}):
        again = ka.optimizers.DPOptimizer.from_config(config)
    assert type(again.clipping) is Own
