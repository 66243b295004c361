"""Norms and sums are float32 whatever the model computes in."""

import re

import keras
import numpy as np
import pytest
from keras import layers

from keras_adaclip.clipping import ParameterGroups, QuantileClipping
from keras_adaclip.gradients import BatchGradients, OuterProduct
from tests import oracles
from tests.gradients.support import (
    LOOPED,
    built,
    plan_for,
    row_gradients,
    rules,
    runner,
)
from tests.models import helpers


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
    plan = LOOPED if whole_model else plan_for(model, x, y)
    if not whole_model:
        assert rules(plan) == ["Convolution", "Normalization", "Dense", "Dense"]
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


def precisions_of_products():
    """How exactly the products of matrices in norms and sums are computed, as the backend says."""
    factors = [np.ones((2, 64, size), "float32") for size in (500, 400)]
    variables = [keras.Variable(np.zeros((500, 400), "float32"))]
    groups = ParameterGroups.single([(500, 400)])

    def run(inputs, cotangents):
        part = OuterProduct(inputs, cotangents, (500, 400))
        assert part.form == "Gram matrices"
        gradients = BatchGradients(variables, [part], 2)
        norms = gradients.squared_norms(groups)
        return norms, gradients.weighted_sums(norms, norms[:, 0] > 0.0, groups)

    if keras.backend.backend() == "jax":
        import jax

        jaxpr = jax.make_jaxpr(run)(*factors)
        return re.findall(r"precision=(.+)", str(jaxpr))
    seen, matmul = [], keras.ops.matmul

    def recorded(*args):
        import torch

        parts = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
        seen.append(tuple(part.fp32_precision for part in parts))
        return matmul(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keras.ops, "matmul", recorded)
        run(*(keras.ops.convert_to_tensor(factor) for factor in factors))
    return seen


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="it has one switch for all")
def test_norms_and_sums_are_never_taken_in_tf32():
    """A GPU would shorten the numbers, and norms that cancel with them."""
    if keras.backend.backend() == "jax":
        import jax

        with jax.default_matmul_precision("bfloat16"):
            found = precisions_of_products()
        assert len(found) == 3
        assert all("HIGHEST" in precision for precision in found)
        return
    import torch

    torch.set_float32_matmul_precision("medium")
    try:
        assert precisions_of_products() == [("ieee", "ieee")] * 3
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's switch")
def test_tensorflow_trains_without_tf32():
    import tensorflow as tf

    asked = tf.config.experimental.tensor_float_32_execution_enabled

    class Notes(keras.callbacks.Callback):
        seen = None

        def on_train_batch_begin(self, batch, logs=None):
            self.seen = asked()

    model, notes = helpers.compiled(), Notes()
    before = asked()
    helpers.quiet_fit(model, helpers.features(), helpers.labels(), batch_size=6, callbacks=[notes])
    assert notes.seen is False
    assert asked() is before is True
