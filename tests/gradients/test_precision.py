"""Norms and sums are float32 whatever the model computes in."""

import keras
import numpy as np
import pytest
from keras import layers

from keras_adaclip.clipping import QuantileClipping
from tests import oracles
from tests.gradients.support import (
    WHOLE_MODEL,
    built,
    plan_for,
    row_gradients,
    runner,
    ways,
)


def small_model():
    return keras.Sequential(
        [
            keras.Input((4, 4, 2)),
            layers.Conv2D(3, 2, activation="relu"),
            layers.GroupNormalization(1),
            layers.Flatten(),
            layers.Dense(5, activation="tanh"),
            layers.Dense(3),
        ]
    )


@pytest.mark.parametrize("whole_model", [False, True])
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float64"])
def test_norms_and_sums_are_float32(policy, whole_model):
    if policy == "float64" and keras.backend.backend() == "jax":
        pytest.skip("JAX has float32 unless told otherwise")
    rng = np.random.default_rng(2)
    x = rng.normal(size=(3, 4, 4, 2)).astype("float32")
    y = rng.normal(size=(3, 3)).astype("float32")
    weights = [rng.normal(scale=0.5, size=v.shape) for v in small_model().trainable_variables]

    reference = built(small_model(), x, y)
    reference.set_weights(weights)
    expected = row_gradients(reference, x, y)
    norms = oracles.gradient_norms(expected)

    keras.config.set_dtype_policy(policy)
    model = built(small_model(), x, y)
    model.set_weights(weights)
    plan = WHOLE_MODEL if whole_model else plan_for(model, x, y)
    if not whole_model:
        assert ways(plan) == ["Convolution", "Normalization", "Dense", "Dense"]
    clip_norm = float(np.median(norms))
    run = runner(model, plan, clipping=QuantileClipping(initial_clip_norm=clip_norm))
    found = run(x, y)
    for array in (*found.gradients, found.statistics, found.norms, found.factors, found.losses):
        assert array.dtype == np.float32
    tolerance = {"mixed_float16": 2e-2, "mixed_bfloat16": 1e-1, "float64": 1e-5}[policy]
    np.testing.assert_allclose(found.norms, norms, rtol=tolerance)
    # However coarse the gradients are, the sum of one example has the norm that clipped it.
    for row in range(3):
        alone = run(x, y, None, np.arange(3) == row)
        total = np.sqrt(sum(np.sum(g.astype(np.float64) ** 2) for g in alone.gradients))
        np.testing.assert_allclose(total, min(clip_norm, found.norms[row]), rtol=1e-4)


def test_inputs_of_float64_are_inputs_of_float32():
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(3, 4, 4, 2)), rng.normal(size=(3, 3))
    model = built(small_model(), x.astype("float32"), y.astype("float32"))
    plan = plan_for(model, x.astype("float32"), y.astype("float32"))
    found = runner(model, plan)(x, y)
    expected = runner(model, plan)(x.astype("float32"), y.astype("float32"))
    for one, other in zip(found.gradients, expected.gradients, strict=True):
        assert one.dtype == np.float32
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
