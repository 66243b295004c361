"""Runs the gradient code on a small compiled Keras model, outside of any training loop."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend, gradients
from keras_adaclip.backend import keras_private
from keras_adaclip.clipping import Clipper, FixedClipping, ParameterGroups
from keras_adaclip.gradients import Batch, Draws, call_model, clipped_sum, looped_plan, make_plan
from tests import oracles

LOOPED = looped_plan("asked for by a test")


def compiled(function, by_xla=False):
    """`function` of tensors as the backend's compiler makes it; PyTorch runs it as it is."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(function)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(function, jit_compile=by_xla)
    import torch

    return torch.no_grad()(function)


def tensors(structure):
    return keras.tree.map_structure(
        lambda value: None if value is None else ops.convert_to_tensor(value), structure
    )


def numpy(structure):
    return keras.tree.map_structure(ops.convert_to_numpy, structure)


def built(model, x, y=None, sample_weight=None, loss="mse", **arguments):
    """The model, compiled and built, weights included."""
    model.compile(optimizer="sgd", loss=loss, **arguments)
    keras_private.build_for_training(model, x, y, sample_weight)
    return model


def rows_of(structure, rows):
    return keras.tree.map_structure(lambda value: None if value is None else value[rows], structure)


def plan_for(model, x, y=None, sample_weight=None):
    return make_plan(model, Batch(*rows_of([x, y, sample_weight], slice(3))))


def rules(plan):
    """The rule of each layer in order, such as "Dense" or "general"; or the word "whole"."""
    if not plan.is_layerwise:
        return "whole"
    reports = gradients.layer_reports(plan)
    return [each.rule.split(" ")[0].removesuffix("Rule") for each in reports]


def held(model):
    """The variables with their values: what happens to them in a scope is dropped after it."""
    return [(variable, variable.value) for variable in [*model.variables, *model.metrics_variables]]


def training_scope(model):
    """How a trainer of the backend runs a step: JAX without side effects, the others with them."""
    if keras.backend.backend() == "jax":
        return keras.StatelessScope(held(model))
    return nullcontext()


@contextmanager
def restored(model):
    """Puts the variables back to what they were."""
    before = [(variable, ops.convert_to_numpy(variable.value)) for variable, _ in held(model)]
    try:
        yield
    finally:
        for variable, value in before:
            if not np.array_equal(ops.convert_to_numpy(variable.value), value):
                variable.assign(value)


def runner(model, plan, clip_norm=1.0, clipping=None, compile_step=True, num_copies=1, seed=None):
    """A function `(x, y, sample_weight, mask)` that returns sums and observations as NumPy."""
    clipping = clipping or FixedClipping(clip_norm)

    def step(x, y, sample_weight, mask):
        groups = ParameterGroups.of(clipping.groups, model.trainable_variables)
        state = tensors(clipping.initial_state(groups))
        with training_scope(model):
            batch = Batch(x, y, sample_weight, mask, num_copies)
            current = Clipper(clipping, groups, state)
            draws = None if seed is None else Draws(ops.convert_to_tensor(seed))
            total, observed = clipped_sum(model, batch, current, plan, draws)
        names = ("norms", "finite", "factors", "losses", "y_pred")
        found = {name: getattr(observed, name) for name in names}
        return {"gradients": total.gradients, "statistics": total.statistics, **found}

    step = compiled(step) if compile_step else step

    def call(x, y=None, sample_weight=None, mask=None):
        with restored(model):
            found = numpy(step(*map(tensors, (x, y, sample_weight, mask))))
        if clipping.groups == "flat":
            found.update({name: found[name][:, 0] for name in ("norms", "factors")})
        return SimpleNamespace(**found)

    return call


def row_gradients(model, x, y=None, sample_weight=None):
    """Plain gradients of each row alone: one array of shape `(rows, ...)` for each weight."""

    def one(x, y, sample_weight):
        def loss():
            y_pred = call_model(model, x, training=True)
            loss = model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
            return ops.sum(loss), ()

        with keras.StatelessScope(held(model)):
            _, gradients = backend.gradients_of(loss, model.trainable_variables, model.variables)
        return gradients

    step = compiled(one)
    rows = []
    for index in range(len(keras.tree.flatten(x)[0])):
        row = rows_of([x, y, sample_weight], slice(index, index + 1))
        rows.append(numpy(step(*(tensors(part) for part in row))))
    return [np.stack(parts) for parts in zip(*rows, strict=True)]


def assert_close(found, expected, tolerance=1e-5):
    """Arrays that differ by `tolerance` of their norm, or by rounding of the largest among them."""
    assert len(found) == len(expected)
    norms = [np.linalg.norm(array) for array in expected]
    for one, other, norm in zip(found, expected, norms, strict=True):
        assert one.shape == other.shape
        assert np.linalg.norm(one.astype(np.float64) - other) <= tolerance * max(
            norm, 0.05 * max(norms)
        )


def with_other_weights(model):
    """The model with no trainable weight at zero or one."""
    rng = np.random.default_rng(4)
    for variable in model.trainable_variables:
        noise = rng.normal(scale=0.3, size=variable.shape).astype("float32")
        variable.assign(variable + noise)
    return model


def check_against_rows(model, x, y, plan, tolerance=1e-5):
    """Compares norms and clipped sums with the plain gradients of single rows."""
    expected = row_gradients(model, x, y)
    norms = oracles.gradient_norms(expected)
    assert np.all(norms > 0)
    clip_norm = float(np.median(norms))
    found = runner(model, plan, clip_norm)(x, y)
    np.testing.assert_allclose(found.norms, norms, rtol=tolerance)
    assert_close(found.gradients, oracles.clipped_sums(expected, clip_norm), tolerance)
