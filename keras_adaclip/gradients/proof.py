"""Compares a plan with the plain gradients of single rows, before it is used.

The comparison is made with the weights moved a little. If a layer begins with zeros, as last layers
often do, all gradients behind it would be zero, and any plan would agree. Weights that are not
trained are moved too: a factor that is zero now may be nonzero later.
"""

import math
from dataclasses import replace
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.clipping import ParameterGroups
from keras_adaclip.gradients.batch import Batch, mapped, repeated
from keras_adaclip.gradients.forward import single_gradient
from keras_adaclip.gradients.layers import is_differentiable
from keras_adaclip.gradients.layerwise import GradientPlan, per_example_gradients

Tensor = Any
Weights = list[tuple[keras.Variable, Tensor]]

# A ReLU next to zero may be on in a batch and off alone, so one trial may fail by accident. An
# error of the rules makes every trial fail.
_NUM_TRIALS = 3
_MOVED_BY, _MOST_DRAWN = 0.1, 65_537
# A variable with a smaller share of the whole gradient than this is compared with this share.
_LEAST_SHARE = 0.01
# Factors and finiteness of three rows, of which the last one must add nothing.
_FACTORS, _FINITE = np.array([[0.5], [2.0], [0.0]], "float32"), np.array([True, True, False])


def is_exact(model: keras.Model, rows: Batch, plan: GradientPlan, training: bool) -> bool:
    """Return whether the plan's norms and sums are those of plain gradients.

    Args:
        model: A built model with a compiled loss.
        rows: A few examples with finite numbers.
        plan: A layer-wise plan.
        training: The mode of the forward pass.
    """
    found = []
    for trial in range(_NUM_TRIALS):
        weights = _moved_weights(model, seed=trial)
        found.append(_agrees(model, _varied(rows, trial), plan, training, weights))
        if found[-1]:
            return True
    # Some weights must not be moved, for example if a constraint keeps them positive.
    never_finite = all(agrees is None for agrees in found)
    return never_finite and bool(_agrees(model, rows, plan, training, []))


def _agrees(
    model: keras.Model, rows: Batch, plan: GradientPlan, training: bool, weights: Weights
) -> bool | None:
    """Compare the plan with plain gradients at other values of some variables.

    Args:
        model: A built model with a compiled loss.
        rows: A few examples.
        plan: The plan.
        training: The mode of the forward pass.
        weights: Variables and their other values.

    Returns:
        Whether the two agree. None if the plain gradients are not finite.
    """
    held = [*model.variables, *model.metrics_variables]
    moved = [variable for variable, _ in weights]

    def given(batch: Batch, *further: Any) -> tuple[Any, ...]:
        """Return everything as arguments: a compiler would fold constants number by number."""
        parts = (batch.x, batch.y, batch.sample_weight)
        return ([value for _, value in weights], parts, *further)

    def at(values: list[Tensor]) -> keras.StatelessScope:
        """Return a scope with the other values."""
        return keras.StatelessScope(list(zip(moved, values, strict=True)))

    def planned(arguments: Any) -> list[Tensor]:
        """Return norms and weighted sums by the plan."""
        values, parts, factors, finite = arguments
        with at(values):
            gradients, _ = per_example_gradients(model, Batch(*parts), plan, training=training)
            whole = ParameterGroups.single([variable.shape for variable in gradients.variables])
            norms = ops.sqrt(gradients.squared_norms(whole)[:, 0])
            factors, finite = ops.convert_to_tensor(factors), ops.convert_to_tensor(finite)
            sums = gradients.weighted_sums(factors, finite, whole).sums
        return [norms[:2], *sums]

    def plain(arguments: Any) -> list[Tensor]:
        """Return the gradient of a single row."""
        values, parts = arguments
        with at(values):
            return single_gradient(model, Batch(*parts), training)[0]

    one, other = backend.evaluate_each(
        plain, held, [given(repeated(rows, 1, start=index)) for index in range(2)]
    )
    if not all(np.isfinite(part).all() for part in (*one, *other)):
        return None
    squares = [sum(float(np.vdot(part, part)) for part in each) for each in (one, other)]
    expected = [np.sqrt(squares)]
    while one:  # Gradients can be large: each goes when its sum is known.
        expected.append(_FACTORS[0, 0] * one.pop(0) + _FACTORS[1, 0] * other.pop(0))
    arguments = given(repeated(rows, len(_FACTORS)), _FACTORS, _FINITE)
    (found,) = backend.evaluate_each(planned, held, [arguments])
    half = any(
        layer.compute_dtype in ("float16", "bfloat16")
        for layer in keras_private.flatten_layers(model)
    )
    tolerance = 5e-2 if half else 1e-3
    if not np.allclose(found[0], expected[0], rtol=tolerance, atol=1e-7):
        return False
    least = (1.0 if half else _LEAST_SHARE) * float(np.max(expected[0]))
    return all(
        float(np.linalg.norm(one - other))
        <= tolerance * max(float(np.linalg.norm(other)), least) + 1e-7
        for one, other in zip(found[1:], expected[1:], strict=True)
    )


def _moved_weights(model: keras.Model, seed: int) -> Weights:
    """Return the weights, each moved by a tenth of its size, or from zero to a typical size."""
    rng = np.random.default_rng(seed)
    moved = []
    for variable in model.weights:
        if "float" not in keras.backend.standardize_dtype(variable.dtype):
            continue
        value = backend.array_of(variable).astype("float32")
        size = math.sqrt(float(np.mean(np.square(value)))) if value.size else 0.0
        fan_in = math.prod(value.shape[:-1])
        step = _MOVED_BY * size if size > 0.0 else 0.5 / math.sqrt(max(fan_in, 1))
        # Longer noise repeats so many draws, which is faster. The number is prime.
        drawn = rng.standard_normal(min(value.size, _MOST_DRAWN), np.float32)
        noise = np.resize(np.float32(step) * drawn, value.shape)
        if not variable.trainable:
            # Variances must keep their sign.
            noise = np.where(value == 0.0, np.abs(noise), 0.1 * value * np.tanh(noise))
        noise += value
        moved.append((variable, ops.convert_to_tensor(noise, dtype=variable.dtype)))
    return moved


def _varied(rows: Batch, trial: int) -> Batch:
    """Return at least two different rows, in another order and with moved inputs per trial."""
    scales = np.array([1.0, 1.25]) if rows.num_rows == 1 else np.ones(rows.num_rows)
    rows = repeated(rows, len(scales), start=-trial)

    def vary(value: Tensor) -> Tensor:
        """Return slightly different numbers, also for each of two equal rows."""
        if not is_differentiable(value):
            return value
        factors = scales.reshape(-1, *[1] * (len(value.shape) - 1)) * (1.0 + trial / 64.0)
        array = ops.convert_to_numpy(value)
        return ops.convert_to_tensor((array * factors).astype(array.dtype))

    return replace(rows, x=mapped(vary, rows.x))
