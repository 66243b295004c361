"""Compares a plan with the plain gradients of single rows, before it is used.

The comparison is made with the weights moved a little: where a layer begins with zeros, as last
layers often do, the gradients behind it would all be zero, and any plan would agree. Weights that
nothing trains are moved too: a factor that is zero now may be another later.
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
from keras_adaclip.gradients import one_by_one
from keras_adaclip.gradients.batch import Batch, mapped, repeated
from keras_adaclip.gradients.layers.rule import is_differentiable
from keras_adaclip.gradients.per_example import per_example_gradients
from keras_adaclip.gradients.plan import GradientPlan

Tensor = Any

# A unit of ReLU that is next to zero may be on in a batch and off alone: one trial that fails may
# be that, while what the rules do not see makes every trial fail.
_NUM_TRIALS = 3
_MOVED_BY = 0.1
# Of the whole gradient: a variable that has less of it is compared with this much.
_LEAST_SHARE = 0.01
# Factors and finiteness of the two rows: both, and the second alone.
_WEIGHTINGS = (([[0.5], [2.0]], [True, True]), ([[0.0], [1.0]], [False, True]))


def agreeing(
    model: keras.Model, rows: Batch, plan: GradientPlan, training: bool
) -> GradientPlan | None:
    """The plan, if its norms and sums are those of the gradients of single rows, else None.

    Args:
        model: a built model with a compiled loss.
        rows: a few examples with finite numbers.
        plan: a plan that is not for one example after another.
        training: the mode of the forward pass.

    Returns:
        The plan with its `numbers_per_example`.
    """
    sizes: list[int] = []
    if _agrees(model, rows, plan, training, sizes):
        return replace(plan, numbers_per_example=max(sizes))
    return None


def _agrees(
    model: keras.Model, rows: Batch, plan: GradientPlan, training: bool, sizes: list[int]
) -> bool:
    found = []
    for trial in range(_NUM_TRIALS):
        weights = _moved_weights(model, seed=trial)
        found.append(compared(model, _shaken(_two(rows), trial), plan, training, weights, sizes))
        if found[-1]:
            return True
    # Weights that may not be moved, such as some that a constraint keeps positive.
    if all(agrees is None for agrees in found):
        return bool(compared(model, rows, plan, training, [], sizes))
    return False


def compared(
    model: keras.Model,
    rows: Batch,
    plan: GradientPlan,
    training: bool,
    weights: list[tuple[keras.Variable, Tensor]],
    sizes: list[int],
) -> bool | None:
    """One comparison, at other values of some variables.

    Args:
        model: a built model with a compiled loss.
        rows: a few examples.
        plan: the plan.
        training: the mode of the forward pass.
        weights: variables and their other values.
        sizes: to which the numbers that one example takes are appended.

    Returns:
        Whether the two agree; None where the plain gradients are not finite.
    """
    both_rows = repeated(rows, 2)
    held = [*model.variables, *model.metrics_variables]
    moved = [variable for variable, _ in weights]
    # As an argument: what a compiled function closes over, its compiler computes with beforehand,
    # number by number.
    given = (
        [value for _, value in weights],
        (both_rows.x, both_rows.y, both_rows.sample_weight),
    )

    def at(given: Any) -> tuple[Batch, keras.StatelessScope]:
        values, parts = given
        return Batch(*parts), keras.StatelessScope(list(zip(moved, values, strict=True)))

    def planned(given: Any) -> list[Tensor]:
        batch, scope = at(given)
        with scope:
            gradients, _ = per_example_gradients(model, batch, plan, training=training)
            sizes.append(gradients.numbers_touched)
            whole = ParameterGroups.single([variable.shape for variable in gradients.variables])
            norms = ops.sqrt(gradients.squared_norms(whole)[:, 0])
            sums = [
                gradients.weighted_sums(
                    ops.convert_to_tensor(factors, "float32"),
                    ops.convert_to_tensor(finite, "bool"),
                    whole,
                )
                for factors, finite in _WEIGHTINGS
            ]
        return [norms, *sums[0], *sums[1]]

    def plain(given: Any) -> list[Tensor]:
        batch, scope = at(given)
        with scope:
            first, second = (
                one_by_one.single_gradient(model, batch.rows(index, 1), training=training)[0]
                for index in range(2)
            )
        squares = [sum(ops.sum(ops.square(part)) for part in each) for each in (first, second)]
        both = [0.5 * one + 2.0 * other for one, other in zip(first, second, strict=True)]
        return [ops.sqrt(ops.stack(squares)), *both, *second]

    (expected,) = backend.evaluate_each(plain, held, [given])
    if not all(np.isfinite(part).all() for part in expected):
        return None
    (found,) = backend.evaluate_each(planned, held, [given])
    half = any(
        layer.compute_dtype in ("float16", "bfloat16")
        for layer in keras_private.flatten_layers(model)
    )
    tolerance = 5e-2 if half else 1e-3
    scale = float(np.max(expected[0]))
    if not np.allclose(found[0], expected[0], rtol=tolerance, atol=1e-7):
        return False
    least = (1.0 if half else _LEAST_SHARE) * scale
    return all(
        float(np.linalg.norm(one - other))
        <= tolerance * max(float(np.linalg.norm(other)), least) + 1e-7
        for one, other in zip(found[1:], expected[1:], strict=True)
    )


def _moved_weights(model: keras.Model, seed: int) -> list[tuple[keras.Variable, Tensor]]:
    """The weights, each moved by a tenth of its size, or from zero to a usual one."""
    rng = np.random.default_rng(seed)
    moved = []
    for variable in model.weights:
        if "float" not in keras.backend.standardize_dtype(variable.dtype):
            continue
        value = backend.array_of(variable).astype("float32")
        size = math.sqrt(float(np.mean(np.square(value)))) if value.size else 0.0
        fan_in = math.prod(value.shape[:-1])
        step = _MOVED_BY * size if size > 0.0 else 0.5 / math.sqrt(max(fan_in, 1))
        noise = step * rng.standard_normal(value.shape)
        if not variable.trainable:
            # Of the same sign, as variances must be.
            noise = np.where(value == 0.0, np.abs(noise), 0.1 * value * np.tanh(noise))
        moved.append((variable, ops.convert_to_tensor(value + noise, dtype=variable.dtype)))
    return moved


def _two(rows: Batch) -> Batch:
    """Two different rows at least, where there is a number that can differ."""
    if rows.num_rows > 1:
        return rows

    def differing(value: Tensor) -> Tensor:
        if not is_differentiable(value):
            return value
        factors = np.array([1.0, 1.25]).reshape(2, *[1] * (len(value.shape) - 1))
        return value * ops.cast(factors, value.dtype)

    doubled = repeated(rows, 2)
    return Batch(keras.tree.map_structure(differing, doubled.x), doubled.y, doubled.sample_weight)


def _shaken(rows: Batch, trial: int) -> Batch:
    """The rows in another order, their inputs moved a little; as they are in trial 0."""

    def roll(value: Tensor) -> Tensor:
        return ops.roll(value, trial, axis=0)

    def shake(value: Tensor) -> Tensor:
        return roll(value) * (1.0 + trial / 64.0) if is_differentiable(value) else roll(value)

    return Batch(
        keras.tree.map_structure(shake, rows.x),
        mapped(roll, rows.y),
        mapped(roll, rows.sample_weight),
    )
