"""Compares a plan with the plain gradients of single rows, before it is used.

The comparison is made with the weights moved a little. If a layer begins with zeros, as last layers
often do, all gradients behind it would be zero, and any plan would agree. Weights that are not
trained are moved too: a factor that is zero now may be nonzero later. A gradient that is zero or
not finite proves nothing.
"""

import math
from collections.abc import Collection
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

# For each trial: the factor of the trained weights, how far weights are moved as a share of their
# size, and whether they keep their sign. Large weights may saturate all outputs, some must be
# positive, and some may not be moved at all. A ReLU next to zero may be on in a batch and off
# alone, so one trial may fail by accident; an error of the rules makes all fail.
_TRIALS = (
    *((1.0, 0.1, False), (-1.0, 0.1, False), (1.0, 0.1, True)),
    *((0.01, 0.1, False), (1.0, 1.0, True), (1.0, 0.0, True)),
)
_MOST_DRAWN = 65_537
# A variable with a smaller share of the whole gradient than this is compared with this share.
_LEAST_SHARE = 0.01
# Factors and finiteness of three rows, of which the last one must add nothing.
_FACTORS, _FINITE = np.array([[0.5], [2.0], [0.0]], "float32"), np.array([True, True, False])


class ShowsNothingError(Exception):
    """Raised for rows on which gradients are not finite or zero, with a reason if not all are."""


def objection(
    model: keras.Model, rows: Batch, plan: GradientPlan, training: bool, used: Collection[int]
) -> str | None:
    """Return why norms and sums of the plan may not be those of plain gradients; None if they are.

    Args:
        model: A built model with a compiled loss.
        rows: A few examples with finite numbers.
        plan: A layer-wise plan.
        training: The mode of the forward pass.
        used: The `id` of each variable that a forward pass uses, and of which the plan does not
            take derivatives as autodiff does.

    Raises:
        ShowsNothingError: If the rows show nothing.
    """
    variables = model.trainable_variables
    unseen = {number for number, each in enumerate(variables) if id(each) in used}
    found: list[bool] = []
    for trial, kind in enumerate(_TRIALS):
        weights = _moved_weights(model, trial, *kind)
        agrees, seen = _agrees(model, _varied(rows, trial), plan, training, weights)
        found += [] if agrees is None else [agrees]
        unseen -= seen if agrees else set()
        if found.count(False) > 1 or (2 * sum(found) > len(found) and not unseen):
            break
    if found and 2 * sum(found) <= len(found):
        return "layer-wise gradients differ from plain ones on a few rows"
    if not found:
        raise ShowsNothingError
    if unseen:
        paths = ", ".join(repr(variables[number].path) for number in sorted(unseen))
        raise ShowsNothingError(f"gradients are zero, which proves nothing, of {paths}")
    return None


def runs_alone(model: keras.Model, rows: Batch) -> bool:
    """Return whether the plain gradient of the first row is finite and not zero."""
    held, alone = [*model.variables, *model.metrics_variables], repeated(rows, 1)
    parts = (alone.x, alone.y, alone.sample_weight)
    try:
        (found,) = backend.evaluate_each(
            lambda parts: single_gradient(model, Batch(*parts))[0], held, [parts]
        )
    except Exception:
        return False
    return all(np.isfinite(each).all() for each in found) and any(np.any(each) for each in found)


def _agrees(
    model: keras.Model, rows: Batch, plan: GradientPlan, training: bool, weights: Weights
) -> tuple[bool | None, set[int]]:
    """Compare the plan with plain gradients at other values of some variables.

    Args:
        model: A built model with a compiled loss.
        rows: A few examples.
        plan: The plan.
        training: The mode of the forward pass.
        weights: Variables and their other values.

    Returns:
        Whether the two agree, None if the plain gradients are not finite or all zero. And the
        numbers of the variables whose gradients are not zero.
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
    seen = {number for number, parts in enumerate(zip(one, other, strict=True)) if np.any(parts)}
    if not seen or not all(np.isfinite(part).all() for part in (*one, *other)):
        return None, set()
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
        return False, seen
    least = (1.0 if half else _LEAST_SHARE) * float(np.max(expected[0]))
    agrees = all(
        float(np.linalg.norm(one - other))
        <= tolerance * max(float(np.linalg.norm(other)), least) + 1e-7
        for one, other in zip(found[1:], expected[1:], strict=True)
    )
    return agrees, seen


def _moved_weights(
    model: keras.Model, seed: int, factor: float, distance: float, keeps_sign: bool
) -> Weights:
    """Return the weights, each moved by a share of its size, or from zero to a typical size."""
    rng = np.random.default_rng(seed)
    moved = []
    for variable in model.weights if distance else ():
        if "float" not in keras.backend.standardize_dtype(variable.dtype):
            continue
        value = backend.array_of(variable).astype("float32")
        value *= factor if variable.trainable else 1.0
        size = math.sqrt(float(np.mean(np.square(value)))) if value.size else 0.0
        fan_in = math.prod(value.shape[:-1])
        step = distance * size if size > 0.0 else 0.5 / math.sqrt(max(fan_in, 1))
        # Longer noise repeats so many draws, which is faster. The number is prime.
        drawn = rng.standard_normal(min(value.size, _MOST_DRAWN), np.float32)
        noise = np.resize(np.float32(step) * drawn, value.shape)
        if not variable.trainable:
            # Variances must keep their sign.
            noise = np.where(value == 0.0, np.abs(noise), 0.1 * value * np.tanh(noise))
        noise += value
        if keeps_sign:
            noise = np.copysign(noise, np.where(value < 0.0, -1.0, 1.0)).astype("float32")
        moved.append((variable, ops.convert_to_tensor(noise, dtype=variable.dtype)))
    return moved


def _varied(rows: Batch, trial: int) -> Batch:
    """Return at least two different rows, in another order and with moved inputs per trial."""
    scales = np.array([1.0, 1.25]) if rows.num_rows == 1 else np.ones(rows.num_rows)
    rows = repeated(rows, len(scales), start=-2 * trial)

    def vary(value: Tensor) -> Tensor:
        """Return slightly different numbers, also for each of two equal rows."""
        if not is_differentiable(value):
            return value
        factors = scales.reshape(-1, *[1] * (len(value.shape) - 1)) * (1.0 + trial / 64.0)
        array = ops.convert_to_numpy(value)
        return ops.convert_to_tensor((array * factors).astype(array.dtype))

    return replace(rows, x=mapped(vary, rows.x))
