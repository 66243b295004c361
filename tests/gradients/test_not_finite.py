"""Examples whose gradient is not a finite number, and padding."""

import keras
import numpy as np
import pytest
from keras import layers

from keras_adaclip.clipping import QuantileClipping
from tests import oracles
from tests.gradients.architectures import Scale
from tests.gradients.support import LOOPED, assert_close, built, plan_for, row_gradients, runner

MODELS = {
    "dense": ((3,), lambda: [layers.Dense(4, activation="tanh"), layers.Dense(2)]),
    "gram": ((2, 8), lambda: [layers.Dense(9, activation="tanh"), layers.Dense(2)]),
    "general": ((3, 2), lambda: [Scale(), layers.Dense(2)]),
    "whole model": ((3,), lambda: [layers.Dense(4, activation="tanh"), layers.Dense(2)]),
}


@pytest.mark.parametrize("name", MODELS)
def test_examples_without_a_finite_gradient_add_zero_and_count_as_clipped(name):
    shape, stack = MODELS[name]
    rng = np.random.default_rng(5)
    x = rng.normal(size=(4, *shape)).astype("float32")
    model = keras.Sequential([keras.Input(shape), *stack()])
    y = rng.normal(size=tuple(model(x).shape)).astype("float32")
    model = built(model, x, y)
    plan = LOOPED if name == "whole model" else plan_for(model, x, y)
    assert plan.is_layerwise == (name != "whole model")
    gradients = row_gradients(model, x, y)
    clip_norm = float(np.median(oracles.gradient_norms(gradients)))
    run = runner(model, plan, clipping=QuantileClipping(initial_clip_norm=clip_norm))
    others = [g[[0, 2, 3]] for g in gradients]
    expected = oracles.clipped_sums(others, clip_norm)
    unclipped = np.sum(oracles.gradient_norms(others) <= clip_norm)
    clean = run(x, y)
    for value in (np.nan, np.inf, -np.inf):
        bad = x.copy()
        bad[1].reshape(-1)[0] = value
        found = run(bad, y)
        assert_close(found.gradients, expected)
        assert (found.finite[1], found.factors[1], found.norms[1]) == (False, 0.0, 0.0), value
        np.testing.assert_array_equal(found.factors[[0, 2, 3]], clean.factors[[0, 2, 3]])
        np.testing.assert_array_equal(found.statistics, [unclipped - 2.0])
        padding = run(bad, y, None, np.array([True, False, True, True]))
        assert_close(padding.gradients, expected)
        np.testing.assert_array_equal(padding.statistics, [unclipped - 1.5])


def one_unit(is_looped, y, loss="mse", **options):
    """The unit with both weights 0.5 on inputs of one, as a model and its plan."""
    x = np.ones((3, 2), np.float32)
    model = keras.Sequential([keras.Input((2,)), layers.Dense(1, **options)])
    model = built(model, x, y, loss=loss)
    model.set_weights([np.full((2, 1), 0.5, np.float32), np.zeros(1, np.float32)])
    return model, x, LOOPED if is_looped else plan_for(model, x, np.zeros_like(y))


@pytest.mark.parametrize("is_looped", [False, True])
def test_losses_and_squares_that_are_not_finite_count_as_zero(is_looped):
    """The gradient of the absolute error is a sign, finite for an infinite target too."""
    y = np.array([[9.0], [np.inf], [9.0]], np.float32)
    model, x, plan = one_unit(is_looped, y, loss="mae")
    found = runner(model, plan, 100.0)(x, y)
    np.testing.assert_array_equal(found.finite, [True, False, True])
    np.testing.assert_array_equal(found.factors, [1.0, 0.0, 1.0])
    np.testing.assert_allclose(found.gradients[0], np.full((2, 1), -2.0))
    # Finite gradients whose square overflows.
    y = np.array([[0.0], [1e25], [0.0]], np.float32)
    model, x, plan = one_unit(is_looped, y)
    found = runner(model, plan, 1.0)(x, y, np.array([1.0, 1e-3, 1.0], np.float32))
    np.testing.assert_array_equal(found.finite, [True, False, True])
    total = np.sqrt(sum(np.sum(g.astype(np.float64) ** 2) for g in found.gradients))
    np.testing.assert_allclose(total, 2.0, rtol=1e-5)


@pytest.mark.parametrize("is_looped", [False, True])
def test_a_loss_that_raises_for_nan_never_sees_it(is_looped):
    # PyTorch's binary cross-entropy raises for a prediction outside [0, 1].
    y = np.zeros((3, 1), np.float32)
    model, x, plan = one_unit(is_looped, y, loss="binary_crossentropy", activation="sigmoid")
    run = runner(model, plan, 100.0)
    expected = run(x, y, None, np.array([True, False, True])).gradients
    x[1, 0] = np.nan
    found = run(x, y)
    np.testing.assert_array_equal(found.finite, [True, False, True])
    assert_close(found.gradients, expected)
