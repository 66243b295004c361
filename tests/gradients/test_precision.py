"""Norms and sums are float32 whatever the model computes in."""

import re
from contextlib import nullcontext

import keras
import numpy as np
import pytest
from keras import layers

import keras_adaclip as ka
from keras_adaclip.clipping import ParameterGroups
from keras_adaclip.gradients import BatchGradients, OuterProduct
from tests.gradients.support import LOOPED, built, plan_for, runner
from tests.models import helpers


@pytest.mark.parametrize("is_looped", [False, True])
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_sums_in_half_precision_have_the_norms_that_clipped_them(policy, is_looped):
    """However coarse the gradients are."""
    keras.config.set_dtype_policy(policy)
    rng = np.random.default_rng(2)
    x = rng.normal(size=(3, 4, 4, 2)).astype("float32")
    y = rng.normal(size=(3, 3)).astype("float32")
    made = [layers.Conv2D(3, 2, activation="relu"), layers.GroupNormalization(1), layers.Flatten()]
    made += [layers.Dense(5, activation="tanh"), layers.Dense(3)]
    model = built(keras.Sequential([keras.Input(x.shape[1:]), *made]), x, y)
    plan = LOOPED if is_looped else plan_for(model, x, y)
    assert plan.is_layerwise == (not is_looped)
    run = runner(model, plan, clip_norm=1.0)
    found = run(x, y)
    for array in (*found.gradients, found.statistics, found.norms, found.factors, found.losses):
        assert array.dtype == np.float32
    for row in range(3):
        alone = run(x, y, None, np.arange(3) == row)
        total = np.sqrt(sum(np.sum(g.astype(np.float64) ** 2) for g in alone.gradients))
        np.testing.assert_allclose(total, min(1.0, found.norms[row]), rtol=1e-4)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_a_place_in_the_batch_may_round_otherwise_and_nothing_else(policy):
    """TensorFlow's sigmoid in 16 bits differs in the last places, by row."""
    keras.config.set_dtype_policy(policy)
    x = np.random.default_rng(0).normal(size=(32, 6)).astype("float32")
    for is_constant in (False, True):
        drop = layers.Dropout(0.5)
        if is_constant:
            drop.call = lambda inputs, training: keras.random.dropout(inputs, 0.5, seed=1)
        made = [layers.Dense(64, activation="relu"), layers.LayerNormalization(), drop]
        made += [layers.Dense(1, activation="sigmoid")]
        model = ka.PrivateSequential([keras.Input((6,)), *made])
        model.compile(ka.optimizers.DPOptimizer("sgd", clipping=1.0, noise_multiplier=1.0), "mse")
        with pytest.raises(ValueError, match="place of the row") if is_constant else nullcontext():
            helpers.quiet_fit(model, x, x[:, :1], batch_size=8, sampling="poisson")


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="it has one switch for all")
def test_norms_and_sums_are_never_taken_in_tf32(monkeypatch):
    """A GPU would shorten the numbers, and norms that cancel with them."""
    factors = [np.ones((2, 64, size), "float32") for size in (500, 400)]
    variables = [keras.Variable(np.zeros((500, 400), "float32"))]
    groups = ParameterGroups.single([(500, 400)])

    def run(inputs, cotangents):
        part = OuterProduct(inputs, cotangents, (500, 400))
        assert part.form == "Gram matrices"
        gradients = BatchGradients(variables, [part], 2)
        norms = gradients.squared_norms(groups)
        return norms, gradients.weighted_sums(norms, norms[:, 0] > 0.0, groups).sums

    if keras.backend.backend() == "jax":
        import jax

        with jax.default_matmul_precision("bfloat16"):
            seen = re.findall(r"precision=(.+)", str(jax.make_jaxpr(run)(*factors)))
        assert len(seen) == 3
        assert all("HIGHEST" in precision for precision in seen)
        return
    import torch

    parts = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    seen, matmul = [], keras.ops.matmul

    def recorded(*args):
        seen.append([part.fp32_precision for part in parts])
        return matmul(*args)

    monkeypatch.setattr(keras.ops, "matmul", recorded)
    torch.set_float32_matmul_precision("medium")
    try:
        run(*map(keras.ops.convert_to_tensor, factors))
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert seen == [["ieee", "ieee"]] * 3


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
