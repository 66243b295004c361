"""Rule 1: gradients that nobody clipped are refused. Rule 11: so are options that break noise."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_adaclip as ka
from keras_adaclip.gradients import ClippedSum
from tests.soundness.setups import dp_sgd, flat_weights, line_data, line_model

METHODS = ["apply", "apply_gradients", "stateless_apply", "apply a clipped sum"]


@pytest.mark.parametrize("method", METHODS)
def test_apply_refuses_plain_gradients(method):
    """And clipped ones before it is known what their noise is."""
    optimizer, variable = dp_sgd(), keras.Variable(np.ones((3,), np.float32))
    optimizer.mark_for_private_model(keras.Sequential())
    optimizer.build([variable])
    gradient, message = ops.ones((3,)), "plain gradients carry no bound"
    arguments = {
        "apply": ([gradient], [variable]),
        "apply_gradients": ([(gradient, variable)],),
        "stateless_apply": ([v.value for v in optimizer.variables], [gradient], [variable.value]),
        "apply a clipped sum": (ClippedSum([gradient], ops.zeros((0,))), [variable]),
    }[method]
    if method == "stateless_apply" and keras.backend.backend() == "tensorflow":
        message = "not supported with the TensorFlow backend"
    if method == "apply a clipped sum":
        message = "before `configure`"
    with pytest.raises(ValueError, match=message):
        getattr(optimizer, method.partition(" ")[0])(*arguments)
    np.testing.assert_array_equal(variable, np.ones(3))
    assert optimizer.ledger.steps == 0


@pytest.mark.parametrize("method", ["fit", "train_on_batch"])
def test_a_plain_model_is_refused_and_its_weights_stay(method):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer=dp_sgd(), loss="mse")
    before = flat_weights(model)
    with pytest.raises(ValueError, match="privatize"):
        getattr(model, method)(np.ones((4, 2)), np.ones((4, 1)))
    np.testing.assert_array_equal(flat_weights(model), before)


def test_other_optimizers_around_and_inside_of_the_private_one_are_refused():
    model = ka.PrivateSequential([keras.Input((2,)), keras.layers.Dense(1)])
    for optimizer in ("sgd", keras.optimizers.LossScaleOptimizer(dp_sgd())):
        with pytest.raises(ValueError, match="must be compiled with a `DPOptimizer`"):
            model.compile(optimizer=optimizer, loss="mse")
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    for inner in (scaled, dp_sgd()):
        with pytest.raises(ValueError, match="must be a plain Keras optimizer"):
            ka.optimizers.DPOptimizer(inner, noise_multiplier=1.0)


FORBIDDEN = {"clipnorm": 1.0, "clipvalue": 0.5, "global_clipnorm": 2.0}
FORBIDDEN |= {"gradient_accumulation_steps": 2, "loss_scale_factor": 8.0}


@pytest.mark.parametrize("option", FORBIDDEN)
def test_an_inner_option_that_breaks_clipping_or_noise_is_refused(option):
    inner = keras.optimizers.SGD(0.1, **{option: FORBIDDEN[option]})
    for given in (inner, keras.optimizers.serialize(inner)):
        with pytest.raises(ValueError, match=f"must not have `{option}`"):
            ka.optimizers.DPOptimizer(given, noise_multiplier=1.0)
    # One that is set later is refused by `fit`.
    model = line_model(dp_sgd())
    setattr(model.optimizer.inner_optimizer, option, FORBIDDEN[option])
    with pytest.raises(ValueError, match=option):
        model.fit(*line_data([1.0] * 4), batch_size=2, verbose=0)
    np.testing.assert_array_equal(flat_weights(model), [0.0])
    assert model.optimizer.ledger.steps == 0
